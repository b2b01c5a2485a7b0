"""The queue of calls at a worker, as a state machine: the newest call of each client, and the order in which they run.

A client has one open call at a time: a call with a higher number replaces it. So at most one call for each client
waits, and one result for each client is kept until its next call.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any

from dps.calls.messages import Call, CallMissing
from dps.transport.message import Message


class State(Enum):
    """The state of a call."""

    QUEUED = "queued"
    RUNNING = "running"
    OVER = "over"
    """The call has its outcome."""


class Client:
    """A client and its newest call."""

    def __init__(self, call: Call, address: str, asker: Any) -> None:
        self.call, self.address, self.asker = call, address, asker
        self.state = State.QUEUED
        self.outcome: Message | None = None


class Calls:
    """One call runs at a time; the others wait in the order in which they came."""

    def __init__(self) -> None:
        self.clients: dict[int, Client] = {}
        self.running: Call | None = None
        self._queue: deque[Call] = deque()

    def call(self, call: Call, address: str, asker: Any) -> Message | None:
        """A call came, perhaps again, from a client whose node is at `address`. Returns its outcome if it has one."""
        client = self.clients.get(call.client)
        if client is None or call.number > client.call.number:
            if client is not None:
                self._unqueue(client)
            self.clients[call.client] = Client(call, address, asker)
            self._queue.append(call)
            return None
        return self._answer(client, call.number, asker)

    def ask(self, client: int, number: int, asker: Any) -> Message | None:
        """A client asks for the outcome of a call. Returns it, or that the call is not known."""
        known = self.clients.get(client)
        if known is None or number > known.call.number:
            return CallMissing(number)
        return self._answer(known, number, asker)

    def _answer(self, client: Client, number: int, asker: Any) -> Message | None:
        if number < client.call.number:
            return None  # a late copy: the client has gone on
        client.asker = asker
        return client.outcome

    def waits(self, client: int, number: int) -> bool:
        """Whether the client waits for the outcome of this call."""
        known = self.clients.get(client)
        return known is not None and known.call.number == number and known.state is not State.OVER

    def take(self) -> Call | None:
        """The call to run next; None while one runs, or none waits."""
        if self.running is not None or not self._queue:
            return None
        self.running = call = self._queue.popleft()
        self.clients[call.client].state = State.RUNNING
        return call

    def ended(self, outcome: Message) -> Client | None:
        """The running call has its outcome. Returns the client that waits for it; None if the client has begun another
        call."""
        call, self.running = self.running, None
        assert call is not None, "no call runs"
        client = self.clients.get(call.client)
        if client is None or client.call is not call:
            return None
        client.state, client.outcome = State.OVER, outcome
        return client

    def leave(self, client: int) -> bool:
        """A client ends; returns whether it was known."""
        known = self.clients.pop(client, None)
        if known is not None:
            self._unqueue(known)
        return known is not None

    def at(self, address: str) -> list[int]:
        """The clients of a node."""
        return [client for client, known in self.clients.items() if known.address == address]

    def _unqueue(self, client: Client) -> None:
        if client.state is State.QUEUED:
            self._queue.remove(client.call)
