"""Which part of which variable lives on which ps, and how a ps lays its parts out as one run of bytes."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dps.cluster.device import Device
from dps.cluster.partition import split_rows
from dps.errors import ConfigError, PlacementError, ProtocolError
from dps.record import record, replace
from dps.transport.wire import Array
from dps.variables import columns
from dps.variables.columns import Written
from dps.variables.parts import Part, VariableSpec

__all__ = ["ALIGN", "Arena", "Part", "Place", "Plan", "ShardLayout", "Split", "VariableSpec", "make_plan"]

ALIGN = 64
FEW = 8
"""Variables up to which a loop over them costs less than calls that take all at once."""


@record
class Plan:
    """All variables and their parts, in creation order; the same on every task of a run."""

    variables: tuple[VariableSpec, ...]
    parts: tuple[Part, ...]
    ps: tuple[int, ...]
    """Task indices of the ps; the first is the step ps."""

    def to_wire(self) -> dict[str, Any]:
        """The plan in columns (`dps.variables.columns`); whoever gets it leaves it as it is."""
        self._remember()
        return self._wire

    @functools.cached_property
    def _wire(self) -> dict[str, Any]:
        return columns.write(self.variables, self.parts, self.ps)

    def _remember(self) -> None:
        """While this plan lives, `from_wire` finds it again."""
        if "_remembered" not in self.__dict__:
            self.__dict__["_remembered"] = True
            _living[:] = [known for known in _living if known() is not None] + [weakref.ref(self)]

    @staticmethod
    def from_wire(data: Mapping[str, Any]) -> Plan:
        """The plan that `to_wire` wrote; one that this process has already is not made anew, so that who sends it
        again and again keeps nobody busy. Raises ProtocolError for a plan that does not fit itself."""
        for known in tuple(_living):  # other threads add to it
            plan = known()
            if plan is not None and plan._wire == data:
                return plan
        try:
            plan = Plan(*columns.read(data))
        except ConfigError:  # bfloat16, and no ml_dtypes here
            raise
        except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ProtocolError(f"not a plan: {error}") from None
        plan.__dict__["_wire"] = data
        plan._remember()
        return plan

    def without_empty(self) -> Plan:
        """The same without the ps that hold no part; at least one ps stays."""
        holders = {part.ps for part in self.parts}
        ps = tuple(ps for ps in self.ps if ps in holders) or self.ps[:1]
        return self if ps == self.ps else replace(self, ps=ps)

    @functools.cached_property
    def by_name(self) -> dict[str, int]:
        """Index of each variable by its name."""
        return {spec.name: index for index, spec in enumerate(self.variables)}

    @functools.cached_property
    def parts_of(self) -> tuple[tuple[Part, ...], ...]:
        """The parts of each variable, in row order."""
        found: list[list[Part]] = [[] for _ in self.variables]
        for part in self.parts:
            found[part.variable].append(part)
        return tuple(tuple(parts) for parts in found)

    @functools.cached_property
    def only_part(self) -> dict[str, int]:
        """The index of its part, by name, for each variable that has one part."""
        return {self.variables[i].name: parts[0].index for i, parts in enumerate(self.parts_of) if len(parts) == 1}

    @functools.cached_property
    def dtypes(self) -> tuple[np.dtype[Any], ...]:
        """The dtype of each variable."""
        return tuple(np.dtype(spec.dtype) for spec in self.variables)

    @functools.cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of each variable."""
        return [spec.shape for spec in self.variables]

    @functools.cached_property
    def is_split(self) -> bool:
        """Whether some variable has several parts."""
        return len(self.parts) > len(self.variables)

    @functools.cached_property
    def all_trained(self) -> bool:
        """Whether every variable takes a gradient."""
        return all(spec.optimizer is not None for spec in self.variables)

    @functools.cached_property
    def layouts(self) -> dict[int, ShardLayout]:
        """The layout of each ps."""
        parts: dict[int, list[Part]] = {ps: [] for ps in self.ps}
        for part in self.parts:
            parts[part.ps].append(part)
        return {ps: ShardLayout.of_parts(self, here) for ps, here in parts.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all variables."""
        return sum(spec.nbytes for spec in self.variables)

    def bytes_per_ps(self) -> dict[int, int]:
        return {ps: sum(a.nbytes for a in layout.arenas) for ps, layout in self.layouts.items()}

    def differs(self, other: Plan) -> str:
        """The first difference in names, shapes, dtypes or optimizers, as a sentence; "" when there is none."""
        if self is other:
            return ""
        mine, theirs = [v.name for v in self.variables], [v.name for v in other.variables]
        if mine != theirs:
            only = sorted(set(mine) ^ set(theirs))
            return f"the variables differ: {only[:5]}" if only else "the variables come in another order"
        for a, b in zip(self.variables, other.variables, strict=True):
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                names = [np.dtype(v.dtype).name for v in (a, b)]
                return f"{a.name} is {names[0]} {a.shape} here and {names[1]} {b.shape} there"
            if a.optimizer != b.optimizer:
                return f"the optimizer of {a.name} is {a.optimizer} here and {b.optimizer} there"
        return ""


_living: list[weakref.ref[Plan]] = []
"""Plans of this process that have travelled."""


Place = Callable[[str, str, tuple[int, ...], str], "int | Device"]
"""A ps task or a device for a part, called in creation order with its variable's name, its own, shape and dtype."""
Split = Callable[[str, tuple[int, ...], str], int]
"""The number of parts of a variable, by name, shape and dtype."""


def make_plan(
    variables: list[VariableSpec],
    ps: tuple[int, ...],
    place: Place,
    split: Split | None,
) -> Plan:
    """Split and place all variables. Raises PlacementError when a policy returns nonsense."""
    parts: list[Part] = []
    for index, spec in enumerate(variables):
        shards = split(spec.name, spec.shape, spec.dtype) if split is not None and spec.shape and spec.shape[0] else 1
        row0 = 0
        for i, rows in enumerate(split_rows(spec.shape[0], shards) if shards > 1 else [0]):
            name, shape = (f"{spec.name}/part_{i}", (rows, *spec.shape[1:])) if shards > 1 else (spec.name, spec.shape)
            placed = place(spec.name, name, shape, spec.dtype)
            task = placed.task if isinstance(placed, Device) else placed
            if task is None or task not in ps:
                raise PlacementError(f"the placement put {name} on ps task {task!r}; the ps tasks are {list(ps)}")
            parts.append(Part(len(parts), index, name, shape, row0, task, _memory(name, placed)))
            row0 += rows
    return Plan(tuple(variables), tuple(parts), ps)


def _memory(name: str, placed: int | Device) -> str:
    """`Part.device` of what was placed."""
    if not isinstance(placed, Device) or placed.device_type is None:
        return ""
    if placed.device_type not in ("CPU", "GPU"):
        raise PlacementError(f"{name} was placed on {placed}; wanted the memory of a CPU or a GPU, as /gpu:0")
    return f"{placed.device_type}:{placed.device_index or 0}"


A_STRETCH = 4
"""Neighbours of one shape from which on it takes less to make all of them at once."""


@record
class Arena:
    """Parts of one dtype, optimizer and device, one after the other: `size` elements from byte `offset` of the run."""

    dtype: str
    optimizer: dict[str, Any] | None
    sparse: bool
    offset: int
    size: int
    parts: tuple[Part, ...]
    starts: tuple[int, ...]
    """First element of each part."""
    device: str = ""
    """As `Part.device`."""

    @functools.cached_property
    def pick(self) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Takes what belongs to the variables of the parts out of what is there for all variables."""
        return picker([part.variable for part in self.parts])

    @functools.cached_property
    def bounds(self) -> Array:
        """The first element of each part, and where the last ends; int64."""
        return np.array([*self.starts, self.size], np.int64)

    @functools.cached_property
    def stretches(self) -> list[tuple[int, int, bool, tuple[int, ...] | None]]:
        """Neighbours of one shape: first element, end, whether they are several, and the shape of all of them as one
        array; None: it is flat. Scalars come one by one: the rows of an array of them would be numbers."""
        found: list[tuple[int, int, bool, tuple[int, ...] | None]] = []
        start = 0
        for shape, alike in itertools.groupby(self.parts, operator.attrgetter("shape")):
            count, size = sum(1 for _ in alike), math.prod(shape)
            if count >= A_STRETCH and shape:
                found.append((start, start + count * size, True, (count, *shape)))
            else:
                flat = None if len(shape) == 1 else shape
                found += [(start + i * size, start + (i + 1) * size, False, flat) for i in range(count)]
            start += count * size
        return found

    @functools.cached_property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(np.dtype(self.dtype).itemsize)

    @functools.cached_property
    def nbytes(self) -> int:
        return self.size * self.itemsize


def picker(places: list[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that takes what is at these places out of a sequence."""
    first = places[0] if places else 0
    if places == list(range(first, first + len(places))):
        return operator.itemgetter(slice(first, first + len(places)))
    return operator.itemgetter(*places)


LARGER, A_RUN = 4, 32
"""A long run travels in pieces up to so many times larger than others, or in so many pieces: each costs both ends some
0.1 ms beside its bytes, and with few of them nothing is done while they travel."""


def piece_size(nbytes: int, smallest: int) -> int:
    """How long the pieces of a run of `nbytes` are, where `smallest` is the runtime's `piece_nbytes`."""
    return max(smallest, min(LARGER * smallest, nbytes // A_RUN // ALIGN * ALIGN))


@record
class ShardLayout:
    """The run of one ps: its arenas, each at a multiple of 64 bytes. Agreed on with the plan, once an epoch."""

    arenas: tuple[Arena, ...]
    nbytes: int

    @staticmethod
    def of(plan: Plan, ps: int) -> ShardLayout:
        return ShardLayout.of_parts(plan, [part for part in plan.parts if part.ps == ps])

    @staticmethod
    def of_parts(plan: Plan, here: Sequence[Part]) -> ShardLayout:
        """`here`: the parts on one ps, in the plan's order."""
        groups: dict[tuple[str, str, int, str], list[Part]] = {}
        written = Written()
        for part in here:
            spec = plan.variables[part.variable]
            own = part.index if spec.sparse else -1
            groups.setdefault((spec.dtype, written.of(spec.optimizer), own, part.device), []).append(part)
        arenas: list[Arena] = []
        offset = 0
        for parts in groups.values():
            spec = plan.variables[parts[0].variable]
            starts, size = [], 0
            for part in parts:
                starts.append(size)
                size += part.size
            arena = Arena(
                spec.dtype, spec.optimizer, spec.sparse, offset, size, tuple(parts), tuple(starts), parts[0].device
            )
            arenas.append(arena)
            offset += -(-arena.nbytes // ALIGN) * ALIGN
        return ShardLayout(tuple(arenas), offset)

    @functools.cached_property
    def place(self) -> dict[int, tuple[int, int]]:
        """For each part here, by its index: its arena's number and its first element there."""
        return {
            p.index: (a, start)
            for a, arena in enumerate(self.arenas)
            for p, start in zip(arena.parts, arena.starts, strict=True)
        }

    @functools.cached_property
    def data_nbytes(self) -> int:
        """Bytes of all arenas without the padding between them."""
        return sum(arena.nbytes for arena in self.arenas)

    @functools.cached_property
    def gradient_nbytes(self) -> int:
        """Bytes of the arenas that are trained: what a dense push moves."""
        return sum(arena.nbytes for arena in self.arenas if arena.optimizer is not None)

    @functools.cached_property
    def gradient_sizes(self) -> Array:
        """Bytes of each part that takes a gradient, in the order of the run."""
        trained = [arena for arena in self.arenas if arena.optimizer is not None]
        return np.array([part.size * np.dtype(a.dtype).itemsize for a in trained for part in a.parts], np.int64)

    @functools.cached_property
    def trained(self) -> tuple[Part, ...]:
        """The parts that take gradients, in the order of the run."""
        return tuple(part for arena in self.arenas if arena.optimizer is not None for part in arena.parts)

    @functools.cached_property
    def trained_variables(self) -> list[int]:
        """The variables of `trained`."""
        return [part.variable for part in self.trained]

    @functools.cached_property
    def trained_indices(self) -> list[int]:
        """The indices of `trained`."""
        return [part.index for part in self.trained]

    def pieces(self, piece_nbytes: int, trained_only: bool = False) -> list[list[tuple[int, int]]]:
        """The run cut for travel: each piece is a list of (offset, nbytes), at most `piece_nbytes` in all."""
        pieces: list[list[tuple[int, int]]] = [[]]
        room = piece_nbytes
        for arena in self.arenas:
            if trained_only and arena.optimizer is None:
                continue
            at, end = arena.offset, arena.offset + arena.nbytes
            item = np.dtype(arena.dtype).itemsize
            while at < end:
                if room < item:
                    pieces.append([])
                    room = max(piece_nbytes, item)
                n = min(room // item * item, end - at)
                pieces[-1].append((at, n))
                at, room = at + n, room - n
        return pieces

    def flats(self, run: Array) -> list[Array]:
        """The arenas as flat arrays in a run of bytes."""
        return [run[start:stop].view(dtype) for start, stop, dtype in self._cuts]

    @functools.cached_property
    def _cuts(self) -> list[tuple[int, int, np.dtype[Any]]]:
        return [(a.offset, a.offset + a.nbytes, np.dtype(a.dtype)) for a in self.arenas]

    def views(self, run: Array) -> dict[int, Array]:
        """The parts as arrays in a run of bytes (uint8, `nbytes` long), by part index."""
        return dict(zip(self.indices, self.listed(self.memories(run)), strict=True))

    def memories(self, run: Array) -> list[Array]:
        """The bytes of each arena in a run."""
        return [run[start:stop] for start, stop, _ in self._cuts]

    def listed(self, memories: Sequence[Array]) -> list[Array]:
        """The parts as arrays in the memory of each arena, in the order of `indices`. Neighbours of one shape are made
        at once, as the rows of one array."""
        found: list[Array] = []
        for arena, memory in zip(self.arenas, memories, strict=True):
            flat = memory.view(arena.dtype)
            for start, stop, several, shape in arena.stretches:
                values = flat[start:stop] if shape is None else flat[start:stop].reshape(shape)
                if several:
                    found.extend(values)
                else:
                    found.append(values)
        return found

    def view(self, memories: Sequence[Array], index: int) -> Array:
        """One part as an array in the memory of each arena."""
        number, start = self.place[index]
        part = self._part_of[index]
        return memories[number].view(self.arenas[number].dtype)[start : start + part.size].reshape(part.shape)

    @functools.cached_property
    def _part_of(self) -> dict[int, Part]:
        return {part.index: part for arena in self.arenas for part in arena.parts}

    @functools.cached_property
    def indices(self) -> list[int]:
        """The index of each part, in the order of the run."""
        return [part.index for arena in self.arenas for part in arena.parts]

    def check_range(self, offset: int, nbytes: int, trained_only: bool = False) -> tuple[int, int]:
        """The number of the (trained) arena that bytes lie in, and the first element there. Raises ProtocolError
        unless they lie within one, on element boundaries."""
        for number, arena in enumerate(self.arenas):
            if type(offset) is not int or (trained_only and arena.optimizer is None):
                continue
            at = offset - arena.offset
            if at >= 0 and at + nbytes <= arena.nbytes:
                if at % arena.itemsize or nbytes % arena.itemsize:
                    break
                return number, at // arena.itemsize
        raise ProtocolError(f"bytes {offset} to {offset + nbytes} are no piece of a run of {self.nbytes} bytes")
