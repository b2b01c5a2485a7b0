"""The messages of a group of workers: to the chief, which decides who is in it, and from member to member."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from dps.transport.message import ANSWER, CHIEF_ONLY, PS_ONLY, WORKERS, Message
from dps.transport.wire import Array

GROUPS = "groups"
"""The actor on the chief's node that decides who is in a group."""
MEMBER = "member"
"""The actor of a worker in a group, on a node of its own."""
SUMS = "sums"
"""The actor on a ps that sums for groups."""

LEFT = "has left"
"""The beginning of the reason for which a worker is gone that was not lost."""


class Phase(IntEnum):
    """The kind of a message about a piece."""

    UP = 0
    """The sender's part, or the sum of some members."""
    DOWN = 1
    """The result."""
    ASK = 2
    """Asks for a piece (again)."""
    PLAIN = 3
    """The sender of this cannot read the receiver's shared memory."""


class JoinGroup(Message, kind=140, roles=WORKERS):
    """A worker joins a group, or reports its progress. Answered with GroupIs.

    More than 12 attributes: what a member says of itself, and of its group for a chief that was restarted.
    """

    group: str
    task: int
    member: int
    """A number that differs for each time that a worker joins."""
    address: str
    """The node on which it is a member."""
    ticket: str
    """The digest of what that node presents to the other members."""
    replicas: int
    memory: list[Any]
    """The name of a piece of its shared memory; [] if it has none."""
    generation: int
    """The generation that it is in; 0: none yet."""
    frozen: int
    """The generation for which it has frozen: it completes nothing more in its own. 0: it is not frozen."""
    completed: int
    """The number of its last operation that is complete."""
    doing: str
    """The operation in which it waits; "" if it does not wait."""
    through: bool
    """Whether it sums through a ps, so that the group needs one."""
    known: list[Any]
    """The members of its generation, as in GroupIs, for a chief that was restarted."""


class GroupIs(Message, kind=141, roles=ANSWER):
    """The newest generation of a group."""

    generation: int
    """0 while not all workers have come."""
    forming: int
    """The generation that is formed next, for which members have to freeze; 0: none."""
    members: list[Any]
    """[task, member, address, ticket, key, replicas, memory] of each, by task. `key`: whose key its node has."""
    base: int
    """The operation after which the generation begins; all members have its result, or get it from the source."""
    source: int
    """The task of a member that has completed operation `base`."""
    gone: list[Any]
    """[name, why] of each worker that was in the group before."""
    ps: list[Any]
    """[task, address, ticket, key] of the ps through which it sums; [] if it needs none."""
    text: str
    """For whom the worker waits, as text for people."""


class LeaveGroup(Message, kind=142, roles=WORKERS):
    """A member wants to leave. Answered with Done, or with GroupIs if another member may need a result of it. `final`:
    it leaves in any case."""

    group: str
    task: int
    member: int
    completed: int
    final: bool


class Piece(Message, kind=143, roles=WORKERS | PS_ONLY):
    """A piece of an operation's data, or a request for one. Not answered; it may be sent again."""

    generation: int
    op: int
    index: int
    rank: int
    """The sender's rank. The rank of a ps that sums is after the last member's."""
    phase: int
    """A `Phase`."""
    what: str
    """The operation in words. All members must be in the same one."""
    memory: list[Any]
    """Where the data lie in the sender's shared memory: its name, and the first byte; [] if they are in `arrays`."""
    arrays: tuple[Array, ...] = ()


class Serve(Message, kind=144, roles=CHIEF_ONLY):
    """A group's newest generation, which sums through this ps. Answered with Done."""

    group: str
    generation: int
    members: list[Any]
    """The members, as in GroupIs; [] when the group is over."""


class Who(NamedTuple):
    """A worker, as it joins."""

    group: str
    task: int
    member: int
    replicas: int
    through: bool
    """Whether it sums through a ps."""


class Other(NamedTuple):
    """A member, as the chief describes it."""

    task: int
    member: int
    address: str
    ticket: str
    key: str
    replicas: int
    memory: list[Any]

    @property
    def name(self) -> str:
        return f"worker:{self.task}"


class Helper(NamedTuple):
    """The ps that sums for a group, as the chief describes it."""

    task: int
    address: str
    ticket: str
    key: str

    @property
    def name(self) -> str:
        return f"ps:{self.task}"


class Formed(NamedTuple):
    """A generation of the group."""

    generation: int
    members: tuple[Other, ...]
    rank: int
    """The rank of this member."""
    ps: Helper | None = None
    """Its rank is the number of the members."""
