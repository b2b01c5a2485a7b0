"""The messages between a task that serves a dataset and the workers that it feeds."""

from __future__ import annotations

from typing import Any

from dps.transport.message import Message
from dps.transport.roles import ANSWER, TASKS
from dps.transport.wire import Array


def feed_name(name: str) -> str:
    """The name of the actor that serves the dataset of a name."""
    return f"feed/{name}"


class JoinFeed(Message, kind=100, roles=TASKS):
    """A worker wants batches, under a number that its process draws. Answered with FeedIs."""

    client: int
    name: str
    """The worker's task, for messages to people."""
    address: str
    """Its node: what it has not finished goes to others when that node is lost."""


class FeedIs(Message, kind=101, roles=ANSWER):
    """The task that serves, and the epoch that it is in, or that it begins when somebody wants it."""

    task: str
    epoch: int


class Want(Message, kind=102, roles=TASKS):
    """A batch of an epoch is wanted, under a number that rises in the epoch. Answered with Batch or EpochEnded, with
    Waiting while there is none."""

    client: int
    epoch: int
    number: int
    floor: int
    """All batches under lower numbers are finished."""
    finished: list[int]
    """So are these."""


class Batch(Message, kind=103, roles=ANSWER):
    """A batch. It is given to nobody else while its worker is there."""

    number: int
    form: bytes
    arrays: tuple[Array, ...] = ()


class EpochEnded(Message, kind=104, roles=ANSWER):
    """All batches of the epoch are finished, by whomever."""

    epoch: int


class LeaveFeed(Message, kind=105, roles=TASKS):
    """The worker ends its pass; all that it has not finished goes to others. Answered with Done."""

    client: int
    epoch: int
    floor: int
    finished: list[int]


class AskPosition(Message, kind=106, roles=TASKS):
    """Answered with PositionIs."""


class PositionIs(Message, kind=107, roles=ANSWER):
    """Which batches are finished, for a restart that gives the others."""

    task: str
    """Who serves."""
    position: dict[str, Any]


class Finish(Message, kind=108, roles=TASKS):
    """The worker has finished batches, and asks for none. Answered with Done, once they go to nobody else."""

    client: int
    epoch: int
    floor: int
    finished: list[int]
