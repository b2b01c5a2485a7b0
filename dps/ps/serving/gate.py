"""The one place through which answers leave that tell of a shard's versions, or bring them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from dps.actors.ref import Sender
from dps.transport.message import Form, Message


class Gate(Protocol):
    """As `Node` has these methods. A version is committed when it is published, so the gate is the node itself. In the
    simulator tests have one that commits later."""

    def answer(
        self, sender: Sender, message: Message | Exception | None = None, done: Callable[[], None] | None = None
    ) -> None: ...

    def answer_now(self, sender: Sender, message: Message) -> None: ...

    def answer_plain(self, sender: Sender, form: Form, integers: Sequence[int]) -> None: ...
