"""A ps as a session knows it, without one: what is sent is noted, and answers are handed in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from dps.actors.ref import Ref
from dps.actors.requests import Request, Requests
from dps.client.lanes import Lane, PsPeer
from dps.errors import Unavailable
from dps.transport.message import Message
from dps.transport.tuning import ORDINARY
from dps.variables.plan import ShardLayout

PS = Ref("127.0.0.1:1", "ps")


class Wire:
    """Stands for a Caller: notes what is sent, and hands in answers."""

    incarnation = 1
    time = 0.0

    def __init__(self, piece_nbytes: int = 64) -> None:
        self.sent: list[Message] = []
        self.requests = Requests()
        self.aborted = 0
        self.runtime = SimpleNamespace(tuning=ORDINARY.where(piece_nbytes=piece_nbytes, shared_nbytes=64))

    def open(self, to: Ref, message: Message, request: Request, resend_s: float | None = None) -> None:
        self.sent.append(message)
        request.incarnation = self.incarnation
        self.requests.open_request(0.0, to, request, 1e9, resend_s)

    def now(self) -> float:
        return self.time

    def send(self, request: Request, message: Message) -> None:
        self.sent.append(message)

    def answer(self, *messages: Message) -> None:
        for message in messages:
            self.requests.feed_answer(1, message, 0.0)

    def is_open(self, request: Request) -> bool:
        return self.requests.is_open(request)

    def drop(self, request: Request) -> None:
        self.requests.forget_request(request)

    def abort(self) -> None:
        self.aborted += 1


class Memory:
    """Stands for a lane: one arena of the ps's, under the name [1, 2]."""

    rate = float("inf")

    def __init__(self, values: Any = None, on: bool = True) -> None:
        self.values, self.there, self.on = values, values is not None, on
        self.reading: set[int] = set()
        self.released: list[int] = []
        self.versions: dict[Any, Any] = {}

    find, _attach_arrays = Lane.find, Lane._attach_arrays

    def attach(self, name: list[int]) -> Any:
        if not self.there or name != [1, 2]:
            raise Unavailable("gone")
        return self.values

    def reads(self, number: int) -> None:
        self.reading.add(number)

    def over(self, number: int) -> None:
        self.reading.discard(number)

    def release(self, number: int, nbytes: int) -> None:
        self.reading.discard(number)
        self.released.append(number)

    def give_up(self, error: Exception) -> None:
        self.on = False


def take(ps: int) -> np.ndarray[Any, Any]:
    """Memory for a run of values, of any shard here."""
    return np.zeros(1 << 16, np.uint8)


def peer(wire: Wire, layout: ShardLayout, lane: Memory | None = None, ps: int = 0) -> PsPeer:
    """The ps at the other end of a wire; without a `lane` it shares no memory."""
    return PsPeer(wire, ps, PS, layout, lane or Memory(on=False), wire.abort)  # type: ignore[arg-type]
