"""The plan: which part of which variable is on which ps."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dps.cluster.device import Device
from dps.cluster.partition import split_rows
from dps.errors import ConfigError, PlacementError, ProtocolError
from dps.process.record import record, replace
from dps.transport.dtypes import dtype_of
from dps.variables import columns
from dps.variables import tables as keyed
from dps.variables.columns import Part, PerObject, VariableSpec
from dps.variables.runs import ALIGN, Arena, Piece, ShardLayout, cut, picker, piece_size
from dps.variables.tables import TablePart, TableSpec, parts_of_table

__all__ = [
    "ALIGN", "Arena", "Part", "Piece", "Place", "Plan", "ShardLayout", "Split", "VariableSpec", "cut", "make_plan",
    "picker", "piece_size",
]  # fmt: skip


@record
class Plan:
    """All variables and their parts, in creation order; the same on every task of a run."""

    variables: tuple[VariableSpec, ...]
    parts: tuple[Part, ...]
    ps: tuple[int, ...]
    """Task indices of the ps; the first is the step ps."""
    tied: tuple[tuple[str, str], ...] = ()
    """Other names of variables (tied weights), each with the variable's name."""
    tables: tuple[TableSpec, ...] = ()
    """Keyed tables. They are no `variables`: runs of bytes, and so pulls, have nothing of them."""

    def to_wire(self) -> dict[str, Any]:
        """The plan as columns (`dps.variables.columns`). The caller must not change it."""
        _living[id(self)] = self
        return self._wire

    @functools.cached_property
    def _wire(self) -> dict[str, Any]:
        written = columns.write(self.variables, self.parts, self.ps)
        if self.tables:
            written["tables"] = keyed.write(self.tables)
        return {**written, "tied": list(map(list, self.tied))} if self.tied else written

    @staticmethod
    def from_wire(data: Mapping[str, Any]) -> Plan:
        """Decode a plan from `to_wire`. A plan that this process already has is returned again, so that decoding it
        repeatedly costs little. Raises ProtocolError for an inconsistent plan."""
        for known in _living.valuerefs():  # a copy, because other threads add to it
            plan = known()
            if plan is not None and plan._wire == data:
                return plan
        try:
            plan = Plan(*columns.read(data), columns.tied(data), keyed.read(data, data["ps"]))
        except ConfigError:  # bfloat16 without ml_dtypes in this process
            raise
        except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ProtocolError(f"not a plan: {error}") from None
        plan.__dict__["_wire"], _living[id(plan)] = data, plan
        return plan

    def without_empty(self) -> Plan:
        """This plan without the ps that hold no part; at least one ps stays."""
        holders = {part.ps for part in self.parts}.union(*[spec.ps for spec in self.tables])
        ps = tuple(ps for ps in self.ps if ps in holders) or self.ps[:1]
        return self if ps == self.ps else replace(self, ps=ps)

    @functools.cached_property
    def by_name(self) -> dict[str, int]:
        """Index of each variable by its name, and by its other names."""
        found = {spec.name: index for index, spec in enumerate(self.variables)}
        return found | {other: found[name] for other, name in self.tied}

    @functools.cached_property
    def tables_by_name(self) -> dict[str, int]:
        """Index of each keyed table by its name. Gradients have it: it is above the indices of the variables."""
        return {spec.name: len(self.variables) + n for n, spec in enumerate(self.tables)}

    def name_of(self, index: int) -> str:
        """The name of a variable or a keyed table, by its index."""
        return self.variables[index].name if index < len(self.variables) else self.table_of(index).name

    def table_of(self, index: int) -> TableSpec:
        """The keyed table of an index of gradients."""
        return self.tables[index - len(self.variables)]

    @functools.cached_property
    def table_parts(self) -> dict[int, tuple[TablePart, ...]]:
        """The parts of each keyed table, by its index, in the order of their slices."""
        found, at = dict[int, tuple[TablePart, ...]](), len(self.parts)
        for spec in self.tables:
            index = self.tables_by_name[spec.name]
            found[index] = parts_of_table(spec, at, index)
            at += len(spec.ps)
        return found

    @functools.cached_property
    def parts_of(self) -> tuple[tuple[Part, ...], ...]:
        """The parts of each variable, in row order."""
        found: list[list[Part]] = [[] for _ in self.variables]
        for part in self.parts:
            found[part.variable].append(part)
        return tuple(tuple(parts) for parts in found)

    @functools.cached_property
    def dtypes(self) -> tuple[np.dtype[Any], ...]:
        """The dtype of each variable."""
        return tuple(np.dtype(spec.dtype) for spec in self.variables)

    @functools.cached_property
    def described(self) -> tuple[tuple[type, np.dtype[Any], tuple[int, ...]], ...]:
        """Class, dtype and shape of an array for each variable."""
        return tuple((np.ndarray, dtype, spec.shape) for dtype, spec in zip(self.dtypes, self.variables, strict=True))

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
        tables = {ps: tuple(p for own in self.table_parts.values() for p in own if p.ps == ps) for ps in self.ps}
        return {ps: ShardLayout.of(self.variables, here, tables[ps]) for ps, here in parts.items()}

    def bytes_per_ps(self) -> dict[int, int]:
        """Bytes of the values on each ps."""
        return {ps: sum(a.nbytes for a in layout.arenas) for ps, layout in self.layouts.items()}

    def moved_per_ps(self) -> dict[int, tuple[int, int]]:
        """Bytes that a step of one worker moves to each ps, with the gradients of all variables that are trained, and
        from it, with all values. Without rows: those of sparse variables and of keyed tables are what a step names."""
        dense = {ps: [a for a in layout.arenas if not a.sparse] for ps, layout in self.layouts.items()}
        return {
            ps: (sum(a.nbytes for a in arenas if a.optimizer is not None), sum(a.nbytes for a in arenas))
            for ps, arenas in dense.items()
        }

    def row_nbytes(self) -> dict[str, int]:
        """Bytes of a row of each variable that is read and pushed by rows, and of each keyed table, by name."""
        sparse = [parts[0] for spec, parts in zip(self.variables, self.parts_of, strict=True) if spec.sparse]
        found = {
            self.variables[part.variable].name: part.row_size * dtype_of(self.variables[part.variable].dtype).itemsize
            for part in sparse
        }
        return found | {table.name: table.dim * dtype_of(table.dtype).itemsize for table in self.tables}

    def slot_bytes_per_ps(self) -> dict[int, int]:
        """Bytes of the slots on each ps: those of the optimizers, and moving averages. An optimizer that this process
        does not know counts as one without slots."""
        return {ps: sum(map(_slot_bytes, layout.arenas)) for ps, layout in self.layouts.items()}

    def differs(self, other: Plan) -> str:
        """The first difference in names, shapes, dtypes or optimizers, as a sentence; "" if there is none."""
        if self is other:
            return ""
        mine, theirs = [v.name for v in self.variables], [v.name for v in other.variables]
        if mine != theirs:
            only = sorted(set(mine) ^ set(theirs))
            return f"only one of the two has {only[:5]}" if only else "its variables come in another order"
        if self.tied != other.tied:
            ties = [", ".join(f"{b} tied to {a}" for b, a in plan.tied) for plan in (self, other)]
            return f"it has {ties[0] or 'no tied weights'}, the run has {ties[1] or 'none'}"
        for a, b in zip(self.variables, other.variables, strict=True):
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                names = [np.dtype(v.dtype).name for v in (a, b)]
                return f"its {a.name} is {names[0]} {a.shape}, the run's is {names[1]} {b.shape}"
            if a.init != b.init:
                return f"its first values of {a.name} are {_begun(a.init)}, the run's are {_begun(b.init)}"
            if a.optimizer != b.optimizer:
                return f"its optimizer of {a.name} is {_described(a.optimizer)}, the run's is {_described(b.optimizer)}"
        return keyed.differs(self.tables, other.tables)


_living = weakref.WeakValueDictionary[int, Plan]()
"""Plans that this process has sent or received and that are still alive, by their identities."""


Place = Callable[[str, str, tuple[int, ...], str], "int | Device"]
"""A ps task or a device for a part, called in creation order with its variable's name, its own, shape and dtype."""
Split = Callable[[str, tuple[int, ...], str], int]
"""The number of parts of a variable, by name, shape and dtype."""


def make_plan(
    variables: list[VariableSpec],
    ps: tuple[int, ...],
    place: Place,
    split: Split | None,
    tied: Mapping[str, str] | None = None,
    tables: tuple[TableSpec, ...] = (),
) -> Plan:
    """Split and place all variables. `tied`: their other names, each with the name. `tables`: keyed tables, which are
    placed already. Raises PlacementError if a policy returns an invalid result."""
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
    return Plan(tuple(variables), tuple(parts), ps, tuple((tied or {}).items()), tables)


def _slot_bytes(arena: Arena) -> int:
    if arena.optimizer is None:
        return 0
    from dps.training.optimizers import from_wire

    try:
        optimizer = from_wire(arena.optimizer)
        slots, row_slots = len(optimizer.slots), len(optimizer.row_slots)
    except (TypeError, ValueError):
        slots = row_slots = 0
    by_element = slots - row_slots + ("moving_average" in arena.optimizer)
    rows = sum(part.shape[0] if part.shape else 1 for part in arena.parts)
    return (by_element * arena.size + row_slots * rows) * arena.itemsize


def _described(wire: dict[str, Any] | None) -> str:
    """An optimizer in the words of a program."""
    if wire is None:
        return "none (it is not trained)"
    from dps.training.optimizers import from_wire

    more = {key: value for key, value in wire.items() if key in ("moving_average", "inner")}
    try:
        return f"{from_wire(wire)!r}" + (f" with {more}" if more else "")
    except (TypeError, ValueError):
        return str(wire)


def _begun(init: dict[str, Any] | None) -> str:
    """Where first values come from, in the words of a program."""
    if init is None:
        return "an array of the program"
    from dps.training.initializers import from_wire

    return f"made by {from_wire(init)!r}"


def _memory(name: str, placed: int | Device) -> str:
    """The `Part.device` for the result of a placement."""
    if not isinstance(placed, Device) or placed.device_type is None:
        return ""
    if placed.device_type not in ("CPU", "GPU"):
        raise PlacementError(f"{name} was placed on {placed}; wanted the memory of a CPU or a GPU, as /gpu:0")
    return f"{placed.device_type}:{placed.device_index or 0}"


def as_applied(plan: Plan, update: Mapping[str, Any]) -> Plan:
    """The plan with the optimizers that the ps apply. A mode with an outer optimizer has that applied for all trained
    variables, with the workers' own noted beside it. `update`: the wire form of the mode."""
    applied = update.get("outer")
    if applied is None:
        return plan

    def outer(own: dict[str, Any] | None) -> dict[str, Any] | None:
        if own is None:
            return None
        averaged = {key: own[key] for key in ("moving_average",) if key in own}
        return {**applied, **averaged, "inner": own}

    optimizers = PerObject(outer)
    return replace(
        plan, variables=tuple(spec._replace(optimizer=optimizers.of(spec.optimizer)) for spec in plan.variables)
    )
