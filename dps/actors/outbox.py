"""Collects outgoing messages, so that messages to one node in one turn leave as a single bundle.

Each message wakes the receiver, which takes longer than handling most messages.
"""

from __future__ import annotations

from collections.abc import Callable

from dps.transport.endpoint import Endpoint, Route
from dps.transport.tuning import Tuning
from dps.transport.wire import Array, Envelope, bundle, encode

_Letter = tuple[bytes, tuple[Array, ...], Callable[[], None] | None]


class Outbox:
    """The messages that one endpoint sends at the next `flush`, in the order of `put` for each route."""

    def __init__(self, endpoint: Endpoint, tuning: Tuning) -> None:
        self._endpoint, self._together, self._alone_nbytes = endpoint, tuning.together, tuning.nodes.together_nbytes
        self._waiting: dict[Route, list[_Letter]] = {}

    def put(self, route: Route, envelope: Envelope, done: Callable[[], None] | None = None) -> None:
        """Queue a message; large ones leave at once. `done` is called when its arrays may change again.

        Raises what `Endpoint.send` would: ValueError for an array that is not contiguous, ConfigError for a malformed
        address, Unavailable for a host that is not known or a closed endpoint.
        """
        header, arrays = encode(envelope)
        waiting = self._waiting.get(route)
        if waiting is None:
            if route.__class__ is str:
                self._endpoint.connect(route)
            waiting = self._waiting[route] = []
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

    def flush(self) -> None:
        """Send all queued messages."""
        if self._waiting:
            for route, waiting in self._waiting.items():
                self._send(route, waiting)
            self._waiting = {}

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
