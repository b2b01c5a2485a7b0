"""The pushes of one session on this shard: those that are staged, and the results of those that are decided."""

from __future__ import annotations

from dps.protocol import Pushed
from dps.ps.intake.staging import Staged


class Ledger:
    """Numbers are dense from 1. In asynchronous modes a push is applied only when all lower ones have results; in sync
    the step ps decides in that order too. Results of the last `window` numbers are kept, so that a push that comes
    again is answered and not applied again.
    """

    def __init__(self, task: int, name: str, window: int) -> None:
        self.task, self.name, self.window = task, name, window
        self.staged: dict[int, Staged] = {}
        self.results: dict[int, Pushed] = {}
        self.done = 0
        """All numbers up to this one have results."""
        self.pulled = 0
        """Version counter that the session last pulled."""

    def decided(self, number: int) -> bool:
        return number <= self.done or number in self.results

    def is_here(self, number: int) -> bool:
        """Whether nothing more of a push is wanted: it is complete, or has its result."""
        staged = self.staged.get(number)
        return self.decided(number) or (staged is not None and staged.whole)

    def in_reach(self, number: int) -> bool:
        """Whether a push with this number may be staged now."""
        return self.done < number <= self.done + self.window

    def record(self, result: Pushed) -> None:
        """Keep a result; the push's memory goes."""
        self.results[result.number] = result
        self.discard(result.number)
        while self.done + 1 in self.results:
            self.done += 1
            self.results.pop(self.done - self.window, None)

    def discard(self, number: int) -> None:
        """Forget what is staged under a number."""
        staged = self.staged.pop(number, None)
        if staged is not None:
            staged.stop()

    def clear(self) -> None:
        """The session has ended."""
        for number in list(self.staged):
            self.discard(number)
