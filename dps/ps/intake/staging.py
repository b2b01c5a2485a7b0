"""Pushes on their way in: pieces are checked as they arrive, and a push is whole or not there."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from dps.errors import ProtocolError
from dps.protocol import EMPTY, PARTS, RUN, SHARED, Push
from dps.ps.intake.borrowed import Borrowed, writable
from dps.ps.intake.parts import Parts
from dps.ps.store.draft import Draft
from dps.ps.store.gradients import Pieces, RowGradient, Update, not_finite
from dps.ps.store.store import Store
from dps.transport.wire import Array
from dps.variables.plan import Arena, ShardLayout

GATHERS, KEEPS, FORGETS = 0, 1, 2
"""What becomes of the pieces of a run: copied into one, kept as they came, or let go once they are applied ahead."""


@dataclass(slots=True)
class Staged:
    """One push of one session. `problem` is why it will be refused, "" while nothing is wrong with it."""

    task: int
    incarnation: int
    number: int
    step: int
    counter: int
    form: int
    nbytes: int
    problem: str = ""
    clock: int = 0
    whole: bool = False
    borrowed: bool = False
    """Its values lie in memory of the session's."""
    unchecked: bool = False
    """Nobody has looked for NaN and infinity in the run."""
    keeps: int = GATHERS
    ahead: Draft | None = None
    """Where the pieces are applied as they come."""
    tried: bool = False
    """Whether that was begun."""
    lost: bool = False
    """Pieces that were let go are wanted again."""
    run: Array | None = None
    pieces: list[Array] = field(default_factory=list)
    """Those that are kept, as elements of their arenas, in the order of `_got`."""
    parts: dict[int, Array | RowGradient] = field(default_factory=dict)
    _got: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of the run that are here: (offset, bytes), rising, none over another."""
    _got_nbytes: int = 0

    @property
    def id(self) -> tuple[int, int, int]:
        """The place of the push in the order of summation: task, incarnation, number."""
        return (self.task, self.incarnation, self.number)

    def add(self, piece: Push, layout: ShardLayout, check_finite: bool, session: Borrowed | None = None) -> None:
        """Take a piece; `session` has what one of form PARTS names. Raises ProtocolError for one that does not belong,
        Unavailable for memory out of reach; a bad gradient sets `problem`."""
        if self.whole:
            return
        if {piece.form, self.form} <= {RUN, SHARED}:
            self.form = piece.form  # the sender may have to give shared memory up half-way
        if (piece.form, piece.nbytes) != (self.form, self.nbytes):
            raise ProtocolError(f"push {self.number}: this piece belongs to another push")
        if self.form == RUN:
            self._add_run(piece, layout, check_finite)
            return
        if self.form == PARTS:
            self._add_parts(piece, layout, check_finite, session)
        elif self.form != EMPTY or piece.arrays or piece.parts:
            raise ProtocolError(f"push {self.number} has form {self.form}; wanted 0 (nothing), 1 (run) or 2 (parts)")
        self.whole = True

    def borrow(self, run: Array, layout: ShardLayout, check_finite: bool) -> None:
        """Take a whole run that lies in the session's own memory; it stays as it is until the push is answered.

        Whoever applies it looks for NaN and infinity, or calls `look`.
        """
        self._begin_anew(run)
        self.unchecked = check_finite
        self.whole = True

    def lend(self, piece: Push, run: Array, layout: ShardLayout, check_finite: bool) -> None:
        """Take ranges of such a run that are ready; `piece.offsets` is where each begins and its bytes, in turn.

        They are checked as they come, and applied ahead if that goes; else once, when all are there.
        """
        if self.whole:
            return
        if self._got and self.run is not run:
            self._begin_anew(run)
        self.run, self.borrowed = run, True
        if len(piece.offsets) % 2 or not all(type(n) is int and n >= 0 for n in piece.offsets):
            raise ProtocolError(f"{piece.offsets!r:.100} are no ranges of a run")
        for offset, nbytes in zip(piece.offsets[::2], piece.offsets[1::2], strict=True):
            number, start = layout.check_range(offset, nbytes, trained_only=True)
            if self._new(offset, nbytes) >= 0:
                self._read(run[offset : offset + nbytes], layout.arenas[number], number, start, check_finite)
        self.whole = self._got_nbytes == self.nbytes

    def _begin_anew(self, run: Array | None) -> None:
        """Forget what is here: all of the gradient lies, or is to come to lie, in this run of the session's own."""
        self.stop()
        self.run, self.borrowed, self.lost = run, run is not None, False
        self.pieces, self._got, self._got_nbytes = [], [], 0

    def look(self, store: Store) -> None:
        """Look for NaN and infinity where nobody has; a bad gradient sets `problem`."""
        if self.unchecked and self.run is not None and not self.problem:
            self.problem = store.problem(Update(store.layout.flats(self.run), {}))
        self.unchecked = False

    def own(self) -> None:
        """Copy what is borrowed: the session may go on before the push is applied."""
        if not self.borrowed:
            return
        if self.run is not None:
            self.run = self.run.copy()
        for index, gradient in self.parts.items():
            if isinstance(gradient, RowGradient):
                self.parts[index] = RowGradient(gradient.rows, gradient.values.copy())
            else:
                self.parts[index] = gradient.copy()
        self.borrowed = False

    def _add_run(self, piece: Push, layout: ShardLayout, check_finite: bool) -> None:
        if self.nbytes != layout.gradient_nbytes:
            raise ProtocolError(f"a dense push to this shard has {layout.gradient_nbytes} bytes, got {self.nbytes}")
        if len(piece.offsets) != len(piece.arrays):
            raise ProtocolError(f"{len(piece.offsets)} offsets for {len(piece.arrays)} arrays")
        if self.borrowed:
            self._begin_anew(None)
        if self.run is None and self.keeps == GATHERS:
            self.run = np.empty(layout.nbytes, np.uint8)
        for offset, data in zip(piece.offsets, piece.arrays, strict=True):
            number, start = layout.check_range(offset, data.nbytes, trained_only=True)
            if (place := self._new(offset, data.nbytes)) < 0:
                continue
            data = data.reshape(-1).view(np.uint8)
            if self.run is not None:
                self.run[offset : offset + data.nbytes] = data
                data = self.run[offset : offset + data.nbytes]
            values = self._read(data, layout.arenas[number], number, start, check_finite)
            if self.keeps == KEEPS:
                self.pieces.insert(place, values)
            if self.lost:
                return
        self.whole = self._got_nbytes == self.nbytes

    def _read(self, data: Array, arena: Arena, number: int, start: int, check: bool) -> Array:
        """Check a new piece while it is in the cache, and apply it ahead where that goes; its elements."""
        values = elements(data, arena)
        if self.ahead is not None and not self.ahead.holds:
            self.stop()
        if self.problem:
            return values
        if check and (problem := not_finite(arena, values, start)):
            self.problem = problem
            self.stop()
        elif self.ahead is not None:
            self.ahead.add(number, start, values)
        return values

    def stop(self) -> None:
        """Do not apply the pieces ahead (any more)."""
        ahead, self.ahead = self.ahead, None
        if ahead is not None:
            ahead.drop()
            self.lost = self.keeps == FORGETS and not self.problem

    def take_draft(self) -> Draft | None:
        """The draft that all of the push is written to; None if there is none, or something has come in between."""
        if self.ahead is not None and not self.ahead.holds:
            self.stop()
        draft, self.ahead = self.ahead, None
        return draft

    def _new(self, offset: int, nbytes: int) -> int:
        """Note a range, and say where it is among the others; -1 for one that came before. ProtocolError where it is
        cut otherwise than before."""
        place = bisect_left(self._got, (offset, 0))
        after = self._got[place] if place < len(self._got) else None
        if after == (offset, nbytes) or nbytes == 0:
            return -1
        before = sum(self._got[place - 1]) if place else 0
        if before > offset or (after is not None and after[0] < offset + nbytes):
            raise ProtocolError(f"push {self.number}: bytes {offset} to {offset + nbytes} came before, cut otherwise")
        self._got.insert(place, (offset, nbytes))
        self._got_nbytes += nbytes
        return place

    def _add_parts(self, piece: Push, layout: ShardLayout, check_finite: bool, session: Borrowed | None) -> None:
        if session is None:
            raise ProtocolError(f"push {self.number}: nothing is known of its session")
        found = Parts(piece, layout, session, check_finite)
        self.parts, self.problem, self.borrowed = found.gradients, found.problem, found.borrowed

    def update(self, layout: ShardLayout) -> Update:
        """What the store applies for this push alone. Kept pieces are handed over: they go while they are applied, and
        a second call raises ProtocolError."""
        if self.run is not None:
            return Update(layout.flats(self.run), {})
        if self.pieces:
            runs, self.pieces = [self._of_arena(arena) for arena in layout.arenas], []
            return Update(runs, {})
        if self._got:
            raise ProtocolError(f"push {self.number}: its pieces have been applied, or an error came in between")
        return Update(None, self.parts)

    @property
    def here(self) -> int:
        """Bytes that have come."""
        return self._got_nbytes

    def _of_arena(self, arena: Arena) -> Pieces:
        """The kept pieces of an arena."""
        first = bisect_left(self._got, (arena.offset, 0))
        last = bisect_left(self._got, (arena.offset + arena.nbytes, 0))
        return Pieces(self.pieces[first:last])


def elements(data: Array, arena: Arena) -> Array:
    """Bytes of an arena as its elements, in memory that the kernels take."""
    values: Array = data.view(arena.dtype)
    if not values.flags.aligned:
        return values.copy()
    return values if values.flags.writeable else writable(values)
