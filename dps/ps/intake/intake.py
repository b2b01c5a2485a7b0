"""A dense push in pieces while it arrives: `arriving`, then `complete`, `refused` or `lost`."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dps.errors import ProtocolError
from dps.messages.sessions import STEP_PS, Push
from dps.ps.intake.borrowed import writable
from dps.ps.store.draft import Draft
from dps.ps.store.gradients import Gradient, GradientPieces, not_finite
from dps.ps.store.store import Store
from dps.transport.wire import Array
from dps.variables.plan import Arena, ShardLayout

if TYPE_CHECKING:
    from dps.ps.intake.ledger import Ledger


class Ranges:
    """Ranges of a run in rising order, which do not overlap."""

    __slots__ = ("_got", "nbytes")

    def __init__(self) -> None:
        self._got: list[tuple[int, int]] = []
        """The first byte of a range, and its length."""
        self.nbytes = 0
        """The total number of bytes."""

    def add_range(self, offset: int, nbytes: int) -> int:
        """Note a range. Returns its place among the others, or -1 if it was noted before. Raises ProtocolError for a
        range that overlaps others in another way."""
        place = self.count_before(offset)
        after = self._got[place] if place < len(self._got) else None
        if after == (offset, nbytes) or nbytes == 0:
            return -1
        before = sum(self._got[place - 1]) if place else 0
        if before > offset or (after is not None and after[0] < offset + nbytes):
            raise ProtocolError(f"bytes {offset} to {offset + nbytes} of the push came before, cut otherwise")
        self._got.insert(place, (offset, nbytes))
        self.nbytes += nbytes
        return place

    def count_before(self, offset: int) -> int:
        """The number of ranges that begin before a byte."""
        return bisect_left(self._got, (offset, 0))


class IntakeState(Enum):
    """The state of an intake. Only an arriving one takes messages."""

    ARRIVING = "arriving"
    COMPLETE = "complete"
    """All of the gradient has arrived, and every element was checked."""
    REFUSED = "refused"
    """All of it has arrived, and some of it is not finite."""
    LOST = "lost"
    """Pieces that were applied and freed are needed again, because their draft was dropped; or the sender is lost."""


class Intake:
    """Takes the pieces of one push, in any order, doubled or not. Each piece is checked while it is in the cache. The
    subclasses define what is done with it."""

    def __init__(self, push: PushOf, layout: ShardLayout, check: bool) -> None:
        """`check`: whether to look for NaN and infinity."""
        self.push, self.state, self.problem = push, IntakeState.ARRIVING, ""
        self.ranges = Ranges()
        self._layout, self._check = layout, check

    def take_pieces(self, message: Push) -> IntakeState:
        """Take the pieces of one message. Raises ProtocolError for a message that does not belong to this push; earlier
        pieces stay."""
        if len(message.offsets) != len(message.arrays):
            raise ProtocolError(f"{len(message.offsets)} offsets for {len(message.arrays)} arrays")
        for offset, array in zip(message.offsets, message.arrays, strict=True):
            number, start = self._layout.check_range(offset, array.nbytes, trained_only=True)
            place, arena = self.ranges.add_range(offset, array.nbytes), self._layout.arenas[number]
            if place < 0:
                continue
            values = self._keep_piece(place, offset, array.reshape(-1).view(np.uint8), arena)
            if self._check and not self.problem:
                self.problem = not_finite(arena, values, start)
            self._use_elements(number, start, values)
            if self.state is IntakeState.LOST:
                return self.state
        if self.ranges.nbytes == self._layout.gradient_nbytes:
            self.state = IntakeState.REFUSED if self.problem else IntakeState.COMPLETE
        return self.state

    def staged(self) -> Staged:
        """The push, once it is complete or refused."""
        return Staged(self.push, None if self.problem else self._gradient(), self.problem, in_pieces=True)

    def drop(self) -> None:
        """The sender is lost, or sends the push in another form."""
        self.state = IntakeState.LOST

    def _keep_piece(self, place: int, offset: int, data: Array, arena: Arena) -> Array:
        """Keep a piece that is new. Returns its elements."""
        raise NotImplementedError

    def _use_elements(self, number: int, start: int, values: Array) -> None:
        """Use the elements of arena `number` from `start` on, which were checked."""

    def _gradient(self) -> Gradient | None:
        """The gradient, of all pieces that were kept."""
        raise NotImplementedError


class Gathering(Intake):
    """Copies pieces into one run, for a pass that sums gradients or compares them with values."""

    def __init__(self, push: PushOf, layout: ShardLayout, check: bool) -> None:
        super().__init__(push, layout, check)
        self._run = np.empty(layout.nbytes, np.uint8)

    def _keep_piece(self, place: int, offset: int, data: Array, arena: Arena) -> Array:
        kept = self._run[offset : offset + data.nbytes]
        kept[:] = data
        return kept.view(arena.dtype)

    def _gradient(self) -> Gradient:
        return Gradient(self._layout.flats(self._run), {})


class Keeping(Intake):
    """Keeps pieces as they came, and frees each one while it is applied."""

    def __init__(self, push: PushOf, layout: ShardLayout, check: bool) -> None:
        super().__init__(push, layout, check)
        self._pieces: list[Array] = []
        """The pieces, in the order of their ranges."""

    def _keep_piece(self, place: int, offset: int, data: Array, arena: Arena) -> Array:
        values = elements(data, arena)
        self._pieces.insert(place, values)
        return values

    def _gradient(self) -> Gradient | None:
        places = [
            (self.ranges.count_before(a.offset), self.ranges.count_before(a.offset + a.nbytes))
            for a in self._layout.arenas
        ]
        return Gradient([GradientPieces(self._pieces[first:last]) for first, last in places], {})


class Applying(Keeping):
    """Writes pieces to a draft as they come, and keeps them for the case that the draft is dropped. If it does not keep
    them, the intake is lost in that case."""

    def __init__(self, push: PushOf, layout: ShardLayout, check: bool, draft: Draft, lets_go: bool) -> None:
        """`draft`: a reversible draft that was opened for this push."""
        super().__init__(push, layout, check)
        self._draft, self._lets_go = draft, lets_go

    def _keep_piece(self, place: int, offset: int, data: Array, arena: Arena) -> Array:
        return elements(data, arena) if self._lets_go else super()._keep_piece(place, offset, data, arena)

    def _use_elements(self, number: int, start: int, values: Array) -> None:
        if self._draft.is_valid and not self.problem:
            self._draft.write_range(number, start, values)
            return
        self._draft.drop()
        if self._lets_go and not self.problem:
            self.state = IntakeState.LOST

    def _gradient(self) -> Gradient | None:
        return None if self._lets_go else super()._gradient()

    def staged(self) -> Staged:
        staged = super().staged()
        staged.draft = self._draft
        return staged

    def drop(self) -> None:
        super().drop()
        self._draft.drop()


def elements(data: Array, arena: Arena) -> Array:
    """The bytes of an arena as its elements, in memory that the kernels take."""
    values: Array = data.view(arena.dtype)
    if not values.flags.aligned:
        return values.copy()
    return values if values.flags.writeable else writable(values)


class PushOf(NamedTuple):
    """The identity of a push, and the step and version that its gradient was computed from: see the message `Push`.
    Sums are taken in the order of task, incarnation and number."""

    task: int
    incarnation: int
    number: int
    step: int
    counter: int = -1
    clock: int = 0
    counted_by: int = STEP_PS


made_push = partial(tuple.__new__, PushOf)
"""Makes a `PushOf` of a tuple of all fields, in less time than its constructor."""


def push_of(message: Push, ledger: Ledger) -> PushOf:
    """The push that a message of this session belongs to."""
    about = message.number, message.step, message.counter, message.clock, message.counted_by
    return PushOf(ledger.task, ledger.incarnation, *about)


@dataclass(slots=True)
class Staged:
    """The result of an intake: a push that is complete. It has a gradient, a problem, or a draft to which all of the
    gradient was written."""

    push: PushOf
    gradient: Gradient | None = None
    problem: str = ""
    """Why the push will be refused; "" if it will not be."""
    draft: Draft | None = None
    in_pieces: bool = False
    """Whether it came in pieces over a socket, so that no part of it lies in the session's memory."""
    assigns: bool = False
    """Whether it has values to set, and no gradient."""

    def sound(self) -> Gradient:
        """The gradient of a push without a problem that is not written to a draft."""
        assert self.gradient is not None, f"{self.push} has a gradient"
        return self.gradient

    def check_finite(self, store: Store) -> None:
        """Look for NaN and infinity if that was not done yet. A bad gradient sets `problem`."""
        if self.gradient is not None and not self.gradient.checked:
            self.problem = store.problem(self.gradient)
            self.gradient = replace(self.gradient, checked=True)

    def copy_borrowed(self) -> None:
        """Copy the arrays that lie in the session's memory, because the session may continue before the push is
        applied."""
        if self.gradient is not None:
            self.gradient = self.gradient.own()

    def drop(self) -> None:
        """The push is dropped, or its result is recorded."""
        if self.draft is not None:
            self.draft.drop()
