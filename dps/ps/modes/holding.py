"""Holds pushes back on a shard in async and bounded mode, so that a published version has the same ones on all ps.

Of a session that dies meanwhile, it has on each ps those that this one has applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dps.actors.ref import Sender
from dps.errors import DeadlineExceeded, ProtocolError
from dps.process.telemetry import log
from dps.ps.intake.ledger import Ledger
from dps.ps.shard import Shard

HOLD_S = 10.0
"""How long pushes are held back without a word from the chief."""
DELIVER_S = 5.0
"""How long the pushes may take that belong to the version and are not here."""


class HeldPushes:
    """One cut, from the order to hold back until the copy is made or given up. Until the chief has told the numbers, no
    push is applied; from then on those up to them."""

    def __init__(self, shard: Shard, cut: str, resume: Callable[[], None]) -> None:
        """`resume` is called once, when pushes may be applied again."""
        self._shard, self.cut, self._resume = shard, cut, resume
        self._limits: dict[int, int] = {}
        """For each session that the chief has named the last push that belongs to the cut."""
        self._is_told = self._is_over = False
        shard.node.after(HOLD_S, self._expire)

    def may_apply(self, ledger: Ledger) -> bool:
        """Whether the next push of a session belongs to the cut."""
        return ledger.done < self._limits.get(ledger.incarnation, 0)

    def set_limits(self, numbers: list[Any], sender: Sender) -> None:
        """The chief has told which pushes belong to the cut. Raises ProtocolError if others were applied already."""
        if self._is_told:  # the order came again
            return
        limits: dict[int, int] = {}
        for entry in numbers:
            if not isinstance(entry, list) or len(entry) != 2 or not all(type(value) is int for value in entry):
                raise ProtocolError(f"{entry!r:.80} is no session and number of a push")
            limits[entry[0]] = entry[1]
        for incarnation, number in limits.items():
            ledger = self._shard.ledgers.get(incarnation)
            if ledger is not None and ledger.done > number:
                raise ProtocolError(
                    f"{ledger.name} has told push {number} as its last one, and {ledger.done} are applied"
                )
        self._limits, self._is_told = limits, True
        self._shard.node.after(DELIVER_S, lambda: self._deliver_expired(sender))

    def finish_if_whole(self) -> None:
        """Make the copy and go on, once all pushes that belong to it are applied. A session that has ended counts with
        what was applied."""
        if self._is_told and not self._is_over and not self._missing():
            self._shard.perform_cut(self.cut)
            self.end_hold()

    def end_hold(self) -> None:
        """Let pushes be applied again, whether the copy was made or not."""
        if not self._is_over:
            self._is_over = True
            self._resume()

    def _missing(self) -> list[Ledger]:
        ledgers = self._shard.ledgers
        return [ledgers[i] for i, number in self._limits.items() if i in ledgers and ledgers[i].done < number]

    def _expire(self) -> None:
        if not self._is_over and not self._shard.ended and not self._is_told:
            log.warning("%s: the chief is silent; pushes are not held back any more", self._shard.node.name)
            self.end_hold()

    def _deliver_expired(self, sender: Sender) -> None:
        if self._is_over or self._shard.ended:
            return
        late = ", ".join(sorted(ledger.name for ledger in self._missing())) or "no session"
        text = f"{self._shard.node.name} has waited {DELIVER_S:.0f} s for pushes of {late} that are on their way"
        self._shard.node.answer(sender, DeadlineExceeded(text))
        self.end_hold()
