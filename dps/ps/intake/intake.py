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
    """Of an intake. Only an arriving one takes messages."""

    ARRIVING = "arriving"
    COMPLETE = "complete"
    """All of the gradient is here, and every element was checked."""
    REFUSED = "refused"
    """All of it is here, and some of it is not finite."""
    LOST = "lost"
    """Pieces that were applied and let go are wanted again: their draft came to nothing. Or the sender is lost."""


class Intake:
    """Takes the pieces of one push, in any order, doubled or not. Each is checked while it is in the cache. The
    subclasses say what becomes of it."""

    def __init__(self, push: PushOf, layout: ShardLayout, check: bool) -> None:
        """`check`: look for NaN and infinity."""
        self.push, self.state, self.problem = push, State.ARRIVING, ""
        self.ranges = Ranges()
        self._layout, self._check = layout, check

    def take(self, message: Push) -> State:
        """Take the pieces of one message. Raises ProtocolError for one that does not belong; what came before stays."""
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
        """The sender is lost, or sends the push in another way."""
        self.state = State.LOST

    def _keep(self, place: int, offset: int, data: Array, arena: Arena) -> Array:
        """Keep a piece that is new. Returns its elements."""
        raise NotImplementedError

    def _use(self, number: int, start: int, values: Array) -> None:
        """Go on with elements of arena `number` from `start` on, which were checked."""

    def _gradient(self) -> Gradient | None:
        """All that was kept."""
        raise NotImplementedError


class Gathering(Intake):
    """Pieces are copied into one run, for a pass that sums gradients or compares them with values."""

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
    """Pieces are kept as they came, and go while they are applied."""

    def __init__(self, push: PushOf, layout: ShardLayout, check: bool) -> None:
        super().__init__(push, layout, check)
        self._pieces: list[Array] = []
        """In the order of their ranges."""

    def _keep(self, place: int, offset: int, data: Array, arena: Arena) -> Array:
        values = elements(data, arena)
        self._pieces.insert(place, values)
        return values

    def _gradient(self) -> Gradient | None:
        places = [(self.ranges.place(a.offset), self.ranges.place(a.offset + a.nbytes)) for a in self._layout.arenas]
        return Gradient([Pieces(self._pieces[first:last]) for first, last in places], {})


class Applying(Keeping):
    """Pieces are written to a draft as they come, and kept for the case that it comes to nothing; or let go, and then
    the intake is lost in that case."""

    def __init__(self, push: PushOf, layout: ShardLayout, check: bool, draft: Draft, lets_go: bool) -> None:
        """`draft`: one that was opened for this push, reversible."""
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
    """Bytes of an arena as its elements, in memory that the kernels take."""
    values: Array = data.view(arena.dtype)
    if not values.flags.aligned:
        return values.copy()
    return values if values.flags.writeable else writable(values)
