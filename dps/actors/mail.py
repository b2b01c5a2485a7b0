"""Takes a delivery apart into its messages."""

from __future__ import annotations

from collections.abc import Callable

from dps.errors import ProtocolError
from dps.transport.endpoint import Delivery, Route
from dps.transport.wire import Envelope, decode, unbundle


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
