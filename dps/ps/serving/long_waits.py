"""Tells who waits for longer than a moment for whom. Most waits end before that."""

from __future__ import annotations

from collections.abc import Callable

from dps.actors.node import Node


class LongWaits:
    """What is to be told of waits soon. Each `tell` checks whether anybody still waits."""

    def __init__(self, node: Node, moment_s: float) -> None:
        self._node, self._moment_s = node, moment_s
        self._new: list[Callable[[], None]] = []
        self._due: list[Callable[[], None]] = []

    def add_wait(self, tell: Callable[[], None]) -> None:
        """Call `tell` after `moment_s`, and before twice that time."""
        self._new.append(tell)
        if len(self._new) == 1 and not self._due:
            self._node.after(self._moment_s, self._report_waits)

    def _report_waits(self) -> None:
        due, self._due, self._new = self._due, self._new, []
        if self._due:
            self._node.after(self._moment_s, self._report_waits)
        for tell in due:
            tell()
