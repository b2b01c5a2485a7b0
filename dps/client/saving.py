"""A session's saves: one whose wait has ended goes on at the chief, and the next call waits for the same one."""

from __future__ import annotations

from typing import Any

from dps.actors.answers import Failed, Waiting
from dps.actors.requests import Request
from dps.client.connection import Connection
from dps.client.pushing import Pushes
from dps.messages.runs import Save, Saved
from dps.transport.message import Message


class _RequestedSave:
    """A save that the chief was asked for."""

    def __init__(self, connection: Connection, values: Any, position: bytes) -> None:
        """`values`: what tells apart the values that are to be saved, as far as this session has changed them."""
        self.values, self.reason = values, ""
        self.answer: Message | None = None
        message = Save(connection.number, position)
        self.request: Request = connection.caller.start(connection.chief, message, self._feed)

    def _feed(self, answer: Message) -> bool:
        if isinstance(answer, Waiting):
            self.reason = answer.reason
            return False
        self.answer = answer
        return True


class Saves:
    """The saves of one session."""

    def __init__(self, connection: Connection, pushes: Pushes) -> None:
        self._connection, self._pushes = connection, pushes
        self._last: _RequestedSave | None = None
        """The save of the last call, until that was told its outcome."""

    def save(self, deadline: float, position: bytes) -> str:
        """As Session.save, in this run epoch: Aborted when that is over."""
        connection, began = self._connection, self._connection.caller.now()
        asked = self._asked(position)
        connection.wait_open([asked.request], deadline, lambda: self._late(asked, deadline - began))
        self._last = None
        if isinstance(asked.answer, Failed):
            raise asked.answer.exception()
        assert isinstance(asked.answer, Saved)
        return asked.answer.name

    def _asked(self, position: bytes) -> _RequestedSave:
        """The save of the call before if nobody was told how it ended, it has not failed, and this session has changed
        nothing since; else a new one."""
        connection, last = self._connection, self._last
        connection.caller.poll()  # the answer to the last one may be here
        values = connection.membership.epoch, connection.caller.incarnation, dict(self._pushes.numbers), position
        if last is not None and last.values == values and not isinstance(last.answer, Failed):
            return last
        if last is not None:
            connection.caller.drop(last.request)
        self._last = made = _RequestedSave(connection, values, position)
        return made

    def _late(self, asked: _RequestedSave, waited_s: float) -> str:
        silent, text = self._connection.silent(), f"save: the checkpoint was not finished within {waited_s:.1f} s"
        if asked.reason or silent:
            return f"{text}: {asked.reason or silent}"
        return (
            f"{text}; the chief goes on with it, and its log says when it is saved. To wait for the same checkpoint, "
            "call save() again before the next push, with a larger timeout; to see whether it is there, look at "
            'session.stats()["chief"]["saved"]'
        )
