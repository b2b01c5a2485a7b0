"""The cargo of a push for one shard: a place in shared memory, or bytes in pieces over a socket."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dps.client.lanes import Lane, PsPeer
from dps.errors import Unavailable
from dps.messages.sessions import DENSE, EMPTY, NOTHING, PACKED, PARTS, ROWS, RUN, SHARED, STEP_PS, VALUE, Push
from dps.transport.endpoint import Memory, Runtime
from dps.transport.tuning import Tuning
from dps.transport.wire import Array
from dps.variables.layout import Gradient, split
from dps.variables.packed import Packed
from dps.variables.plan import Arena, Plan, ShardLayout, cut, piece_size
from dps.variables.rowlists import RowsOfPart

if TYPE_CHECKING:
    from dps.client.push_operations import PushOp
    from dps.client.transfers import PushTransfer


class About(NamedTuple):
    """The fields that all messages of one push to one shard have in common (see `Push`)."""

    epoch: int
    number: int
    step: int
    counter: int
    clock: int = 0
    lend: bool = False
    released: int = 0
    times: list[Any] = NOTHING
    counted_by: int = STEP_PS

    def push(
        self, form: int, nbytes: int, offsets: list[int], parts: list[object], arrays: tuple[Array, ...] = ()
    ) -> Push:
        """One message of the push."""
        epoch, number, step, counter, clock, lend, released, times, counted_by = self
        of = offsets, parts, clock, lend, released, times, counted_by, arrays
        return Push(epoch, number, step, counter, form, nbytes, *of)

    def pieces(self, nbytes: int, pieces: Iterable[tuple[list[int], tuple[Array, ...]]]) -> list[Push]:
        """The messages of a push of a run in pieces, each with its offsets and arrays. The first one has the times."""
        made: list[Push] = []
        about = self
        for offsets, arrays in pieces:
            made.append(about.push(RUN, nbytes, offsets, [], arrays))
            about = about if about.times is NOTHING else about._replace(times=NOTHING)
        return made


class CargoMemory:
    """Memory in which a session gathers a push for one shard; shared with the ps if the lane is on."""

    def __init__(self, runtime: Runtime, lane: Lane, nbytes: int) -> None:
        self.nbytes = nbytes
        self.memory: Memory | None = None
        """None: it is not shared."""
        if lane.on:
            try:
                self.memory = runtime.share(nbytes)
            except Unavailable as error:
                lane.give_up(error)
        self.bytes: Array = np.zeros(nbytes, np.uint8) if self.memory is None else self.memory.array
        self.reader: PushOp | PushTransfer | None = None
        """The last push that was sent from it, which reads it until it is complete."""
        self._layout: ShardLayout | None = None
        self._trained: list[tuple[Arena, Array]] = []

    def trained(self, layout: ShardLayout) -> list[tuple[Arena, Array]]:
        """The trained arenas of a layout, each with a flat array in this memory. Those of the last layout are kept."""
        if self._layout is not layout:
            arenas = zip(layout.arenas, layout.flats(self.bytes), strict=True)
            self._trained = [(arena, flat) for arena, flat in arenas if arena.optimizer is not None]
            self._layout = layout  # last: after Ctrl-C they are made again
        return self._trained

    @property
    def in_use(self) -> bool:
        """Whether a push that was sent from it is still in flight."""
        return self.reader is not None and not self.reader.complete


class Cargo:
    """The cargo of one push for one shard. It is gathered once, and its messages can be made again for a retry."""

    run: CargoMemory | None = None
    """The memory that it was gathered in, in use until the push has its result. None: the caller's own arrays."""
    unread = ""
    """What the ps has said when it could not read the session's memory, which `messages` named until then."""

    def __init__(self, peer: PsPeer, about: About) -> None:
        self.peer, self.about = peer, about

    def messages(self) -> list[Push]:
        """The messages of the push: one that names shared memory, or all bytes in pieces."""
        raise NotImplementedError

    @property
    def memory(self) -> Memory | None:
        """The shared memory that `messages` name; None if they carry the bytes."""
        return self.run.memory if self.run is not None and self.peer.lane.on else None

    def out_of_reach(self, error: Exception) -> bool:
        """The ps cannot read the session's memory: send the bytes from now on. False if that was done already."""
        if self.run is None or self.run.memory is None:
            return False
        self.peer.lane.give_up(error)
        self.run.memory = None
        self.unread = str(error)
        return True

    @property
    def in_pieces(self) -> bool:
        """Whether it is sent in pieces that the ps may apply one by one."""
        return False

    @property
    def piece_nbytes(self) -> int:
        """The size of the pieces."""
        tuning = self.peer.caller.runtime.tuning
        return piece_size(self.peer.layout.gradient_nbytes, tuning.piece_nbytes, tuning.piece_s * self.peer.lane.rate)


class RunCargo(Cargo):
    """Gradients of a whole shard in one run, laid out as the shard is."""

    def __init__(self, peer: PsPeer, about: About, run: CargoMemory) -> None:
        super().__init__(peer, about)
        self.run: CargoMemory = run

    def messages(self) -> list[Push]:
        layout, memory = self.peer.layout, self.memory
        if memory is not None:
            return shared_message(layout, memory.name, self.about)
        return run_pieces(layout, self.run.bytes, self.piece_nbytes, self.about)

    @property
    def in_pieces(self) -> bool:
        return self.memory is None


def shared_message(layout: ShardLayout, memory: list[int], about: About) -> list[Push]:
    """The message of a push whose run begins shared memory."""
    return [about.push(SHARED, layout.gradient_nbytes, [], [memory, 0])]


def run_pieces(layout: ShardLayout, run: Array, piece_nbytes: int, about: About) -> list[Push]:
    """A push of a shard's run (uint8), cut into messages."""
    pieces = layout.pieces(piece_nbytes, trained_only=True)
    cuts = (([at for at, _ in piece], tuple([run[at : at + n] for at, n in piece])) for piece in pieces)
    return about.pieces(layout.gradient_nbytes, cuts)


class ArraysCargo(Cargo):
    """Gradients of a whole shard, sent from the caller's own arrays; small neighbours are gathered first.

    The caller must not change the arrays until the push has its result."""

    def __init__(self, peer: PsPeer, about: About, plan: Plan, gradients: Mapping[int, Gradient]) -> None:
        super().__init__(peer, about)
        self._plan, self._gradients = plan, gradients

    in_pieces = True

    @staticmethod
    def pays(layout: ShardLayout, tuning: Tuning) -> bool:
        """Whether most of the bytes are in large variables."""
        sizes = layout.gradient_sizes
        large = int(sizes[sizes >= tuning.piece_nbytes // tuning.client.small_part].sum())
        return large > 0 and 2 * large >= layout.gradient_nbytes

    def messages(self) -> list[Push]:
        layout, tuning = self.peer.layout, self.peer.caller.runtime.tuning
        size, nbytes = self.piece_nbytes, layout.gradient_nbytes
        small = min(tuning.piece_nbytes, size) // tuning.client.small_part
        trained = (arena for arena in layout.arenas if arena.optimizer is not None)
        spans = dict(span for arena in trained for span in self._spans(arena, small))
        starts = list(spans)

        def taken(at: int, n: int) -> Array:
            begin = starts[bisect.bisect(starts, at) - 1]
            return spans[begin][at - begin : at - begin + n]

        pieces = cut([(at, data.nbytes) for at, data in spans.items()], size, small)
        cuts = (([at for at, _ in piece], tuple([taken(*each) for each in piece])) for piece in pieces)
        return self.about.pieces(nbytes, cuts)

    def _spans(self, arena: Arena, small: int) -> Iterator[tuple[int, Array]]:
        """The bytes of an arena's gradients in order, each with its offset in the run; small neighbours as one span."""
        at = arena.offset
        together: list[Array] = []
        for part in arena.parts:
            gradient = self._gradients[part.variable]
            assert isinstance(gradient, np.ndarray), "a push of all of a shard is dense"
            source = np.ascontiguousarray(split(gradient, part, len(self._plan.parts_of[part.variable])))
            data = source.reshape(-1).view(np.uint8)
            if data.nbytes < small:
                together.append(data)
                continue
            for span in (np.concatenate(together) if together else None, data):
                if span is not None:
                    yield at, span
                    at += span.nbytes
            together = []
        if together:
            yield at, np.concatenate(together)


ALIGNED = 64
"""Arrays in a run begin at multiples of this number of bytes."""


class _Sent:
    """The gradient of one part, or what it is set to. `values` are the user's own, or, where they had to be moved, in
    the run at `offset`."""

    __slots__ = ("form", "how", "index", "offset", "rows", "values")

    def __init__(self, index: int, gradient: Array | RowsOfPart | Packed, how: int = DENSE) -> None:
        """`how`: an array is sent."""
        self.index, self.how, self.offset = index, how, -1
        self.form = gradient.form if isinstance(gradient, Packed) else None
        self.rows = gradient if isinstance(gradient, RowsOfPart) else None
        if isinstance(gradient, Packed):
            self.values: Array = gradient.data
        elif isinstance(gradient, RowsOfPart):  # as the user gave them, not in their order yet
            self.values = gradient.values[gradient.first : gradient.last]
        else:
            self.values = gradient

    def move(self, run: Array) -> None:
        """Copy the values into the run, rows in the order in which they are sent."""
        end = self.offset + self.values.nbytes
        target = run[self.offset : end].view(self.values.dtype).reshape(self.values.shape)
        if self.rows is not None:
            self.rows.fill(target)
        else:
            target[...] = self.values
        self.values = target


class PartsCargo(Cargo):
    """Gradients of some parts of a shard, each dense, of rows, or compressed; of none, too. And values to set."""

    def __init__(
        self, peer: PsPeer, about: About, parts: list[tuple[int, Array | RowsOfPart | Packed]],
        take: Callable[[int], CargoMemory], values: Sequence[tuple[int, Array]] = (),
    ) -> None:  # fmt: skip
        """`parts`: gradients by the index of each; `values`: what parts are set to. `take` gives a run of at least so
        many bytes; the arrays are gathered here."""
        super().__init__(peer, about)
        self._parts = [_Sent(index, gradient) for index, gradient in parts]
        self._parts += [_Sent(index, value, VALUE) for index, value in values]
        self._gather(take)

    def _gather(self, take: Callable[[int], CargoMemory]) -> None:
        """Copy large values for a ps on this machine into a shared run; else only rows that have to be reordered."""
        large = sum(sent.values.nbytes for sent in self._parts) >= self.peer.caller.runtime.tuning.shared_nbytes
        shared = large and self.peer.lane.on
        moved = [
            s for s in self._parts if s.form is None and (shared or (s.rows is not None and s.rows.order is not None))
        ]
        at = 0
        for sent in moved:
            sent.offset = at
            at += -(-sent.values.nbytes // ALIGNED) * ALIGNED
        if not at:
            return
        if large:
            self.run = take(at)
        run = np.empty(at, np.uint8) if self.run is None else self.run.bytes
        for sent in moved:
            sent.move(run)
        self.peer.caller.runtime.charge_pass("gather", at)

    def messages(self) -> list[Push]:
        """One message. Values in shared memory are named by their place."""
        if not self._parts:
            return [self.about.push(EMPTY, 0, [], [])]
        memory = self.memory
        described: list[Any] = []
        arrays: list[Array] = []
        nbytes = 0
        for sent in self._parts:
            how, place = sent.how, list[Any]()
            if sent.form is not None:
                how, place = PACKED, sent.form
            elif sent.rows is not None:
                how = ROWS
                arrays.append(sent.rows.numbers)
                nbytes += 8 * len(sent.values)
            nbytes += sent.values.nbytes
            if memory is not None and sent.offset >= 0:
                place = [memory.name, sent.offset]
            else:
                arrays.append(sent.values)
            described.append([sent.index, how, place])
        return [self.about.push(PARTS, nbytes, [], described, tuple(arrays))]
