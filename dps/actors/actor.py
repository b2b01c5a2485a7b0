"""Base class of actors. An actor's state changes only while it handles a message, a timer or a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dps.actors.ref import Sender
from dps.errors import DpsError, ProtocolError, Unavailable
from dps.transport.message import Form, Message

if TYPE_CHECKING:
    from dps.actors.node import Node
    from dps.actors.shortcuts import Integers


class Actor:
    """Handles messages one at a time on its node's thread, with a method `on_<MessageClass>` for each message class.

    A handler gets the message and its sender and answers with `self.node.answer(sender, ...)`, now or later.
    It must be idempotent: senders send again while no answer comes. An exception answers the sender.
    """

    node: Node
    name: str
    _handlers: Mapping[type[Message], Callable[[Any, Sender], None]] = MappingProxyType({})
    """The handlers found so far, by message class."""

    def started(self) -> None:
        """Called when the node has begun to run, before it handles any message."""

    def stopping(self) -> None:
        """Called before the node ends; answer open requests here."""

    def too_late(self) -> DpsError:
        """The error that answers messages which arrived while the node ended."""
        return Unavailable(f"{self.node.name} has stopped")

    def lost(self, address: str, silent_s: float) -> None:
        """Called when a watched node has been away for longer than its grace period."""

    def back(self, address: str) -> None:
        """Called when a watched node is connected (again)."""

    def refused(self, address: str, error: DpsError) -> None:
        """Called when a connection to an address failed because of the keys; it is tried again."""

    def handle(self, message: Message, sender: Sender) -> None:
        """Dispatch to `on_<MessageClass>`."""
        kind = message.__class__
        handler = self._handlers.get(kind)
        if handler is None:
            handler = getattr(self, f"on_{kind.__name__}", None)
            if handler is None:
                raise ProtocolError(f"{self.name} got {kind.__name__}, which it does not handle; is its address right?")
            self._handlers = {**self._handlers, kind: handler}
        handler(message, sender)

    def plain_handler(self, form: Form) -> Callable[[Sender, Integers], None]:
        """What handles the messages of a form by their integers: `take_<MessageClass>` if there is one."""
        own: Callable[[Sender, Integers], None] | None = getattr(self, f"take_{form.cls.__name__}", None)
        return own or (lambda sender, integers: self.handle(form.made(*integers[1:]), sender))
