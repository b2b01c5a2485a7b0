"""The messages between those who use a queue and the actor that has it.

A user of a queue is a client of its process: a number that the process draws once. The actor knows it by the process's
ticket, too, so nobody else can be that client. Its puts have dense numbers, its gets have others. A message
that comes again has the same number, and changes nothing.
"""

from __future__ import annotations

from dps.transport.message import ANSWER, TASKS, Message
from dps.transport.wire import Array

QUEUES = "queues"
"""The actor's name, on the chief's node."""
LONGEST_NAME = 200
"""The most characters of the name of a queue, or of a dataset that is served."""


class OpenQueue(Message, kind=80, roles=TASKS):
    """A client wants to use a queue, which is made if it does not exist. Answered with QueueOpened."""

    queue: str
    capacity: int
    """The number of items that it holds; 0: as the queue has it."""
    client: int
    name: str
    """The client's task, for messages to people."""
    address: str
    """The address of its node. When that is lost, items that the client has not acknowledged go to others."""


class QueueOpened(Message, kind=81, roles=ANSWER):
    """The queue knows the client."""

    capacity: int


class Put(Message, kind=82, roles=TASKS):
    """Puts an item. Answered with Done once it is in the queue, and with Waiting while there is no room."""

    queue: str
    client: int
    number: int
    form: bytes
    """How the arrays are nested."""
    arrays: tuple[Array, ...] = ()


class AskPut(Message, kind=83, roles=TASKS):
    """Asks for the outcome of a put. Answered as Put, or with PutMissing."""

    queue: str
    client: int
    number: int


class PutMissing(Message, kind=84, roles=ANSWER):
    """The put has not come; send it again under its number."""

    number: int


class Get(Message, kind=85, roles=TASKS):
    """Asks for an item. Answered with Item, and with Waiting while there is none."""

    queue: str
    client: int
    number: int
    floor: int
    """All gets of the client below this number are over. Items that were given for them and not acknowledged go
    back."""


class Item(Message, kind=86, roles=ANSWER):
    """An item for a get. It is the client's once a Finish for it was answered with `yours`."""

    number: int
    form: bytes
    arrays: tuple[Array, ...] = ()


class FinishGet(Message, kind=87, roles=TASKS):
    """The client has received the item of this get. Answered with Finished."""

    queue: str
    client: int
    number: int


class Finished(Message, kind=88, roles=ANSWER):
    """Whether the item is the client's; if not, it went back and to another client."""

    yours: bool


class Withdraw(Message, kind=89, roles=TASKS):
    """The client no longer waits for a put and a get (0: none). Answered with Withdrawn."""

    queue: str
    client: int
    put: int
    get: int


class Withdrawn(Message, kind=90, roles=ANSWER):
    """Whether the put was accepted before; the get is over."""

    accepted: bool


class AskSize(Message, kind=91, roles=TASKS):
    """Answered with SizeIs."""

    queue: str
    client: int


class SizeIs(Message, kind=92, roles=ANSWER):
    """How many items can be got now."""

    items: int


class CloseQueue(Message, kind=93, roles=TASKS):
    """Nothing more may be put. Answered with Done."""

    queue: str
    client: int


class LeaveQueue(Message, kind=94, roles=TASKS):
    """The client no longer needs the queue. Answered with Done."""

    queue: str
    client: int
