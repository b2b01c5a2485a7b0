"""The barriers of one step: its replicas wait there for each other, with a deadline, and the last one acts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from dps.errors import ConfigError, DeadlineExceeded
from dps.telemetry import log
from dps.transport.current import runtime

REPORT_S = 10.0
"""How often the log names the replicas that are waited for."""


class StepOver(BaseException):
    """Ends a replica that waits for one that has ended. Programs do not catch it by mistake: it is no Exception."""


class Meeting:
    """The barriers of one step, of `count` replicas. `what` names a barrier; all replicas must come to the same one.

    The last replica to come calls `decide` with the values of all, in replica order, and gives each its result. The
    step is over for all once a replica has failed, or has returned while others wait.
    """

    def __init__(self, count: int, timeout_s: float) -> None:
        self._count, self._timeout_s, self._runtime = count, timeout_s, runtime()
        self._lock, self._changed = threading.Lock(), runtime().condition()
        self._come: dict[int, tuple[str, Any]] = {}
        self._round = 0
        self._made: list[Any] = []
        """The results of the round that was decided last; the next one needs all who get them."""
        self.ended: dict[int, Any] = {}
        """The results of the replicas that have returned."""
        self.error: BaseException | None = None
        """Why the step is over."""

    def meet(self, replica: int, what: str, value: Any, decide: Callable[[list[Any]], list[Any]]) -> Any:
        """Wait for all replicas. Returns this replica's result. Blocks."""
        with self._lock:
            number = self._round
            self._come[replica] = what, value
            self._look_for_misfits(what)
            if self.error is not None:
                raise StepOver
            last = len(self._come) == self._count
        if last:
            try:
                made = decide([self._come[index][1] for index in range(self._count)])
            except BaseException as error:
                self.fail(error)
                raise StepOver from error
            with self._lock:
                self._made, self._come, self._round = made, {}, number + 1
                self._changed.notify()
            return made[replica]
        self._wait(lambda: self._round > number, lambda: self._missing(what))
        if self._round == number:
            raise StepOver
        return self._made[replica]

    def leave(self, replica: int, result: Any) -> None:
        """A replica has returned."""
        with self._lock:
            self.ended[replica] = result
            self._look_for_misfits("the end of the step")
            self._changed.notify()

    def fail(self, error: BaseException) -> None:
        """The step is over for all. The first error counts."""
        with self._lock:
            self.error = self.error or error
            self._changed.notify()

    def all_ended(self) -> list[Any]:
        """Wait for the end of all replicas, on the thread that has called `run`. Returns the results of all."""
        self._wait(lambda: len(self.ended) == self._count, lambda: self._missing("the end of the step"), leads=True)
        if self.error is not None:
            raise self.error
        return [self.ended[replica] for replica in range(self._count)]

    # -- waiting ------------------------------------------------------------------------------------------------

    def _wait(self, ready: Callable[[], bool], missing: Callable[[], str], leads: bool = False) -> None:
        """Wait until `ready` is true, or the step is over. The deadline counts from the time when a replica begins to
        wait."""
        now = self._runtime.now
        since, told = now(), now()
        while not ready() and self.error is None:
            if leads and not self.ended:
                since = told = now()  # replicas compute, or wait for each other
            elif now() - since > self._timeout_s:
                self.fail(DeadlineExceeded(f"{missing()} for {self._timeout_s:g} s"))
            elif now() - told > REPORT_S:
                told = now()
                log.warning("%s for %.0f s", missing(), now() - since)
            left_s = min(1.0, max(0.001, since + self._timeout_s - now()))
            self._changed.wait(lambda: ready() or self.error is not None, left_s)

    def _missing(self, what: str) -> str:
        here = {**self._come, **self.ended}
        away = [replica for replica in range(self._count) if replica not in here]
        return f"{what}: {_named(here)} wait for {_named(away)}"

    def _look_for_misfits(self, what: str) -> None:
        """End the step if replicas wait at different barriers, or for one that has returned. Holds the lock."""
        others = {replica: barrier for replica, (barrier, _) in self._come.items() if barrier != what}
        if not self._come or not (others or self.ended) or self.error is not None:
            return
        if self.ended:
            waiting = {replica: barrier for replica, (barrier, _) in self._come.items()}
            text = f"{_named(self.ended)} returned from the step, {_named(waiting)} waits in {_all(waiting)}"
        else:
            here = {replica: barrier for replica, (barrier, _) in self._come.items() if barrier == what}
            text = f"{_named(here)} is in {what}, {_named(others)} in {_all(others)}"
        self.error = ConfigError(f"{text}: every replica must make the same calls in the same order")
        self._changed.notify()


def _named(replicas: Any) -> str:
    """ "replica 1", or "replicas 0, 2"."""
    found = sorted(replicas)
    return f"replica{'s' if len(found) > 1 else ''} {', '.join(map(str, found))}"


def _all(barriers: Mapping[int, str]) -> str:
    return ", ".join(sorted(set(barriers.values())))
