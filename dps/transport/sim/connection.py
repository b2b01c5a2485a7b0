"""A simulated connection: its two ends, its messages, and the partitions that may cut it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import inf

from dps.transport.endpoint import Event
from dps.transport.sim.network import LinkDirection
from dps.transport.sim.scheduler import SimTask, TaskGroup

Done = Callable[[], None]


class ConnectionState(Enum):
    """States of a connection: no peer, connecting, in use, broken but not noticed yet, closed for good."""

    WAITING = "waiting"
    OPENING = "opening"
    UP = "up"
    BROKEN = "broken"
    CLOSED = "closed"


class Port:
    """The part of an endpoint that the fabric uses.

    More than 12 attributes: a plain record of what the fabric knows of one endpoint.
    """

    def __init__(self, owner: TaskGroup, rouse: Callable[[SimTask], None]) -> None:
        self.address = ""
        self.key = ""
        """A key for its address, the same for all spellings; "" if it is not bound."""
        self.owner = owner
        self.rouse = rouse
        self.open = True
        self.cut_at = inf
        """Messages that have not left by then are lost, because the endpoint was closed or its process killed."""
        self.connections: dict[str, SimulatedConnection] = {}
        self.greetings: dict[str, bytes] = {}
        """The header that opens each connection to an address."""
        self.peers: dict[bytes, SimulatedConnection] = {}
        self.inbox: deque[Event] = deque()
        self.receiver: SimTask | None = None
        self.finished: deque[Done] = deque()
        self.in_flight: dict[InFlight, None] = {}

    def lost(self, address: str) -> None:
        """Note that the connection to an address broke; the owner must still be told."""

    def shut(self) -> None:
        """The endpoint was closed, or its process has ended."""

    def finish(self, done: Done | None) -> None:
        """Note that a message no longer needs its frames: the owner's task must call `done`."""
        if done is not None and self.open:
            self.finished.append(done)
            if self.receiver is not None:
                self.rouse(self.receiver)


class SimulatedConnection:
    """A connection from one endpoint to one address. It outlives the endpoints that come and go at that address."""

    __slots__ = (
        "address", "back", "client", "epoch", "forth", "key", "pending", "route", "server", "silent_since", "state",
    )  # fmt: skip

    def __init__(self, client: Port, address: str, key: str) -> None:
        self.client = client
        self.address = address
        self.key = key
        self.state = ConnectionState.WAITING
        self.epoch = 0
        """Messages of an earlier epoch are lost."""
        self.route = b""
        """Where the server finds the client; another one each time that the connection is made."""
        self.server: Port | None = None
        self.forth: LinkDirection | None = None
        self.back: LinkDirection | None = None
        self.pending: deque[InFlight] = deque()
        self.silent_since: float | None = None


class InFlight:
    """One in-flight message. Its frames are the sender's memory, read only when it arrives."""

    __slots__ = ("copies", "done", "epoch", "header", "leaves_at", "outward", "source", "target", "via", "views")

    def __init__(
        self, via: SimulatedConnection, outward: bool, header: bytes, views: list[memoryview], done: Done | None
    ) -> None:
        self.via = via
        self.outward = outward
        self.header = header
        self.views = views
        self.done = done
        source = via.client if outward else via.server
        assert source is not None
        self.source = source
        self.target: Port | None = None
        self.epoch = 0
        self.leaves_at = 0.0
        self.copies = 1

    def freeze(self) -> None:
        """Read the frames now, because the sender may reuse its memory."""
        self.views = [memoryview(view.tobytes()) for view in self.views]


@dataclass(frozen=True, slots=True)
class Cut:
    """A partition: no message passes from `tasks` to `others` (None: all others), nor back unless it is `one_way`."""

    tasks: frozenset[str]
    others: frozenset[str] | None
    one_way: bool

    def stops(self, source: str, target: str) -> bool:
        """Whether a message from one process to another is lost."""
        return self._crosses(source, target) or (not self.one_way and self._crosses(target, source))

    def _crosses(self, source: str, target: str) -> bool:
        return source in self.tasks and (target not in self.tasks if self.others is None else target in self.others)
