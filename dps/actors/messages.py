"""The three messages that every actor knows."""

from __future__ import annotations

from dps.errors import from_wire, wire_name
from dps.record import record
from dps.transport.wire import Message, kind


@kind(1)
@record
class Done(Message):
    """The request was carried out; there is nothing to tell."""


@kind(2)
@record
class Failed(Message):
    """The request was refused or its handler raised: class and text of the error, the task, its traceback."""

    error: str
    text: str
    task: str
    traceback: str

    def exception(self) -> Exception:
        """The error as this side raises it."""
        return from_wire(self.error, self.text, self.task, self.traceback)

    @staticmethod
    def of(error: BaseException, task: str, traceback: str = "") -> Failed:
        """The answer that carries an exception."""
        return Failed(wire_name(error), str(error), task, traceback)


@kind(3)
@record
class Waiting(Message):
    """The request is known and waits; `reason` names who is waited for. Never the last answer."""

    reason: str
