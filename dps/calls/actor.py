"""The actor on a worker that serves: it gives calls to the worker's thread, and their outcomes to clients."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from dps.actors.actor import Actor
from dps.actors.answers import Waiting
from dps.actors.ref import Sender
from dps.calls.messages import AskCall, AskServes, Call, CallMissing, LeaveCalls, Serves, StopServing
from dps.transport.message import Message


class CallState(Enum):
    """The state of a call."""

    QUEUED = "queued"
    RUNNING = "running"
    OVER = "over"
    """The call has its outcome."""


class CallClient:
    """A client and its newest call."""

    def __init__(self, call: Call, address: str, asker: Any) -> None:
        self.call, self.address, self.asker = call, address, asker
        self.state = CallState.QUEUED
        self.outcome: Message | None = None


class CallQueue:
    """One call runs at a time; the others wait in the order in which they came."""

    def __init__(self) -> None:
        self.clients: dict[int, CallClient] = {}
        self.running: Call | None = None
        self._queue: deque[Call] = deque()

    def add_call(self, call: Call, address: str, asker: Any) -> Message | None:
        """A call came, perhaps again, from a client whose node is at `address`. Returns its outcome if it has one."""
        client = self.clients.get(call.client)
        if client is None or call.number > client.call.number:
            if client is not None:
                self._remove_queued(client)
            self.clients[call.client] = CallClient(call, address, asker)
            self._queue.append(call)
            return None
        return self._outcome_of(client, call.number, asker)

    def find_outcome(self, client: int, number: int, asker: Any) -> Message | None:
        """A client asks for the outcome of a call. Returns it, or that the call is not known."""
        known = self.clients.get(client)
        if known is None or number > known.call.number:
            return CallMissing(number)
        return self._outcome_of(known, number, asker)

    def _outcome_of(self, client: CallClient, number: int, asker: Any) -> Message | None:
        if number < client.call.number:
            return None  # a late copy: the client has gone on
        client.asker = asker
        return client.outcome

    def is_waiting(self, client: int, number: int) -> bool:
        """Whether the client waits for the outcome of this call."""
        known = self.clients.get(client)
        return known is not None and known.call.number == number and known.state is not CallState.OVER

    def take_next(self) -> Call | None:
        """The call to run next; None while one runs, or none waits."""
        if self.running is not None or not self._queue:
            return None
        self.running = call = self._queue.popleft()
        self.clients[call.client].state = CallState.RUNNING
        return call

    def record_outcome(self, outcome: Message) -> CallClient | None:
        """The running call has its outcome. Returns the client that waits for it; None if the client has begun another
        call."""
        call, self.running = self.running, None
        assert call is not None, "no call runs"
        client = self.clients.get(call.client)
        if client is None or client.call is not call:
            return None
        client.state, client.outcome = CallState.OVER, outcome
        return client

    def remove_client(self, client: int) -> bool:
        """A client ends; returns whether it was known."""
        known = self.clients.pop(client, None)
        if known is not None:
            self._remove_queued(known)
        return known is not None

    def clients_of(self, address: str) -> list[int]:
        """The clients of a node."""
        return [client for client, known in self.clients.items() if known.address == address]

    def _remove_queued(self, client: CallClient) -> None:
        if client.state is CallState.QUEUED:
            self._queue.remove(client.call)


GRACE_S = 30.0
"""How long a client's node may be disconnected before what is kept for it goes."""


class CallsActor(Actor):
    """Gives one call at a time to `begin`, and learns of its end from `record_outcome`."""

    def __init__(
        self, served: Sequence[str], begin: Callable[[Call], None], forget: Callable[[int], None],
        stop: Callable[[], None],
    ) -> None:  # fmt: skip
        """`begin` gets each call that is to run, `forget` each client that has ended, `stop` ends the worker; all on
        the node's thread."""
        self._served, self._begin, self._forget, self._stop = list(served), begin, forget, stop
        self.calls = CallQueue()
        self._began_at = 0.0

    def started(self) -> None:
        self.node.accepted.serves_strangers = True  # the chief tells nobody of clients, and their calls may be long

    def on_Call(self, message: Call, sender: Sender) -> None:
        address = self.node.dial_address(message.address)
        outcome = self.calls.add_call(message, address, sender)
        self.node.watch(address, GRACE_S)
        self._answer_outcome(message.client, message.number, sender, outcome)
        self._begin_next()

    def on_AskCall(self, message: AskCall, sender: Sender) -> None:
        outcome = self.calls.find_outcome(message.client, message.number, sender)
        self._answer_outcome(message.client, message.number, sender, outcome)

    def _answer_outcome(self, client: int, number: int, sender: Sender, outcome: Message | None) -> None:
        if outcome is not None:
            self.node.answer(sender, outcome)
        elif self.calls.is_waiting(client, number):
            self.node.answer(sender, Waiting(self._waiting_text(client)))

    def _waiting_text(self, client: int) -> str:
        running = self.calls.running
        if running is None:
            return f"{self.node.name} has the call"
        what = f"runs {running.function} since {self.node.now() - self._began_at:.0f} s"
        return f"{self.node.name} {what}" + ("" if running.client == client else f" for {running.name}")

    def _begin_next(self) -> None:
        call = self.calls.take_next()
        if call is not None:
            self._began_at = self.node.now()
            self._begin(call)

    def record_outcome(self, outcome: Message) -> None:
        """The call that runs has its outcome. Runs on the node's thread."""
        client = self.calls.record_outcome(outcome)
        if client is not None:
            self.node.answer(client.asker, outcome)
        self._begin_next()

    def on_LeaveCalls(self, message: LeaveCalls, sender: Sender) -> None:
        self._remove_client(message.client)
        self.node.answer(sender)

    def on_AskServes(self, message: AskServes, sender: Sender) -> None:
        self.node.answer(sender, Serves(self.node.name, self.node.incarnation, self._served))

    def on_StopServing(self, message: StopServing, sender: Sender) -> None:
        self._stop()
        self.node.answer(sender)

    def lost(self, address: str, silent_s: float) -> None:
        for client in self.calls.clients_of(address):
            self._remove_client(client)
        self.node.unwatch(address)

    def _remove_client(self, client: int) -> None:
        if self.calls.remove_client(client):
            self._forget(client)
