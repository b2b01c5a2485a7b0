"""Ends the run when an operator asks for it. Lives on the chief's node."""

from __future__ import annotations

from collections.abc import Callable

from dps.actors.actor import Actor
from dps.actors.ref import Sender
from dps.run_protocol import EndRun


class Operators(Actor):
    """Answers at once; the end takes longer."""

    def __init__(self, drain: Callable[[str], None], stop: Callable[[], None]) -> None:
        """`drain` ends the run in order, `stop` without saving."""
        self._drain, self._stop = drain, stop

    def on_EndRun(self, message: EndRun, sender: Sender) -> None:
        if message.now:
            self._stop()
        else:
            self._drain(message.reason)
        self.node.answer(sender)
