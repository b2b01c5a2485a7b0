"""The members of a group: a worker as it joins, and a generation as the chief describes it."""

from __future__ import annotations

from typing import Any, NamedTuple


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
