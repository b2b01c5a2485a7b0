"""Values in a ps's memory that are held: the ps does not overwrite them until they are released."""

from __future__ import annotations

from typing import Any

from dps.client.lanes import Peer
from dps.errors import DpsError, Unavailable
from dps.transport.wire import Array


class Hold:
    """One version of a shard in the ps's memory, by arena: bytes, to read only."""

    def __init__(self, peer: Peer, number: int, memories: list[Array]) -> None:
        self.memories = memories
        self._peer, self._number, self._open = peer, number, True

    def release(self) -> None:
        """The values are read, or nobody wants them; a further call does nothing."""
        if self._open:
            self._open = False
            self._peer.lane.release(self._number, self._peer.layout.nbytes)


def held(peer: Peer, number: int, names: list[Any]) -> Hold | None:
    """Hold what the ps has lent under a request's number: the memory of each arena, by its name. None where it cannot
    be read; then the socket is used from now on."""
    try:
        memories = [peer.lane.attach(name) for name in names]
        if [len(memory) for memory in memories] != [arena.nbytes for arena in peer.layout.arenas]:
            raise Unavailable("the ps's memory is not laid out as agreed")
    except DpsError as error:
        peer.lane.give_up(error)
        return None
    return Hold(peer, number, memories)
