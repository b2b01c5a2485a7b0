"""Interfaces to the outside world: messages, time, randomness, tasks and disk. Real and simulated ones implement them.

All packages above this one reach the outside world through a `Runtime` and the `Endpoint`s that it makes. Each has two
implementations: ZeroMQ with the real clock (`zmq.py`, `real.py`) and the simulator (`sim/`). Code above is the same
with both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dps.process.record import record

if TYPE_CHECKING:
    from random import Random

    import numpy as np
    import numpy.typing as npt

    from dps.checkpoint.storage import Storage
    from dps.transport.keys.keyring import Credentials
    from dps.transport.sockets.addresses import Binding
    from dps.transport.tuning import Tuning

Route = str | bytes
"""Where a message goes: the address of a node, or the opaque id of a connection that a peer opened to this endpoint."""

Buffer = Any
"""Anything with the buffer protocol and C-contiguous bytes: bytes, memoryview, numpy array."""


class Delivery(NamedTuple):
    """One message that arrived. An answer goes to `route`; the frames belong to the receiver."""

    route: Route
    header: bytes
    frames: list[memoryview]
    source: Any = None
    """An object that knows the sender's host, for `addresses.origin`; None: this process, or unknown."""


@record
class Connected:
    """The connection to a node's address is up (again)."""

    address: str


@record
class Disconnected:
    """An established connection broke: the peer's process ended, or its heartbeats stopped."""

    address: str


@record
class Refused:
    """A connection to a node's address failed because of the keys of the two ends. It is tried again if somebody sends
    to the address, at most once a second."""

    address: str
    reason: str


Event = Delivery | Connected | Disconnected | Refused


class AcceptedConnections(Protocol):
    """The connections that peers opened to an endpoint; `dps.transport.sockets.connections` says more."""

    admitted: Callable[[Route], bool]
    """Whether the process at a route was admitted."""
    serves_strangers: bool
    """Whether connections that were not admitted get credit, too."""

    def __len__(self) -> int: ...
    def allow(self, nbytes: int) -> None: ...
    def blame(self, route: Route, strikes: int = 1) -> None: ...


class Endpoint(Protocol):
    """Sends and receives whole messages. Belongs to one thread at a time; other threads may only call `wake`.

    Delivery is not guaranteed: messages to an absent peer are dropped, and the simulator may lose, double and
    reorder messages. The layers above make it reliable.
    """

    address: str
    """Where peers reach this endpoint, with the port that was really bound; "" if it is not bound."""
    exposed: bool
    """Whether it is bound where other machines may reach it."""
    keyed: bool
    """Whether it is bound for peers with keys only. Then `Delivery.source` knows the role of a message's sender."""

    @property
    def accepted(self) -> AcceptedConnections:
        """The connections that peers opened to it, and bounds on what they bring. Only of one that is bound."""

    @property
    def direct(self) -> bytes:
        """The name that a peer on this machine needs to `pair`; b"" if datagrams are not available."""

    def pair(self, route: Route, name: bytes, hears: bool) -> bool:
        """Pair with the peer at a route, which is on this machine and whose `direct` is `name`: small messages may go
        to it as datagrams. `hears`: it has paired, too; otherwise it gets datagrams only once it has sent one. Returns
        False if its datagrams are not heard, so that it must not be told this endpoint's name."""

    def expect(self, address: str, user: str) -> None:
        """Note whose key the node at an address has: a role, or one that joined by a token (`AcceptedKeys.user`).
        Unless this was called, it is the chief's; "" changes nothing."""

    def paired(self, name: bytes) -> Route | None:
        """The route of the peer whose `direct` is `name`; None if it has not paired."""

    def introduce(self, address: str, header: bytes) -> None:
        """Open each connection to this address with a message of this header. If one is up, send it now."""

    def connect(self, address: str) -> None:
        """Open a connection to a node and watch it; a second call does nothing. Never blocks."""

    def disconnect(self, address: str) -> None:
        """Close the connection to a node; what is still queued for it is dropped."""

    def send(
        self, route: Route, header: bytes, frames: Sequence[Buffer] = (), done: Callable[[], None] | None = None
    ) -> None:
        """Hand a message over. Never blocks. If the route is an address that is not connected, it connects.

        Large frames are not copied: they must not change until `done` is called, or until an answer proves that the
        message arrived. `done` is called on the thread that owns the endpoint, in a later `send` or `receive`, at the
        latest when the endpoint closes.
        """

    def receive(self, timeout_s: float) -> Event | None:
        """The next event, or None after `timeout_s` seconds or a `wake`. Blocks; 0 only looks."""

    def wake(self) -> None:
        """Make a `receive` that waits now, or the next one, return. Any thread may call it."""

    def close(self, linger_s: float = 0.5) -> None:
        """Close all sockets; sent messages get up to `linger_s` seconds to leave. A second call does nothing."""


class Memory(Protocol):
    """Bytes of this process that other processes of this machine and user may read. Freed with its last user."""

    name: list[int]
    """The name by which a peer attaches it."""
    array: npt.NDArray[np.uint8]


class TaskHandle(Protocol):
    """A thread, or a simulated one."""

    name: str

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; True when it has ended."""

    @property
    def alive(self) -> bool: ...


class Condition(Protocol):
    """Lets tasks of one process wait for what others of them change."""

    def notify(self) -> None:
        """Have those that wait check again. Any task of the process may call it."""

    def wait(self, ready: Callable[[], bool], timeout_s: float = inf) -> bool:
        """Wait until `ready()` is true; returns False if it is not after `timeout_s`. Blocks."""


class ProcessLocation(NamedTuple):
    """Identifies a process and its machine."""

    host: str
    boot: str
    """The same for all processes that one operating system runs, from its start to its end, and for no others."""
    pid: int
    keeper: int = 0
    """The process that restarts this one when it dies; 0 for none."""


class Runtime(Protocol):
    """The outside world of one process."""

    name: str
    simulated: bool
    """Whether this is the simulator. Above the transport only code that touches real memory asks; code that needs to
    know anything else has a field or method of its own here, or a value in `tuning`."""
    random: Random
    storage: Storage
    tuning: Tuning
    """The sizes and times that decide between ways."""
    silence_s: float
    """A connection ends when nothing, not even a heartbeat, was heard of the peer for so many seconds."""

    @property
    def keeps_blocks(self) -> bool:
        """Whether malloc reuses the memory of a large message for later ones. If so, received arrays need not be copied
        out of the message; if not, fresh memory for every message would cost more than the copies."""

    @property
    def threads(self) -> bool:
        """Whether tasks are threads. If so, the program has to end them before it exits."""

    @property
    def shares_log(self) -> bool:
        """Whether people read the log of this process and that of the chief in one place."""

    @property
    def place(self) -> ProcessLocation:
        """Which process this is, on which machine: for people, and for locks in files."""

    def lives(self, pid: int) -> bool:
        """Whether a process with this number exists on this machine now."""

    def now(self) -> float:
        """Monotonic seconds."""

    def wall(self) -> float:
        """Seconds since 1970-01-01 UTC, for people and files; never for timeouts."""

    def sleep(self, seconds: float) -> None:
        """Block this task."""

    def condition(self) -> Condition:
        """A new condition for tasks of this process."""

    def check_descriptors(self, who: str, need: int) -> None:
        """Raise ConfigError if the system does not let `who`, a task of this process, open so many descriptors."""

    def private_chief(self) -> tuple[str, str]:
        """A new folder that only this user can open, and the address in it where a chief of this process listens; a
        runtime without a network has no folder, "", and any address."""

    def endpoint(self, bind: str | Binding | None = None, keys: Credentials | None = None) -> Endpoint:
        """A new endpoint, bound to an address (port 0: choose one) or, with None, only able to connect.

        `keys`: every connection that leaves the process is encrypted, and the peer must have a key of the same folder.
        Raises Unavailable, with the address, if it is taken, and NotAuthenticated for an address beyond loopback
        without keys, unless the binding trusts its network.
        """

    def share(self, nbytes: int) -> Memory:
        """New memory, filled with zeros, that peers on this machine can attach. Raises Unavailable if there is none."""

    def attach(self, name: object) -> npt.NDArray[np.uint8]:
        """A peer's memory, read-only. Raises Unavailable if it is gone or belongs to another machine or user, and
        ProtocolError if `name` is malformed."""

    def secret(self) -> bytes:
        """16 random bytes that nobody else can guess."""

    def spawn(self, name: str, target: Callable[[], None]) -> TaskHandle:
        """Run `target` as a task of this process, with the caller's context variables."""

    def compute(self) -> float:
        """Stands for one training step's computing: takes virtual time in the simulator, does nothing otherwise.
        Returns how many seconds it took."""

    def preempt(self) -> None:
        """A point inside a long pass over memory where the simulator may run other tasks of this process."""

    def charge_pass(self, work: str, nbytes: int, slots: int = 0) -> None:
        """Stands for a pass over so many bytes of memory: in a simulator that models machines it takes the time that
        they need, elsewhere it does nothing. `work`: "gather", of gradients into shared memory; "copy", of values out
        of it; "update", with an optimizer of so many slots."""

    def record(self, what: str, **detail: Any) -> None:
        """Add a line to the simulator's trace, if there is one. Values: str, int, float, bool, tuples of these."""
