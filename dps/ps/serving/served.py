"""What those who answer sessions need of their shard."""

from __future__ import annotations

from typing import Protocol

from dps.actors.ref import Sender
from dps.actors.system import Node
from dps.ps.intake.ledger import Ledger
from dps.ps.modes.mode import Mode
from dps.ps.store.store import Store
from dps.variables.plan import Plan, ShardLayout


class Served(Protocol):
    """Of a shard."""

    node: Node
    epoch: int
    plan: Plan
    store: Store
    ledgers: dict[int, Ledger]
    mode: Mode
    counts: dict[str, int]
    ended: bool

    @property
    def layout(self) -> ShardLayout:
        """How the shard's parts lie in a run of bytes."""

    def ledger(self, sender: Sender, epoch: int) -> Ledger:
        """Raises Aborted for a session that is not admitted."""
