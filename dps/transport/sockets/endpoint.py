"""The real endpoint: an `Endpoint` over ZeroMQ.

It has one ROUTER if it is bound, and one DEALER for each node that it connected to. libzmq's own thread moves bytes,
sends heartbeats and reports through a socket monitor when a connection comes up or breaks, however busy Python is.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import zmq

from dps.errors import Unavailable
from dps.process.descriptors import opening
from dps.transport.endpoint import Buffer, Connected, Delivery, Disconnected, Event, Refused, Route
from dps.transport.sockets.addresses import Binding, url
from dps.transport.sockets.datagrams import Direct
from dps.transport.sockets.dealer import SILENCE_S, Dealer
from dps.transport.sockets.frames import Loans, Malformed, finish, large_frames, read_message
from dps.transport.sockets.listener import Names
from dps.transport.sockets.options import Sockets
from dps.transport.sockets.wakeups import Lookout, Poller, Signals

if TYPE_CHECKING:
    from dps.transport.keys.keyring import Credentials, KeyFolder
    from dps.transport.sockets.connections import Connections
    from dps.transport.sockets.listener import Listener
    from dps.transport.sockets.upkeep import Upkeep

_LONGEST_POLL_S = 3600.0
IN_A_ROW = 16
"""The most datagrams that are received in a row before the sockets are checked."""


class ZmqEndpoint:
    """An `Endpoint`. It may be made in one thread and used in another, by one thread at a time.

    `dropped` counts messages that arrived malformed: no header, or more than 4,096 frames.
    More than 12 attributes: one wait covers all sockets and descriptors of an endpoint, so they, and what each has
    brought, are held in one place. Sockets, datagrams, buffers and the poller are parts of their own.
    """

    accepted: Connections
    exposed = keyed = _inproc = False

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], names: Names, bind: str | Binding | None = None,
        silence_s: float = SILENCE_S, keys: Credentials | None = None,
    ) -> None:  # fmt: skip
        self.address, self.dropped, self.closed = "", 0, False
        self._sockets = Sockets(context, silence_s, keys)
        self._users: dict[str, str] = {}  # whose key the node at an address has, if not the chief's
        self._names = names
        self._listener: Listener | None = None
        if bind is not None:
            from dps.transport.sockets.listener import Listener  # here: a session listens nowhere
            from dps.transport.sockets.upkeep import Upkeep

            self._listener = Listener(self._sockets, names, Binding.of(bind))
        self._dealers: dict[str, Dealer] = {}
        self._by_url: dict[str, Dealer] = {}
        self._by_socket: dict[zmq.Socket[bytes], Dealer] = {}
        self._greetings: dict[str, bytes] = {}
        self._loans = Loans()
        self._direct, self._heard_direct = Direct(), 0
        self._answered = [(self._direct.fd, select.POLLIN)]
        """What the poller tells when a datagram has come, and nothing else."""
        self._waits_next = False
        """Whether its last message left as a datagram: then the next one is awaited, and takes longer than one look."""
        self._events: deque[Event] = deque()
        self._ready: deque[zmq.Socket[bytes]] = deque()
        self._signals, self._poller = Signals(), Poller()
        self._lookout = Lookout(self._poller.poll)
        self._poller.register_fd(self._signals.fd)
        if self._direct.fd >= 0:
            self._poller.register_fd(self._direct.fd)
        self._upkeep: Upkeep | None = None
        if self._listener is not None:
            self.exposed, self.keyed, self._inproc = self._listener.exposed, self._listener.keyed, self._listener.inproc
            self._upkeep = Upkeep(self._listener, self._loans, self._poller, self._signals)
            self.accepted, self.address = self._listener.connections, self._listener.address
            self._upkeep.watch_listener()

    def expect(self, address: str, user: str) -> None:
        """See `Endpoint.expect`."""
        if user and self._sockets.keys is not None and self._users.get(address) != "chief":
            self._users[address] = user
            if (dealer := self._dealers.get(address)) is not None and dealer.expect(user):
                self._close_socket(dealer)
                self._try_connection(dealer)

    def connect(self, address: str) -> None:
        """See `Endpoint.connect`. Blocks only to resolve a host name other than localhost. Raises ConfigError for a
        malformed address and Unavailable for a host without an address."""
        if address not in self._dealers:
            self._connect(address)

    def _connect(self, address: str) -> Dealer:
        self._check_open()
        where = url(address)
        dealer = self._by_url.get(where)
        if dealer is None:
            how = self._users.get(address, "chief"), self._greetings
            dealer = self._by_url[where] = Dealer(self._sockets, address, where, *how)
            if dealer.inproc:
                self._names.watch(where, self)
            else:
                self._try_connection(dealer)
        self._dealers[address] = dealer
        self._signals.attend()
        return dealer

    @property
    def direct(self) -> bytes:
        """See `Endpoint.direct`."""
        return self._direct.name

    def pair(self, route: Route, name: bytes, hears: bool) -> bool:
        """See `Endpoint.pair`."""
        return self._direct.pair(route, name, hears)

    def paired(self, name: bytes) -> Route | None:
        """See `Endpoint.paired`."""
        return self._direct.paired(name)

    def introduce(self, address: str, header: bytes) -> None:
        """See `Endpoint.introduce`."""
        dealer = self._dealers.get(address)
        self._greetings[address if dealer is None else dealer.address] = header
        if dealer is not None and dealer.socket is not None:
            self._poller.used(dealer.socket)
            dealer.greet(self._loans)

    def disconnect(self, address: str) -> None:
        """Close the connection to a node; what is still queued for it is dropped."""
        self._direct.disconnected(address)
        dealer = self._dealers.get(address)
        if dealer is None:
            return
        if dealer.inproc:
            self._names.forget(dealer.url, self)
        dealer.fall()
        self._close_socket(dealer)
        del self._by_url[dealer.url]
        self._dealers = {text: other for text, other in self._dealers.items() if other is not dealer}

    def send(
        self, route: str | bytes, header: bytes, frames: Sequence[Buffer] = (), done: Callable[[], None] | None = None
    ) -> None:
        """See `Endpoint.send`. Raises ValueError for an empty header, frames that are not contiguous or too long, and a
        route that is not this endpoint's; Unavailable once the endpoint is closed."""
        if self._loans.open:
            self._loans.return_buffers()
        if not header:
            raise ValueError("a message needs a header of at least one byte, got none")
        if self._direct.send(route, header, frames):
            self._waits_next = True
            if done is not None:
                finish(done)
            return
        large = large_frames(frames) if frames else []
        if isinstance(route, str):
            dealer = self._dealers.get(route) or self._connect(route)
            if not dealer.up:
                self._signals.attend()
                if dealer.socket is None and not dealer.inproc and dealer.handshake.may_retry:
                    self._try_connection(dealer)
            if dealer.socket is not None:
                self._poller.used(dealer.socket)
            dealer.send(header, frames, large, done, self._loans)
            return
        self._check_open()
        if self._upkeep is None:
            raise ValueError(f"route {route!r} is not from this endpoint, which is not bound; answer by address")
        self._upkeep.send(route, header, frames, large, done)

    def receive(self, timeout_s: float) -> Event | None:
        """The next event, or None after `timeout_s` seconds or a `wake`. Blocks; 0 only looks."""
        if self._waits_next:
            self._waits_next, upkeep, signals = False, self._upkeep, self._signals
            wait_s = timeout_s if upkeep is None else min(timeout_s, upkeep.due_at - time.monotonic())
            if wait_s > 0 and not (
                self._events or self._ready or self._loans.open or self._poller.used_sockets or signals.woken
            ):
                ready = self._lookout.wait(wait_s)
                if not ready:
                    return None
                if ready == self._answered and (delivery := self._direct.receive()) is not None:
                    return delivery
                timeout_s = 0.0  # it has waited; what woke it may be no event
        if self._loans.open:
            self._loans.return_buffers()
        if self._events:
            return self._events.popleft()
        while self._ready:
            if (delivery := self._read_socket(self._ready.popleft())) is not None:
                return delivery
        if self._heard_direct < IN_A_ROW and (delivery := self._direct.receive()) is not None:
            self._heard_direct += 1  # the sockets get their turn, too
            return delivery
        self._heard_direct = 0
        return self._wait(timeout_s)

    def _wait(self, timeout_s: float) -> Event | None:
        if self.closed:
            self._check_open()
        now, upkeep, signals, loans, direct = time.monotonic(), self._upkeep, self._signals, self._loans, self._direct
        deadline = now + timeout_s
        while True:
            left_s = min(deadline - now, _LONGEST_POLL_S)
            if upkeep is not None:
                if now >= upkeep.due_at:
                    upkeep.run_due(now)
                left_s = min(left_s, upkeep.due_at - now)
            if signals.woken:
                left_s = 0.0
            if loans.open:
                left_s = min(left_s, loans.recheck_s)
            fds, sockets = self._poller.wait(left_s)
            for fd in fds:
                if fd != direct.fd:
                    signals.attend()
            if sockets:  # attending to monitors may have replaced some
                self._ready.extend(socket for socket in sockets if not socket.closed)
            if self._events:
                return self._events.popleft()
            while self._ready:
                if (delivery := self._read_socket(self._ready.popleft())) is not None:
                    return delivery
            if direct.fd in fds and (delivery := direct.receive()) is not None:
                return delivery
            if loans.open:
                loans.return_buffers()
            if signals.woken:
                signals.woken = False
                return None
            now = time.monotonic()
            if now >= deadline:
                return None

    def _rebind(self, url: str, bound: bool) -> None:
        """Reconnect after an inproc name was bound or released, because libzmq does not do so."""
        dealer = self._by_url.get(url)
        if dealer is None:
            return
        if dealer.up:
            self._change_state(dealer, False)
        if bound:
            self._close_socket(dealer)
            self._open_socket(dealer)
            self._change_state(dealer, True)

    def _read_monitor(self, dealer: Dealer) -> None:
        changes = dealer.changes()
        for up in changes:
            self._change_state(dealer, up)
        if changes and not changes[-1]:  # use a new socket: messages that libzmq still holds were for the old peer
            self._close_socket(dealer)
            self._try_connection(dealer)
            return
        for event in dealer.failures():
            self._handle_failure(dealer, event)

    def _try_connection(self, dealer: Dealer) -> None:
        """Open a connection, if there are keys for it."""
        if self._listener is not None and self._listener.is_outdated():
            self._signals.call(self._renew_connections)
        if self._sockets.keys is not None and dealer.handshake.is_lacking_keys():
            self._refuse_connection(dealer)
        else:
            self._open_socket(dealer)

    def _handle_failure(self, dealer: Dealer, event: int) -> None:
        """A handshake failed: try other keys, or say why it is refused, at once or when that is known."""
        from dps.transport.sockets.handshake import Step

        def explained() -> None:
            if self._by_url.get(dealer.url) is dealer and not dealer.up:
                self._refuse_connection(dealer)

        step = dealer.handshake.failed(event, dealer.url, lambda: self._signals.call(explained))
        if step is Step.REFUSED:
            self._refuse_connection(dealer)
        elif step is not Step.WAIT:
            self._close_socket(dealer)
        if step is Step.NEXT:
            self._try_connection(dealer)

    def _refuse_connection(self, dealer: Dealer) -> None:
        self._close_socket(dealer)
        dealer.fall()
        dealer.handshake.delay_retry()
        self._events.append(Refused(dealer.address, dealer.handshake.reason))

    def _renew_connections(self) -> None:
        """Make the connections whose keys are gone anew, with those that the folder has now."""
        if self._upkeep is not None and self._listener is not None and self._listener.is_outdated():
            self._upkeep.unwatch_listener()
            self._ready.clear()
            self._listener.renew()
            self._upkeep.watch_listener()
        for dealer in self._by_url.values():
            if not dealer.inproc and (dealer.socket is None or dealer.handshake.is_stale):
                self._change_state(dealer, False) if dealer.up else None
                self._close_socket(dealer)
                self._try_connection(dealer)

    def _change_state(self, dealer: Dealer, up: bool) -> None:
        if up:
            self._events.append(Connected(dealer.address))
            if dealer.socket is not None:
                self._poller.used(dealer.socket)
            dealer.rise(self._loans)
            return
        self._direct.disconnected(dealer.address)
        dealer.fall()
        socket = dealer.socket
        while socket is not None and socket.poll(0):  # the peer's last messages come before its loss
            delivery = self._read_socket(socket)
            if delivery is not None:
                self._events.append(delivery)
        self._events.append(Disconnected(dealer.address))

    def _open_socket(self, dealer: Dealer) -> None:
        with opening(f"a connection to {dealer.address}"):
            socket = dealer.open()
        self._by_socket[socket] = dealer
        self._poller.register(socket)
        if dealer.monitor is not None:
            self._signals.watch(dealer.monitor, partial(self._read_monitor, dealer))

    def _close_socket(self, dealer: Dealer, linger_s: float = 0.0) -> None:
        if dealer.socket is not None:
            self._poller.unregister(dealer.socket)
            del self._by_socket[dealer.socket]
            if dealer.socket in self._ready:
                self._ready.remove(dealer.socket)
        if dealer.monitor is not None:
            self._signals.unwatch(dealer.monitor)
        dealer.close(linger_s)

    def _read_socket(self, socket: zmq.Socket[bytes]) -> Delivery | None:
        """One message from a readable socket; None when it is malformed."""
        dealer = self._by_socket.get(socket)
        if not socket.closed:
            self._poller.used(socket)
        try:
            if dealer is not None:
                return read_message(socket, dealer.address, dealer.inproc)
            delivery = read_message(socket, None, self._inproc, self.accepted.ended)
        except Malformed as error:
            self.dropped += 1
            if dealer is None:
                self.accepted.map_route(error.route, error.source)
                self.accepted.blame(error.route)
            return None
        if delivery is not None:
            if delivery.route not in self.accepted.heard:
                self.accepted.map_route(delivery.route, delivery.source)
            self.accepted.heard[delivery.route] = True
        return delivery

    def rebind_name(self, url: str, bound: bool) -> None:
        """Note that an inproc name changed. Called by the thread that bound or closed it."""
        self._signals.call(lambda: self._rebind(url, bound))

    def renew(self, folder: KeyFolder) -> None:
        """Note that the keys of a folder have changed. Any thread may call."""
        if self._sockets.keys is not None and self._sockets.keys.folder is folder:
            self._signals.call(self._renew_connections)

    def wake(self) -> None:
        """Make a `receive` that waits now, or the next one, return. Any thread may call it."""
        self._signals.wake()

    def close(self, linger_s: float = 0.5) -> None:
        """Close all sockets; sent messages get up to `linger_s` seconds to leave. A second call does nothing.

        Within that time it waits for first connections that have waiting messages, for buffers that were passed with a
        `done`, and until the address is free again. libzmq sends the rest meanwhile and afterwards.
        """
        if self.closed:
            return
        deadline = time.monotonic() + linger_s
        while (left_s := deadline - time.monotonic()) > 0 and any(each.expected for each in self._by_url.values()):
            self._signals.attend(left_s)
        self.closed = True
        self._direct.close()  # before the address is free, so no peer takes this process for its successor
        self._events.clear()
        self._ready.clear()
        for dealer in self._by_url.values():
            if dealer.inproc:
                self._names.forget(dealer.url, self)
            dealer.fall()
            self._close_socket(dealer, linger_s)
        self._by_url.clear()
        self._dealers.clear()
        if self._listener is not None:
            self._listener.close(linger_s)
        if self._upkeep is not None:
            self._upkeep.close()
        self._loans.close(linger_s)
        self._signals.close()

    def _check_open(self) -> None:
        if self.closed:
            raise Unavailable(f"the endpoint {self.address or 'without address'} is closed; make a new one")
