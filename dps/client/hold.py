"""A hold on values in a ps's memory: the ps does not overwrite them until they are released."""

from __future__ import annotations

from typing import Any

from dps.client.lanes import Peer
from dps.errors import DpsError, Unavailable
from dps.transport.wire import Array


class Hold:
    """One version of a shard in the ps's memory. `memories`: the bytes of each arena, read-only."""

    def __init__(self, peer: Peer, request: int, counter: int, memories: list[Array]) -> None:
        self.peer, self.counter, self.memories = peer, counter, memories
        self._request: int | None = request

    def release(self) -> None:
        """Tell the ps that nobody reads the values any more. A further call does nothing."""
        request, self._request = self._request, None
        if request is not None:
            self.peer.lane.release(request, self.peer.layout.nbytes)


def held(peer: Peer, request: int, counter: int, names: list[Any]) -> Hold | None:
    """Hold the version that the ps keeps for a request. `names`: of the memory of each arena.

    None if the memory cannot be read. The session uses the socket from then on.
    """
    memories: list[Array] = []
    try:
        for name, arena in zip(names, peer.layout.arenas, strict=True):
            memories.append(peer.lane.attach(name))
            if len(memories[-1]) != arena.nbytes:
                raise Unavailable(f"an arena has {len(memories[-1])} bytes in the ps's memory; wanted {arena.nbytes}")
    except (DpsError, ValueError) as error:
        peer.lane.give_up(error)
        return None
    return Hold(peer, request, counter, memories)
