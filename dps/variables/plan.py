"""Which part of which variable lives on which ps, and how a ps lays its parts out as one run of bytes."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dps.cluster.device import Device
from dps.cluster.partition import split_rows
from dps.errors import ConfigError, PlacementError, ProtocolError
from dps.transport.dtypes import FLOATS, dtype_of, wire_name
from dps.transport.wire import DTYPES, Array

ALIGN = 64


@dataclass(frozen=True)
class VariableSpec:
    """A logical variable: what clients see. `optimizer` is its wire form; None: it is never updated."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    optimizer: dict[str, Any] | None
    sparse: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Part:
    """Rows `row0` to `row0 + rows` of a variable, on one ps; the only part of an unsplit variable has all."""

    index: int
    variable: int
    name: str
    shape: tuple[int, ...]
    row0: int
    ps: int
    device: str = ""
    """Where on its ps: "CPU:0", "GPU:1", or "" for wherever the ps keeps what says nothing."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def row_size(self) -> int:
        """Elements of one row."""
        return math.prod(self.shape[1:])


@dataclass(frozen=True)
class Plan:
    """All variables and their parts, in creation order; the same on every task of a run."""

    variables: tuple[VariableSpec, ...]
    parts: tuple[Part, ...]
    ps: tuple[int, ...]
    """Task indices of the ps; the first is the step ps."""

    def to_wire(self) -> dict[str, Any]:
        return {
            "variables": [[v.name, list(v.shape), v.dtype, v.optimizer, v.sparse] for v in self.variables],
            "parts": [[p.variable, p.name, list(p.shape), p.row0, p.ps, p.device] for p in self.parts],
            "ps": list(self.ps),
        }

    @staticmethod
    def from_wire(data: Mapping[str, Any]) -> Plan:
        """Raises ProtocolError for a plan that does not fit itself."""
        try:
            variables = tuple(
                VariableSpec(str(n), tuple(map(int, s)), wire_name(dtype_of(str(d))), o, bool(x))
                for n, s, d, o, x in data["variables"]
            )
            parts = tuple(
                Part(i, int(v), str(n), tuple(map(int, s)), int(r), int(k), str(d))
                for i, (v, n, s, r, k, d) in enumerate(data["parts"])
            )
            plan = Plan(variables, parts, tuple(int(k) for k in data["ps"]))
            plan._check()
        except ConfigError:  # bfloat16, and no ml_dtypes here
            raise
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise ProtocolError(f"not a plan: {error}") from None
        return plan

    def _check(self) -> None:
        if len(set(self.ps)) != len(self.ps) or len(self.by_name) != len(self.variables):
            raise ValueError("a ps or a variable comes twice")
        for spec in self.variables:
            trains = isinstance(spec.optimizer, dict) and spec.dtype in FLOATS
            if spec.dtype not in DTYPES or not (spec.optimizer is None or trains):
                raise ValueError(f"{spec.name} has dtype {spec.dtype} and optimizer {spec.optimizer!r:.100}")
        rows: dict[int, int] = {}
        for part in self.parts:
            if part.variable < 0:
                raise ValueError(f"part {part.name} belongs to no variable")
            spec = self.variables[part.variable]
            if part.ps not in self.ps or any(n < 0 for n in part.shape) or part.row0 != rows.get(part.variable, 0):
                raise ValueError(f"part {part.name} does not fit")
            if part.device and not re.fullmatch(r"(CPU|GPU):[0-9]{1,4}", part.device):
                raise ValueError(f"part {part.name} is on {part.device!r:.100}")
            if part.shape[1:] != spec.shape[1:] or bool(part.shape) != bool(spec.shape):
                raise ValueError(f"part {part.name} has shape {part.shape} of {spec.shape}")
            rows[part.variable] = part.row0 + (part.shape[0] if part.shape else 1)
        for index, spec in enumerate(self.variables):
            if rows.get(index, -1) != (spec.shape[0] if spec.shape else 1):
                raise ValueError(f"the parts of {spec.name} do not make it up")

    def without_empty(self) -> Plan:
        """The same without the ps that hold no part; at least one ps stays."""
        holders = {part.ps for part in self.parts}
        return replace(self, ps=tuple(ps for ps in self.ps if ps in holders) or self.ps[:1])

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
    def layouts(self) -> dict[int, ShardLayout]:
        """The layout of each ps."""
        return {ps: ShardLayout.of(self, ps) for ps in self.ps}

    @property
    def nbytes(self) -> int:
        """Bytes of all variables."""
        return sum(spec.nbytes for spec in self.variables)

    def bytes_per_ps(self) -> dict[int, int]:
        return {ps: sum(a.nbytes for a in layout.arenas) for ps, layout in self.layouts.items()}

    def differs(self, other: Plan) -> str:
        """The first difference in names, shapes, dtypes or optimizers, as a sentence; "" when there is none."""
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


@dataclass(frozen=True)
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
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(np.dtype(self.dtype).itemsize)

    @functools.cached_property
    def nbytes(self) -> int:
        return self.size * self.itemsize


LARGER, A_RUN = 4, 32
"""A long run travels in pieces up to so many times larger than others, or in so many pieces: each costs both ends some
0.1 ms beside its bytes, and with few of them nothing is done while they travel."""


def piece_size(nbytes: int, smallest: int) -> int:
    """How long the pieces of a run of `nbytes` are, where `smallest` is the runtime's `piece_nbytes`."""
    return max(smallest, min(LARGER * smallest, nbytes // A_RUN // ALIGN * ALIGN))


@dataclass(frozen=True)
class ShardLayout:
    """The run of one ps: its arenas, each at a multiple of 64 bytes. Agreed on with the plan, once an epoch."""

    arenas: tuple[Arena, ...]
    nbytes: int

    @staticmethod
    def of(plan: Plan, ps: int) -> ShardLayout:
        groups: dict[tuple[str, str, int, str], list[Part]] = {}
        optimizers: dict[str, str] = {}  # by what is quickly written: all of a model's variables have one or two
        for part in plan.parts:
            if part.ps == ps:
                spec = plan.variables[part.variable]
                own = part.index if spec.sparse else -1
                written = repr(spec.optimizer)
                if written not in optimizers:
                    optimizers[written] = json.dumps(spec.optimizer, sort_keys=True)
                groups.setdefault((spec.dtype, optimizers[written], own, part.device), []).append(part)
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

    def views(self, run: Array) -> dict[int, Array]:
        """The parts as arrays in a run of bytes (uint8, `nbytes` long), by part index."""
        return self.views_of([run[arena.offset : arena.offset + arena.nbytes] for arena in self.arenas])

    def views_of(self, memories: Sequence[Array]) -> dict[int, Array]:
        """The parts as arrays in the bytes of each arena, by part index."""
        found: dict[int, Array] = {}
        for arena, memory, spans in zip(self.arenas, memories, self._spans, strict=True):
            flat = memory.view(arena.dtype)
            for index, start, stop, shape in spans:
                found[index] = flat[start:stop] if shape is None else flat[start:stop].reshape(shape)
        return found

    @functools.cached_property
    def _spans(self) -> list[list[tuple[int, int, int, tuple[int, ...] | None]]]:
        """For each arena: index, first element, end and shape of its parts; shape None: one dimension, as it lies."""
        return [
            [
                (p.index, start, start + p.size, None if len(p.shape) == 1 else p.shape)
                for p, start in zip(arena.parts, arena.starts, strict=True)
            ]
            for arena in self.arenas
        ]

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
