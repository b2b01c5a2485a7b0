"""Values that the ps lend with answers which are on their way: a loop that reads ahead computes meanwhile.

The answers are those to small pulls, or to the small pushes of such a loop: a ps sends with a push's result what the
pull behind that push would bring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from dps.actors.caller import Answer, Heard
from dps.client.assembly import Assembly
from dps.client.connection import Connection
from dps.client.lanes import Lent, LentVersion, PsPeer
from dps.client.pulling import Pulls
from dps.client.push_operations import PostedPush, integers_of_applied
from dps.client.pushing import Pushes
from dps.errors import Unavailable
from dps.messages.sessions import Pull, SharedValues

Versions = list[Lent]
"""The versions of all shards, in the order of the plan; none if not all are lent."""
PULL, VALUES = Pull.form_of, SharedValues.form_of
FRESH_S = 0.005
"""How long after a push the values that come with it serve a loop that reads ahead, s."""


class Lends(NamedTuple):
    """Answers that lend a version."""

    at: int
    """Where the integers of one have counter, step and names of the version."""
    integers: Callable[[Answer | None], Sequence[Any]]
    """Makes such integers of another answer, as a list; [] where it lends nothing."""


def _values(answer: Answer | None) -> Sequence[Any]:
    """As `integers_of_applied`, for the message of values."""
    if not isinstance(answer, SharedValues):
        return []
    return [0, answer.epoch, answer.counter, answer.step, *answer.memories]


TO_A_PULL, TO_A_PUSH = Lends(2, _values), Lends(6, integers_of_applied)


def lent_with(asked: Mapping[int, PsPeer], heard: Heard, lends: Lends = TO_A_PULL) -> Versions:
    """The versions that the ps have lent with these answers; none if one has lent nothing."""
    lent: Versions = []
    at = lends.at
    for number, peer in asked.items():
        told: Any = heard.get(number)
        if told.__class__ is not tuple:
            told = lends.integers(told)
        arrays = peer.lane.find(peer.layout, told[at + 2 :]) if told and told[-1] else None
        if arrays is None:
            release(lent)
            return []
        lent.append((peer, number, told[at], told[at + 1], arrays))
    return lent


def release(lent: Versions) -> None:
    """Nobody reads these versions any more."""
    for peer, request, *_ in lent:
        peer.lane.release(request, peer.layout.nbytes)


class PostedValues:
    """Values that all ps may lend with the answers to requests that were posted, one to each, and that are not kept.

    Whoever receives the last answer has the values copied, so that nothing that a ps lends is kept until they are asked
    for; values that are read in place are kept."""

    values: Any = None
    """The nested arrays of the copy, once all ps have lent their values."""
    asked: dict[int, PsPeer] = {}  # noqa: RUF012
    """The ps by request number, until the values are there and copied, or are released."""

    def __init__(
        self, connection: Connection, pulls: Pulls, assembly: Assembly, asked: dict[int, PsPeer], in_place: bool,
        push: PostedPush | None = None,
    ) -> None:  # fmt: skip
        """`push`: the push of these requests, which are about to be sent; None: they are pulls, and nothing was sent
        since."""
        self._connection, self._pulls, self._assembly, self.asked = connection, pulls, assembly, asked
        self.in_place, self._push, self._peers = in_place, push, connection.peers
        self.lent: Versions = []
        """The versions of the values, once all ps have lent them."""
        self.heard: Heard = {} if push is None else push.heard
        """The answers, as of `Caller.listen`."""
        for number, peer in asked.items():
            peer.lane.reading.add(number)
        if push is None:
            connection.caller.listen(asked, VALUES, self.heard, self.take_in)

    @property
    def is_over(self) -> bool:
        """Whether the session has joined again since."""
        return self._connection.peers is not self._peers

    def take_in(self) -> None:
        """An answer has come. Once all have, keep what the ps lend, or have it copied and release it."""
        if len(self.heard) < len(self.asked) or not self.asked:
            return
        try:
            self.lent = lent_with(self.asked, self.heard, TO_A_PULL if self._push is None else TO_A_PUSH)
            if self.lent and not self.in_place:
                self.values = self._pulls.copied(self.lent, *self._pulls.prepared(self._assembly))
        finally:
            if not (self.lent and self.in_place):
                self.release()

    def hand_over(self, keep: Callable[[Sequence[LentVersion], bool], None]) -> Any:
        """The nested arrays of values that are there, in place, until those release them whom `keep` tells."""
        keep(list(map(LentVersion, self.lent)), self.is_silent)
        self.asked = {}
        return self._assembly.views([part for *_, (_, parts) in self.lent for part in parts])

    @property
    def is_silent(self) -> bool:
        """Whether `release` sends no message, so that any thread may call it."""
        return not any(peer.lane.tells_at_once for peer in self.asked.values())

    def release(self) -> None:
        """Forget it; values that are lent, or that a late answer lends, are released. A further call does nothing."""
        if self.asked:
            if self._push is None:
                self._connection.caller.ignore(self.asked)
            for number, peer in self.asked.items():
                with suppress(Unavailable):  # the session is closed, which ends all its holds
                    peer.lane.release(number, peer.layout.nbytes if number in peer.lane.reading else 0)
            self.asked = {}

    def __del__(self) -> None:
        try:
            self._end_reading()
        except BaseException:  # Ctrl-C: a number that stays would keep versions of the ps for ever
            self._end_reading()
            raise

    def _end_reading(self) -> None:
        """After Ctrl-C, before anybody had it, or amid `release`: no message is sent."""
        for number, peer in self.asked.items():
            peer.lane.reading.discard(number)


class Ahead:
    """What the loops of a session that read all values ahead, a turn before they compute with them, have in common."""

    def __init__(self, pushes: Pushes) -> None:
        self._pushes = pushes
        self.loops: dict[int, bool] = {}
        """Each loop that has begun, by a number, and whether it reads in place."""
        self._coming: PostedValues | None = None
        """The values that come with the last push, if that was posted while there was a loop."""
        self._numbers: dict[int, int] = {}
        self._at = 0.0

    def end_loop(self, loop: int) -> None:
        """A loop is over. A second call does nothing."""
        self.loops.pop(loop, None)
        if not self.loops:
            self.forget()

    def forget(self) -> None:
        """Release the values that come with the last push, which nobody is to read."""
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.release()

    def expect(self, coming: PostedValues) -> None:
        """These values come with a push that is about to be sent."""
        self.forget()
        self._coming = coming
        self._numbers, self._at = self._pushes.numbers.copy(), self._pushes.times.at

    def take(self, in_place: bool) -> PostedValues | None:
        """The values that come with the last push of this session, if that has just left: as fresh as what a pull would
        bring. They are the caller's."""
        coming, self._coming = self._coming, None
        if coming is None:
            return None
        pushes = self._pushes
        is_fresh = pushes.numbers == self._numbers and pushes.times.at - self._at <= FRESH_S
        if is_fresh and coming.in_place is in_place and not coming.is_over:
            return coming
        coming.release()
        return None
