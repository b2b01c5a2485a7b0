"""The messages between a task that serves a dataset and the workers that it feeds."""

from __future__ import annotations

from typing import Any

from dps.transport.message import ANSWER, TASKS, Message
from dps.transport.wire import Array


def feed_name(name: str) -> str:
    """The name of the actor that serves the dataset of a name."""
    return f"feed/{name}"


class JoinFeed(Message, kind=100, roles=TASKS):
    """A worker joins the feed, under a number that its process draws. Answered with FeedIs."""

    client: int
    name: str
    """The worker's task, for messages to people."""
    address: str
    """The address of its node. When that is lost, its unfinished batches go to others."""


class FeedIs(Message, kind=101, roles=ANSWER):
    """The task that serves, and the epoch that it is in, or that it begins when somebody wants it."""

    task: str
    epoch: int


class Want(Message, kind=102, roles=TASKS):
    """Asks for a batch of an epoch, under a number that rises in the epoch. Answered with Batch or EpochEnded, or with
    Waiting while there is none."""

    client: int
    epoch: int
    number: int
    floor: int
    """All batches under lower numbers are finished."""
    finished: list[int]
    """These numbers are finished, too."""


class Batch(Message, kind=103, roles=ANSWER):
    """A batch. It is given to no other worker while this one lives."""

    number: int
    form: bytes
    arrays: tuple[Array, ...] = ()


class EpochEnded(Message, kind=104, roles=ANSWER):
    """All batches of the epoch are finished."""

    epoch: int


class LeaveFeed(Message, kind=105, roles=TASKS):
    """The worker ends its pass. Its unfinished batches go to others. Answered with Done."""

    client: int
    epoch: int
    floor: int
    finished: list[int]


class AskPosition(Message, kind=106, roles=TASKS):
    """Answered with PositionIs."""


class PositionIs(Message, kind=107, roles=ANSWER):
    """The finished batches, for a restart that gives out the others."""

    task: str
    """The name of the task that serves."""
    position: dict[str, Any]


class FinishBatches(Message, kind=108, roles=TASKS):
    """The worker has finished batches, and asks for none. Answered with Done, once they are given to nobody else."""

    client: int
    epoch: int
    floor: int
    finished: list[int]
