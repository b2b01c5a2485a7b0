"""The three answers that every actor knows."""

from __future__ import annotations

from dps.errors import from_wire, message_of, wire_name
from dps.transport.message import ANSWER, Message


class Done(Message, kind=1, roles=ANSWER):
    """The request was carried out; the answer has no content."""


class Failed(Message, kind=2, roles=ANSWER):
    """The request was refused, or its handler raised an error: its class and text, the task, the traceback."""

    error: str
    text: str
    task: str
    traceback: str

    def exception(self) -> Exception:
        """The exception that this side raises for it."""
        return from_wire(self.error, self.text, self.task, self.traceback)

    @staticmethod
    def of(error: BaseException, task: str, traceback: str = "") -> Failed:
        """The answer that carries an exception."""
        return Failed(wire_name(error), message_of(error), task, traceback)


class Waiting(Message, kind=3, roles=ANSWER):
    """The request was received and waits; `reason` names whom it waits for. Never the last answer."""

    reason: str


def is_last(answer: Message) -> bool:
    """Whether an answer ends a request: the feed of those of whose answer nothing is wanted."""
    return not isinstance(answer, Waiting)
