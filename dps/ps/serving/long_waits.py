"""Tells who waits for longer than a moment for whom. Most waits end before that. And counts how long sessions wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dps.actors.node import Node

if TYPE_CHECKING:
    from dps.ps.intake.ledger import Ledger


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


class Waits:
    """The waits of sessions for other workers, on the step ps: each is counted in its session's ledger when it ends."""

    def __init__(self, node: Node, ledgers: Mapping[int, Ledger]) -> None:
        self._now, self._ledgers = node.runtime.now, ledgers
        self._since: dict[tuple[int, int], tuple[float, float]] = {}
        """When each wait began, and how long it may last (0: as of the session), by incarnation and number."""

    def begin_wait(self, incarnation: int, number: int, patience_s: float = 0.0) -> None:
        """A session waits, under the number of a push or another one. A second call does nothing."""
        self._since.setdefault((incarnation, number), (self._now(), patience_s))

    def end_waits(self, keys: Sequence[tuple[int, int]]) -> None:
        """These sessions go on. Does nothing for those that have not waited."""
        now = self._now()
        for key in keys:
            found = self._since.pop(key, None)
            if found is not None and (ledger := self._ledgers.get(key[0])) is not None:
                ledger.waited_s += now - found[0]

    def forget_session(self, incarnation: int) -> None:
        """A session has ended."""
        for key in [key for key in self._since if key[0] == incarnation]:
            del self._since[key]

    def standstill(self, missing: Sequence[str]) -> dict[str, Any]:
        """Who waits (`who`) for whom (`for`, which are the `missing` ones), for how many seconds (`since_s`), and how
        many more until the first of their deadlines (`until_s`; None: there is none). {} if nobody waits."""
        now, who, deadlines = self._now(), list[str](), list[float]()
        for (incarnation, _), (since, patience_s) in self._since.items():
            ledger = self._ledgers.get(incarnation)
            if ledger is None or ledger.name in missing:
                continue
            who.append(ledger.name)
            patience_s = patience_s or (0.0 if ledger.times is None else ledger.times.patience_s)
            deadlines += [since + patience_s] if patience_s else []
        if not who or not missing:
            return {}
        since_s = now - min(since for since, _ in self._since.values())
        until_s = max(0.0, min(deadlines) - now) if deadlines else None
        return {"who": sorted(who), "for": sorted(missing), "since_s": since_s, "until_s": until_s}
