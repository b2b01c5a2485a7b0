"""Values read where the ps wrote them, for sessions in the same process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dps.actors.system import local_actor
from dps.client.connection import Connection
from dps.protocol import PS
from dps.transport.wire import Array

if TYPE_CHECKING:
    from dps.ps.shard import Shard
    from dps.ps.store.store import Lease


class Leases:
    """One lease per shard."""

    def __init__(self, connection: Connection, leases: dict[int, Lease]) -> None:
        self._connection, self._leases = connection, leases

    def memories(self) -> list[Array]:
        """The values of all arenas of all shards, read-only."""
        return [array for ps in self._connection.plan.layouts for array in self._leases[ps].arrays]

    def release(self) -> None:
        for lease in self._leases.values():
            lease.release()


def local_leases(connection: Connection) -> Leases | None:
    """Leases on all shards; None when a ps is elsewhere, is behind this session's step, or has no lease to give."""
    found: dict[int, Lease] = {}
    min_step = connection.local_step if connection.sync else 0
    for ps, ref in connection.refs.items():
        shard: Shard | None = getattr(local_actor(connection.runtime, ref.address, PS), "shard", None)
        lease = None
        if shard is not None and shard.ready and shard.epoch == connection.epoch and shard.store.step >= min_step:
            lease = shard.store.lease()
        if lease is None:
            for other in found.values():
                other.release()
            return None
        found[ps] = lease
    return Leases(connection, found)
