"""Those who wait are told for whom when it takes longer than a moment: most waits are over before that."""

from __future__ import annotations

from collections.abc import Callable

from dps.actors.system import Node


class Notices:
    """What is to be said soon; each `tell` looks for itself whether anybody still waits."""

    def __init__(self, node: Node, moment_s: float) -> None:
        self._node, self._moment_s = node, moment_s
        self._new: list[Callable[[], None]] = []
        self._due: list[Callable[[], None]] = []

    def add(self, tell: Callable[[], None]) -> None:
        """Call `tell` when one moment has passed, and within two."""
        self._new.append(tell)
        if len(self._new) == 1 and not self._due:
            self._node.after(self._moment_s, self._tell)

    def _tell(self) -> None:
        due, self._due, self._new = self._due, self._new, []
        if self._due:
            self._node.after(self._moment_s, self._tell)
        for tell in due:
            tell()
