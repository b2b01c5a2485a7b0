"""Those who wait are told for whom when it takes longer than a moment: most waits are over before that."""

from __future__ import annotations

from collections.abc import Callable

from dps.actors.system import Node

MOMENT_S = 0.02


class Notices:
    """What is to be said soon; each `tell` looks for itself whether anybody still waits."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._due: list[Callable[[], None]] = []

    def add(self, tell: Callable[[], None]) -> None:
        """Call `tell` within a moment."""
        self._due.append(tell)
        if len(self._due) == 1:
            self._node.after(MOMENT_S, self._tell)

    def _tell(self) -> None:
        due, self._due = self._due, []
        for tell in due:
            tell()
