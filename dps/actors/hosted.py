"""An actor as its node knows it, as a protocol, so that a node need not import actors."""

from __future__ import annotations

from typing import Any, Protocol

from dps.actors.ref import Sender
from dps.errors import DpsError
from dps.transport.message import Message


class Hosted(Protocol):
    """What a node calls; `dps.actors.actor.Actor` is one, and says what each member does."""

    node: Any
    name: str

    def started(self) -> None: ...
    def stopping(self) -> None: ...
    def too_late(self) -> DpsError: ...
    def lost(self, address: str, silent_s: float) -> None: ...
    def back(self, address: str) -> None: ...
    def refused(self, address: str, error: DpsError) -> None: ...
    def handle(self, message: Message, sender: Sender) -> None: ...
