"""Names of actors and of those who write to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dps.transport.endpoint import Route


@dataclass(frozen=True, slots=True)
class Ref:
    """An actor somewhere: the address of its node and its name there."""

    address: str
    actor: str

    def __str__(self) -> str:
        return f"{self.actor} at {self.address}"


class Sender(NamedTuple):
    """Who sent the message in hand, and how to answer: `request` is 0 where no answer is wanted."""

    route: Route
    request: int
    name: str
    incarnation: int
