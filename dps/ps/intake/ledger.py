"""The pushes of one session on this shard: those that arrive, those that are staged, and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dps.errors import Aborted
from dps.messages.sessions import APPLIED, WINDOW, Pushed
from dps.ps.intake.borrowed import Borrowed
from dps.ps.intake.intake import Intake, Staged

if TYPE_CHECKING:
    from dps.ps.intake.worker_times import WorkerTimes


class Ledger:
    """Push numbers are dense from 1. In asynchronous modes a push is applied only when all lower ones have results; in
    sync the step ps decides in that order, too. Results of the last `window` numbers are kept, so that a push that is
    sent again is answered and not applied again.

    More than 12 attributes: what a shard remembers of one session has its place here.
    """

    def __init__(self, task: int, incarnation: int, name: str, memory: Borrowed, window: int = WINDOW) -> None:
        self.task, self.incarnation, self.name, self.window = task, incarnation, name, window
        self.memory = memory
        """The session's memory, which its messages name."""
        self.arriving: dict[int, Intake] = {}
        self.staged: dict[int, Staged] = {}
        """The pushes that are complete."""
        self.results: dict[int, Pushed] = {}
        self.kept = 0
        """The number of the push that waits for others, and is not staged; 0: there is none."""
        self.done = 0
        """All numbers up to this one have results."""
        self.applied = 0
        """The number of those pushes that were applied and had a gradient; not counted in sync mode."""
        self.released = 0
        """The session reads nothing of its requests under lower numbers any more."""
        self.counted = 0
        """The number of those pushes that count here as steps, on a ps that is not the step ps."""
        self.received = self.sent = 0
        """Bytes of its pushes, and of the values that it was sent or lent."""
        self.rate = 0.0
        """Bytes a second at which the last whole pull left; 0: not known."""
        self.waited_s = 0.0
        """How long its pushes and pulls have waited for other workers, as far as this ps knows."""
        self.times: WorkerTimes | None = None
        """What its loop's time goes to, if it has told."""

    def has_result(self, number: int) -> bool:
        return number <= self.done or number in self.results

    def is_complete(self, number: int) -> bool:
        """Whether a push needs no more messages: it is kept or staged, or has its result."""
        return number <= self.done or number in self.staged or number in self.results or number == self.kept

    def check_reach(self, number: int) -> None:
        """Raise Aborted for a push whose number may not be staged now."""
        if not self.done < number <= self.done + self.window:
            raise Aborted(f"push {number} is too far ahead: {self.done} are done, {self.window} more may be open")

    def record_times(self, told: Sequence[Any]) -> None:
        """What came with a push of the session (`Push.times`). Raises ProtocolError if it is no such thing."""
        if self.times is None:
            from dps.ps.intake.worker_times import WorkerTimes  # here: a ps starts without it

            self.times = WorkerTimes()
        self.times.record_report(told, self.done, self.waited_s)

    def counters(self, of_step_ps: bool = True) -> dict[str, Any]:
        """For people: how many pushes have results, how many of them no other ps counts, step and staleness of the last
        one, bytes, and what the time of the session's loop goes to, if it has told."""
        last = self.results.get(self.done)
        step, staleness = (0, 0) if last is None else (last.step, last.staleness)
        times = {} if self.times is None else {"times": self.times.as_dict()}
        return {
            "pushes": self.done, "counted": self.done if of_step_ps else self.counted, "step": step,
            "staleness": staleness, "received": self.received, "sent": self.sent, **times,
        }  # fmt: skip

    def stage_push(self, staged: Staged, nbytes: int) -> Staged:
        """Keep a complete push of so many bytes, and drop what has come of it in another form."""
        self.received += nbytes
        if self.arriving or self.staged:
            self.discard_push(staged.push.number)
        self.staged[staged.push.number] = staged
        return staged

    def record_result(self, result: Pushed) -> None:
        """Keep a result, and free the push's memory."""
        results, done = self.results, self.done
        results[result.number] = result
        if self.arriving or self.staged:
            self.discard_push(result.number)
        while done + 1 in results:
            done += 1
            results.pop(done - self.window, None)
        self.done = done

    def discard_push(self, number: int) -> None:
        """Forget all messages of a push."""
        found = self.arriving.pop(number, None) or self.staged.pop(number, None)
        if found is not None:
            found.drop()

    def outcome(self) -> list[Any]:
        """The number of the last push with a result, and which of the last ones were not applied."""
        return [self.done, sorted(n for n, result in self.results.items() if result.status != APPLIED)]

    def discard_all(self) -> None:
        """The session has ended."""
        for number in (*self.arriving, *self.staged):
            self.discard_push(number)
