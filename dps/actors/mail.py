"""Takes a delivery apart into its messages, and makes the one of a message to oneself."""

from __future__ import annotations

from collections.abc import Callable

from dps.actors.tickets import Tickets
from dps.errors import ProtocolError
from dps.transport.endpoint import Delivery, Route
from dps.transport.wire import Envelope, decode, encode, unbundle

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
