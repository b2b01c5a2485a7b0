"""Bounds on what one process keeps at a node, such as the pulls that wait and its sessions."""

from __future__ import annotations

from dps.errors import Unavailable
from dps.telemetry import log

PROCESSES = 4096
"""The most processes whose refusals are remembered."""


class Bound:
    """The bound on things of one kind. One more than the bound is refused, counted, and logged once a process."""

    def __init__(self, what: str, most: int) -> None:
        """`what`: in the plural, such as "pulls that wait"."""
        self.what, self.most = what, most
        self.refused = 0
        self._told: set[str] = set()

    def check(self, kept: int, whose: str) -> None:
        """Raise Unavailable if `whose`, a process by its name, keeps as many as it may."""
        if kept < self.most:
            return
        self.refused += 1
        text = f"{whose} keeps {kept} {self.what}, at most {self.most} are possible; let some of them end first"
        if whose not in self._told and len(self._told) < PROCESSES:
            self._told.add(whose)
            log.warning("refused: %s; further ones are not logged", text)
        raise Unavailable(text)
