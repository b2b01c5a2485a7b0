"""The datagram peers of an endpoint: the name of each peer's socket, and whether the peer may be written to.

Names are random and never used twice, so a name stands for one endpoint of one process until that closes its socket.
The two ends of a pair decide independently, and neither learns what the other has decided. So an endpoint may stop
writing to a peer at any time, but it must hear every peer that may still write to it: otherwise messages would be lost
silently, again and again. It stops hearing a name only when that socket is closed or another name has replaced it.
"""

from __future__ import annotations

from collections.abc import Callable

from dps.transport.endpoint import Route

LONGEST_NBYTES = 64 * 1024
"""Longer messages go through ZeroMQ. The system's own limit is some 200 KB. 8,192 row numbers need 32 KB."""
PEERS = 4096
"""The most peers that an endpoint knows at one time."""


def fits(nbytes: int, parts: int) -> bool:
    """Whether a message of this size and number of parts (the header and the frames) may be sent as a datagram."""
    return nbytes + 4 * parts + 2 <= LONGEST_NBYTES


class Peers:
    """The peers of one endpoint, by route and by name. `is_open(name)` tells whether the socket of a name exists."""

    def __init__(self, is_open: Callable[[bytes], bool]) -> None:
        self._is_open = is_open
        self._paired: dict[Route, bytes] = {}
        """The name of every paired peer, by route."""
        self._routes: dict[bytes, Route] = {}
        """The same by name: the peers that are heard."""
        self.written: dict[Route, bytes] = {}
        """The names of those that may be written to, by route. Only this class changes it."""

    def pair(self, route: Route, name: bytes, hears: bool) -> bool:
        """Note that the peer at a route has this name, which replaces any other. `hears`: it knows this endpoint's
        name; otherwise it is written to only once it has written. False if there is no room; then it is not heard.

        If the name was paired at another route, the peer has a new connection, and is written to as before."""
        moved = self._routes.get(name)
        if moved is not None and moved != route:
            hears = hears or moved in self.written
            self.gone(moved)
        before = self._paired.get(route)
        if before != name:
            self.gone(route)
            if not self._has_room():
                return False
        self._paired[route] = name
        self._routes[name] = route
        if hears:
            self.written[route] = name
        return True

    def _has_room(self) -> bool:
        """Whether there is room for one more peer. Only peers whose sockets are closed are dropped to make room."""
        if len(self._paired) >= PEERS:
            for route, name in list(self._paired.items()):
                if not self._is_open(name):
                    self.gone(route)
        return len(self._paired) < PEERS

    def route(self, name: bytes) -> Route | None:
        """The route of the peer of this name."""
        return self._routes.get(name)

    def heard(self, name: bytes) -> Route | None:
        """Note a datagram from this name; returns the route of its peer, which may be written to from now on, or None
        for an unknown name."""
        route = self._routes.get(name)
        if route is not None and route not in self.written:
            self.written[route] = name
        return route

    def disconnected(self, route: Route) -> None:
        """Note that the connection to a route broke. Do not write to the peer until it writes, because another process
        may be there now. Hear it as before, because it may not know of the break."""
        self.written.pop(route, None)

    def gone(self, route: Route) -> None:
        """Note that the socket of the peer at a route is closed or replaced: drop its name."""
        self.written.pop(route, None)
        name = self._paired.pop(route, None)
        if name is not None and self._routes.get(name) == route:
            del self._routes[name]

    def clear(self) -> None:
        """Forget everybody."""
        self._paired.clear()
        self._routes.clear()
        self.written.clear()
