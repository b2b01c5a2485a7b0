"""Collects outgoing messages, so that messages to one node in one turn leave as a single bundle.

Each message wakes the receiver, which takes longer than handling most messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dps.actors.authorization import Tickets
from dps.errors import ProtocolError
from dps.transport.endpoint import Delivery, Endpoint, Route
from dps.transport.message import Form
from dps.transport.tuning import Tuning
from dps.transport.wire import Array, Envelope, bundle, decode, encode, encode_plain, unbundle

_Letter = tuple[bytes, tuple[Array, ...], Callable[[], None] | None]


class Outbox:
    """The messages that one endpoint sends at the next `flush`, in the order of `queue_message` for each route."""

    def __init__(self, endpoint: Endpoint, tuning: Tuning) -> None:
        self._endpoint, self._together, self._alone_nbytes = endpoint, tuning.together, tuning.nodes.together_nbytes
        self.waiting: dict[Route, list[_Letter]] = {}
        """The queued messages, by route. Only this class changes it."""

    def queue_message(self, route: Route, envelope: Envelope, done: Callable[[], None] | None = None) -> None:
        """Queue a message; large ones leave at once. `done` is called when its arrays may change again.

        Raises what `Endpoint.send` would: ValueError for an array that is not contiguous, ConfigError for a malformed
        address, Unavailable for a host that is not known or a closed endpoint.
        """
        header, arrays = encode(envelope)
        waiting = self.waiting.get(route)
        if waiting is None:
            if route.__class__ is str:
                self._endpoint.connect(route)
            waiting = self.waiting[route] = []
        nbytes = 0
        for array in arrays:
            nbytes += array.nbytes
            if not array.flags.c_contiguous:
                raise ValueError(f"a frame of shape {array.shape} is not C-contiguous; send ascontiguousarray(array)")
        if nbytes > self._alone_nbytes:
            self._send(route, waiting)
            self._endpoint.send(route, header, arrays, done)
            return
        waiting.append((header, arrays, done))
        if len(waiting) >= self._together:
            self._send(route, waiting)

    def send_message(self, route: Route, envelope: Envelope) -> None:
        """Send all queued messages and then this one, which waits for no other. Raises as `queue_message`."""
        self.flush()
        header, arrays = encode(envelope)
        self._endpoint.send(route, header, arrays)

    def send_plain(
        self, route: Route, form: Form, integers: Sequence[int], actor: str, request: int, sender: str, incarnation: int
    ) -> None:  # fmt: skip
        """As `send_message`, the message `form.made(*integers)`, which is not made if it has a plain header. The others
        are the fields of an envelope."""
        if self.waiting:
            self.flush()
        header = encode_plain(form, integers, actor, request, sender, incarnation)
        if header:
            self._endpoint.send(route, header)
        else:
            self.send_message(route, Envelope(form.made(*integers), actor, request, sender, incarnation))

    def flush(self) -> None:
        """Send all queued messages."""
        if self.waiting:
            for route, waiting in self.waiting.items():
                self._send(route, waiting)
            self.waiting = {}

    def _send(self, route: Route, waiting: list[_Letter]) -> None:
        if not waiting:
            return
        if len(waiting) == 1:
            header, arrays, done = waiting[0]
        else:
            header = bundle([(letter[0], len(letter[1])) for letter in waiting])
            arrays = tuple(array for letter in waiting for array in letter[1])
            dones = [letter[2] for letter in waiting if letter[2] is not None]
            done = _all(dones) if dones else None
        waiting.clear()
        self._endpoint.send(route, header, arrays, done)


def _all(calls: list[Callable[[], None]]) -> Callable[[], None]:
    def done() -> None:
        for call in calls:
            call()

    return done


SHORT_NBYTES = 4 << 20
"""The longest header of a process that nobody has admitted: a plan of some 50,000 variables. Decoded it may need 64
times as much memory."""

SENSELESS, ENOUGH = 32, 1 << 20
"""As many refused messages as one counts in which nobody can be found to answer to: a stranger's connection ends at
once. And as many as end any connection."""


def envelopes(event: Delivery, refuse: Callable[[Route, bytes, ProtocolError], None]) -> list[Envelope]:
    """The messages of a delivery. `refuse` gets route, header and error of each that is malformed."""
    found = []
    try:
        for header, frames in unbundle(event.header, event.frames):
            try:
                found.append(decode(header, frames))
            except ProtocolError as error:
                refuse(event.route, header, error)
    except ProtocolError as error:
        refuse(event.route, event.header, error)
    return found


def to_self(address: str, envelope: Envelope) -> Delivery:
    """A message of a node to its own address, as it would arrive."""
    header, arrays = encode(envelope)
    return Delivery(address, header, [memoryview(a.tobytes()) for a in arrays])  # copies: they are the receiver's


def too_long(event: Delivery, tickets: Tickets) -> ProtocolError | None:
    """The error that answers a header over `SHORT_NBYTES`; None if its sender may send such a one."""
    if event.route.__class__ is str or tickets.is_admitted(event.route):
        return None
    return ProtocolError(
        f"got a header of {len(event.header)} bytes of a process that the chief has not admitted, wanted at most "
        f"{SHORT_NBYTES}; join as a worker first, or name fewer variables"
    )
