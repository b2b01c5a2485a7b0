"""The actor on a worker that serves: it gives calls to the worker's thread, and their outcomes to clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dps.actors.actor import Actor
from dps.actors.messages import Waiting
from dps.actors.ref import Sender
from dps.calls.messages import AskCall, AskServes, Call, LeaveCalls, Serves, StopServing
from dps.calls.queue import Calls
from dps.transport.message import Message

GRACE_S = 30.0
"""How long a client's node may be disconnected before what is kept for it goes."""


class CallsActor(Actor):
    """Gives one call at a time to `begin`, and learns of its end from `ended`."""

    def __init__(
        self, served: Sequence[str], begin: Callable[[Call], None], forget: Callable[[int], None],
        stop: Callable[[], None],
    ) -> None:  # fmt: skip
        """`begin` gets each call that is to run, `forget` each client that has ended, `stop` ends the worker; all on
        the node's thread."""
        self._served, self._begin, self._forget, self._stop = list(served), begin, forget, stop
        self.calls = Calls()
        self._began_at = 0.0

    def started(self) -> None:
        self.node.accepted.serves_strangers = True  # the chief tells nobody of clients, and their calls may be long

    def on_Call(self, message: Call, sender: Sender) -> None:
        address = self.node.dials(message.address)
        outcome = self.calls.call(message, address, sender)
        self.node.watch(address, GRACE_S)
        self._answer(message.client, message.number, sender, outcome)
        self._next()

    def on_AskCall(self, message: AskCall, sender: Sender) -> None:
        outcome = self.calls.ask(message.client, message.number, sender)
        self._answer(message.client, message.number, sender, outcome)

    def _answer(self, client: int, number: int, sender: Sender, outcome: Message | None) -> None:
        if outcome is not None:
            self.node.answer(sender, outcome)
        elif self.calls.waits(client, number):
            self.node.answer(sender, Waiting(self._text(client)))

    def _text(self, client: int) -> str:
        running = self.calls.running
        if running is None:
            return f"{self.node.name} has the call"
        what = f"runs {running.function} since {self.node.now() - self._began_at:.0f} s"
        return f"{self.node.name} {what}" + ("" if running.client == client else f" for {running.name}")

    def _next(self) -> None:
        call = self.calls.take()
        if call is not None:
            self._began_at = self.node.now()
            self._begin(call)

    def ended(self, outcome: Message) -> None:
        """The call that runs has its outcome. Runs on the node's thread."""
        client = self.calls.ended(outcome)
        if client is not None:
            self.node.answer(client.asker, outcome)
        self._next()

    def on_LeaveCalls(self, message: LeaveCalls, sender: Sender) -> None:
        self._leave(message.client)
        self.node.answer(sender)

    def on_AskServes(self, message: AskServes, sender: Sender) -> None:
        self.node.answer(sender, Serves(self.node.name, self.node.incarnation, self._served))

    def on_StopServing(self, message: StopServing, sender: Sender) -> None:
        self._stop()
        self.node.answer(sender)

    def lost(self, address: str, silent_s: float) -> None:
        for client in self.calls.at(address):
            self._leave(client)
        self.node.unwatch(address)

    def _leave(self, client: int) -> None:
        if self.calls.leave(client):
            self._forget(client)
