"""Asks each ps what an earlier chief told it, so that a restarted chief can continue the run."""

from __future__ import annotations

from collections.abc import Callable

from dps.actors.ref import Ref
from dps.actors.system import Node
from dps.protocol import PS
from dps.run_protocol import AskServing, Serving
from dps.transport.message import Message
from dps.variables.plan import Plan

ASK_S = 5.0
"""Timeout of one attempt to ask a ps."""


class Takeover:
    """Active from the first ps that has seen a run epoch until this chief leads. `found`: current answers, by ps."""

    def __init__(self, node: Node, changed: Callable[[], None]) -> None:
        """`changed` is called after each answer."""
        self._node, self._changed = node, changed
        self._asked: dict[int, str] = {}
        self.found: dict[int, Serving] = {}
        self.over = False
        """Whether this chief leads; from then on all epochs that ps have seen are its own."""

    @property
    def pending(self) -> list[int]:
        """The ps that have not answered yet."""
        return [task for task in self._asked if task not in self.found]

    def came(self, task: int, address: str) -> None:
        """Ask a ps that has registered and has seen a run epoch."""
        if not self.over and task not in self._asked:
            self._asked[task] = address
            self._ask(task, address)

    def lost(self, task: int) -> None:
        """Drop the answer of a ps that was lost."""
        self._asked.pop(task, None)
        self.found.pop(task, None)

    def _ask(self, task: int, address: str) -> None:
        def answered(answer: Message | Exception) -> None:
            if self.over or self._asked.get(task) != address:
                return
            if isinstance(answer, Serving):
                self.found[task] = answer
                self._changed()
            else:
                self._ask(task, address)

        self._node.ask(Ref(address, PS), AskServing(), ASK_S, answered)

    # -- what was found -----------------------------------------------------------------------------------------

    def newest(self) -> Serving | None:
        """The newest answer of a ps that serves an epoch; None if none serves any."""
        serving = [found for found in self.found.values() if found.epoch]
        return max(serving, key=lambda s: (s.epoch, s.trains, s.notes.get("version", 0)), default=None)

    def notes(self) -> Serving | None:
        """The answer with the newest notes; None if no session has trained yet."""
        trains = [found for found in self.found.values() if found.trains]
        return max(trains, key=lambda s: (s.epoch, s.notes["version"]), default=None)

    def whole(self, plan: Plan, epoch: int) -> bool:
        """Whether all ps of the plan serve this epoch, and it trains."""
        served = [self.found[task] for task in plan.ps if task in self.found]
        same = len(served) == len(plan.ps) and all(s.epoch == epoch for s in served)
        return same and any(s.trains for s in served)
