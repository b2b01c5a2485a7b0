"""The regular work of a bound endpoint beside its messages: it sends again, and checks its connections."""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import zmq

from dps.transport.connections import LOOK_S
from dps.transport.endpoint import Buffer
from dps.transport.listener import Listener
from dps.transport.outgoing import Loans, finish
from dps.transport.poller import Poller
from dps.transport.signals import Signals

if TYPE_CHECKING:
    from dps.transport.backlog import Backlog


REST_S = 0.02
"""How long the comings and goings of connections are left alone after some were seen."""


class Upkeep:
    """The regular work of one endpoint."""

    def __init__(self, listener: Listener, loans: Loans, poller: Poller, signals: Signals) -> None:
        self.connections = listener.connections
        self.backlog: Backlog | None = None
        """Made when it is needed."""
        self.at = self._look_at = math.inf if listener.inproc else 0.0
        """When `run` is due, on the clock of time.monotonic."""
        self._loans, self._listener, self._poller, self._signals = loans, listener, poller, signals
        self._watched = False

    def listen(self) -> None:
        """Begin to read the listener and its monitor."""
        self._poller.register(self._listener.socket)
        self._watch()

    def pause(self) -> None:
        """Read neither, because the listener is about to be closed."""
        self._poller.unregister(self._listener.socket)
        if self._watched:
            self._signals.unwatch(self._listener.monitor)
        self._watched = False

    def _watch(self) -> None:
        self._watched = True
        self._signals.watch(self._listener.monitor, self._came)

    def _came(self) -> None:
        """Connections came or went. Further ones do not wake this thread for REST_S: many may come in vain."""
        if self.connections.attend() and self._watched:
            self._signals.unwatch(self._listener.monitor)
            self._watched = False
            self.at = min(self.at, time.monotonic() + REST_S)

    def run(self, now: float) -> None:
        """Do what is due."""
        if not self._watched:
            self._watch()
        socket, backlog = self._listener.socket, self.backlog
        self._poller.used(socket)
        if backlog is not None:
            backlog.retry(socket)
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self.connections.look(bool(int(socket.get(zmq.EVENTS)) & zmq.POLLIN), self._poller.rounds)
        self.at = self._look_at if self._watched else min(self._look_at, now + REST_S)
        if backlog is not None and backlog.waiting:
            self.at = min(self.at, now + backlog.patience_s)

    def send(
        self, route: bytes, header: bytes, frames: Sequence[Buffer], large: list[bool], done: Callable[[], None] | None
    ) -> None:
        """Hand a message over for the peer at a route; if it has no room, keep it."""
        socket, backlog, failed = self._listener.socket, self.backlog, errno.EAGAIN
        self._poller.used(socket)
        if backlog is None or route not in backlog.waiting:
            failed = self._loans.send(socket, (route, header), frames, large, done)
        if failed == errno.EAGAIN:
            self._keep().put(route, header, frames, large, done)
        elif failed and done is not None:
            finish(done)

    def _keep(self) -> Backlog:
        """What keeps messages, which are tried again soon."""
        if self.backlog is None:
            from dps.transport.backlog import Backlog  # here: peers that do not read are few

            self.backlog = Backlog(self._loans)
        self.at = 0.0
        return self.backlog

    def close(self) -> None:
        if self.backlog is not None:
            self.backlog.close()
