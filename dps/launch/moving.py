"""Starts tasks, or the whole run, again on other machines when machines give notice or are lost."""

from __future__ import annotations

import queue
import signal
from collections.abc import Callable, Mapping, Sequence

from dps.launch.engines.engine import Started
from dps.launch.plan import runs_program


class Moving:
    """Handles tasks whose place is about to go. `notice` may be called on any thread, all else on the supervisor's.

    The tasks of such a place are told to end in order. A worker ends after its step, and a ps once its values are
    saved; both are started again elsewhere. The chief is known by its address, so it cannot move, and a run needs a
    worker: if the chief's place goes, or those of all workers, the chief is told to end the run in order.
    """

    def __init__(self, children: Mapping[str, Started], say: Callable[[str], None]) -> None:
        self._children, self._say = children, say
        self._notices: queue.SimpleQueue[tuple[Sequence[str], str]] = queue.SimpleQueue()
        self._told: set[Started] = set()
        """Tasks that were told to end because their place is about to go."""
        self.all = False
        """Whether the run ends because its machines go, and not because it is done."""

    def notice(self, names: Sequence[str], where: str) -> None:
        """The place of these tasks is about to go."""
        self._notices.put((names, where))

    def heed(self) -> None:
        """Tell the tasks to end whose place is about to go."""
        while not self._notices.empty():
            names, where = self._notices.get()
            going = [child for name in names if (child := self._children.get(name)) is not None and child.alive]
            workers = [child for name, child in self._children.items() if name.startswith("worker:") and child.alive]
            if "chief" in names or (workers and set(workers) <= {*going, *self._told}):
                self.all = True
                self._say(f"the run ends in order with {where}, and begins again from its checkpoint")
                going = [child for name, child in self._children.items() if name == "chief" and child.alive]
            for child in going:
                self._told.add(child)
                child.signal(signal.SIGTERM)

    @property
    def begins_again(self) -> bool:
        """Whether the run, which is over, was ended by the loss of machines: it can begin again from its checkpoint."""
        chief = self._children.get("chief")
        return self.all or (chief is not None and chief.displaced and bool(chief.code))

    def moves(self, child: Started) -> bool:
        """Whether a task that has ended is to be started again elsewhere: it was told so, or its machine was lost."""
        if not child.displaced or self.all or child.name == "chief":
            return False
        if child.name.startswith("evaluator:") and child.code == 0:
            return False
        return child in self._told or (child.code or 0) < 0 or not runs_program(child.name)
