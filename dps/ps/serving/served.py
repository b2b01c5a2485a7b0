"""The part of a shard that answers its readers, as a protocol, so that these need not import the shard."""

from __future__ import annotations

from typing import Protocol

from dps.actors.node import Node
from dps.actors.ref import Sender
from dps.ps.intake.ledger import Ledger
from dps.ps.modes.mode import Mode
from dps.ps.store.store import Store
from dps.variables.plan import Plan, ShardLayout


class Served(Protocol):
    """What the reads of a shard use; `dps.ps.shard.Shard` is one, and says what each member is."""

    node: Node
    epoch: int
    plan: Plan
    layout: ShardLayout
    store: Store
    ledgers: dict[int, Ledger]
    counts: dict[str, int]
    mode: Mode
    ended: bool

    def ledger(self, sender: Sender) -> Ledger: ...
