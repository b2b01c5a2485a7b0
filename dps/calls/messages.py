"""The messages by which clients have a worker run functions."""

from __future__ import annotations

from typing import Any

from dps.errors import RemoteError, remote_error
from dps.transport.message import ANSWER, WORKERS, Message
from dps.transport.wire import Array

CALLS = "calls"
"""The name of the actor on the node of a worker that serves."""
NOT_OF_A_READER = "workers run functions for who has a worker's key; got a reader's (dps keys export DIR --role worker)"


class Call(Message, kind=120, roles=WORKERS):
    """Run a function. A client's numbers rise, and a higher one ends its interest in lower ones. Answered with Returned
    or Raised, and with Waiting until then."""

    client: int
    name: str
    """The client's task, for messages to people."""
    address: str
    """The address of its node. When that is lost, its call is forgotten."""
    number: int
    function: str
    """The path of the function, "module:function" or "/folder/file.py:function"."""
    form: bytes
    """The arguments; see `dps.calls.functions`."""
    values: list[Any]
    """[form, number of arrays] of each earlier call's result among the arguments. Their arrays are the last ones."""
    arrays: tuple[Array, ...] = ()


class AskCall(Message, kind=121, roles=WORKERS):
    """Asks for the outcome of a call that was sent before. Answered as Call, or with CallMissing."""

    client: int
    number: int


class CallMissing(Message, kind=122, roles=ANSWER):
    """The worker does not know the call: it never came, or the worker was started again. It must be sent again."""

    number: int


class Returned(Message, kind=123, roles=ANSWER):
    """The function's value."""

    number: int
    form: bytes
    arrays: tuple[Array, ...] = ()


class Raised(Message, kind=124, roles=ANSWER):
    """The function raised, or could not be run."""

    number: int
    error: str
    """The name of the error's class."""
    text: str
    task: str
    traceback: str
    """The traceback from the function's own frame on; "" if it was not run."""
    of_ps: bool
    """Whether it was raised because a ps did not answer."""

    def exception(self) -> RemoteError:
        """The error as this task raises it."""
        return remote_error(self.error, self.text, self.task, self.traceback)


class LeaveCalls(Message, kind=125, roles=WORKERS):
    """The client ends: the worker may drop the values that it keeps for it. Answered with Done."""

    client: int


class StopServing(Message, kind=128, roles=WORKERS):
    """The program that scheduled calls has ended: the worker ends after its call. Answered with Done."""


class AskServes(Message, kind=126, roles=WORKERS):
    """Answered with Serves."""


class Serves(Message, kind=127, roles=ANSWER):
    """The worker that serves, and the entries that it serves. `process` differs for each of its processes."""

    task: str
    process: int
    served: list[Any]
