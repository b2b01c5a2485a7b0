"""A dense push in pieces while it arrives: `arriving`, then `complete`, `refused` or `lost`."""

from __future__ import annotations

from enum import Enum

import numpy as np

from dps.errors import ProtocolError
from dps.protocol import Push
from dps.ps.intake.borrowed import writable
from dps.ps.intake.ranges import Ranges
from dps.ps.intake.staged import PushOf, Staged
from dps.ps.store.draft import Draft
from dps.ps.store.gradients import Gradient, Pieces, not_finite
from dps.transport.wire import Array
from dps.variables.plan import Arena, ShardLayout


class State(Enum):
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
        self.push, self.state, self.problem = push, State.ARRIVING, ""
        self.ranges = Ranges()
        self._layout, self._check = layout, check

    def take(self, message: Push) -> State:
        """Take the pieces of one message. Raises ProtocolError for a message that does not belong to this push; earlier
        pieces stay."""
        if len(message.offsets) != len(message.arrays):
            raise ProtocolError(f"{len(message.offsets)} offsets for {len(message.arrays)} arrays")
        for offset, array in zip(message.offsets, message.arrays, strict=True):
            number, start = self._layout.check_range(offset, array.nbytes, trained_only=True)
            place, arena = self.ranges.add(offset, array.nbytes), self._layout.arenas[number]
            if place < 0:
                continue
            values = self._keep(place, offset, array.reshape(-1).view(np.uint8), arena)
            if self._check and not self.problem:
                self.problem = not_finite(arena, values, start)
            self._use(number, start, values)
            if self.state is State.LOST:
                return self.state
        if self.ranges.nbytes == self._layout.gradient_nbytes:
            self.state = State.REFUSED if self.problem else State.COMPLETE
        return self.state

    def staged(self) -> Staged:
        """The push, once it is complete or refused."""
        return Staged(self.push, None if self.problem else self._gradient(), self.problem, in_pieces=True)

    def drop(self) -> None:
        """The sender is lost, or sends the push in another form."""
        self.state = State.LOST

    def _keep(self, place: int, offset: int, data: Array, arena: Arena) -> Array:
        """Keep a piece that is new. Returns its elements."""
        raise NotImplementedError

    def _use(self, number: int, start: int, values: Array) -> None:
        """Use the elements of arena `number` from `start` on, which were checked."""

    def _gradient(self) -> Gradient | None:
        """The gradient, of all pieces that were kept."""
        raise NotImplementedError


class Gathering(Intake):
    """Copies pieces into one run, for a pass that sums gradients or compares them with values."""

    def __init__(self, push: PushOf, layout: ShardLayout, check: bool) -> None:
        super().__init__(push, layout, check)
        self._run = np.empty(layout.nbytes, np.uint8)

    def _keep(self, place: int, offset: int, data: Array, arena: Arena) -> Array:
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

    def _keep(self, place: int, offset: int, data: Array, arena: Arena) -> Array:
        values = elements(data, arena)
        self._pieces.insert(place, values)
        return values

    def _gradient(self) -> Gradient | None:
        places = [(self.ranges.place(a.offset), self.ranges.place(a.offset + a.nbytes)) for a in self._layout.arenas]
        return Gradient([Pieces(self._pieces[first:last]) for first, last in places], {})


class Applying(Keeping):
    """Writes pieces to a draft as they come, and keeps them for the case that the draft is dropped. If it does not keep
    them, the intake is lost in that case."""

    def __init__(self, push: PushOf, layout: ShardLayout, check: bool, draft: Draft, lets_go: bool) -> None:
        """`draft`: a reversible draft that was opened for this push."""
        super().__init__(push, layout, check)
        self._draft, self._lets_go = draft, lets_go

    def _keep(self, place: int, offset: int, data: Array, arena: Arena) -> Array:
        return elements(data, arena) if self._lets_go else super()._keep(place, offset, data, arena)

    def _use(self, number: int, start: int, values: Array) -> None:
        if self._draft.holds and not self.problem:
            self._draft.add(number, start, values)
            return
        self._draft.drop()
        if self._lets_go and not self.problem:
            self.state = State.LOST

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
