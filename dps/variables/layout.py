"""Converts between logical variables and the parts of the plan: checks and cuts gradients, assembles values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dps.training.optimizers import counts_updates
from dps.transport.dtypes import wire_name
from dps.transport.wire import Array
from dps.variables.packed import Packed, PackedGradient
from dps.variables.plan import Part, Plan, ShardLayout, VariableSpec
from dps.variables.rowlists import RowLists, RowsOfPart
from dps.variables.tables import TableSpec, key_numbers
from dps.variables.tree import Rows, is_masked, is_module, is_parameter, is_tensor, rows_of_tensor, to_array

Gradient = Array | Rows | PackedGradient
"""Packed gradients come from a session's `Compression`."""


def split(array: Array, part: Part, parts: int) -> Array:
    """A part's rows of a logical array."""
    return array if parts == 1 else array[part.row0 : part.row0 + part.shape[0]]


def check_gradients(plan: Plan, found: Iterable[tuple[str, Any]]) -> dict[int, Gradient]:
    """Gradients by variable index, checked against names, shapes and dtypes. ValueError says what was got and wanted.

    A leaf that is None, like a missing key, means no gradient for that variable. So does one without elements.
    """
    gradients: dict[int, Gradient] = {}
    came: dict[int, Any] = {}
    for name, value in found:
        if value is None:
            continue
        if name in plan.tables_by_name:
            of_table = _checked_keys(plan.table_of(plan.tables_by_name[name]), value)
            if of_table.values.size:
                gradients[plan.tables_by_name[name]] = of_table
            continue
        index = index_of(plan, name, "gradient")
        spec = plan.variables[index]
        if plan.tied and not _is_first(came, index, value, spec.name, name):
            continue
        if spec.optimizer is None:
            raise ValueError(f"a gradient came for {name!r}, which is not trained; leave it out or pass None")
        rows = value
        if is_tensor(value):
            if is_parameter(value):
                raise TypeError(
                    f"got a parameter of PyTorch as the gradient of {name}, which is its value; pass p.grad, as "
                    "{n: p.grad for n, p in net.named_parameters()}"
                )
            rows = rows_of_tensor(value, name)
            if rows is not None and tuple(value.shape) != spec.shape:
                raise ValueError(
                    f"the gradient of {spec.name} has shape {tuple(value.shape)}; the variable has {spec.shape}"
                )
        if isinstance(rows, Rows):
            checked = _checked_rows(spec, rows)
            if checked.values.size:
                gradients[index] = checked
            continue
        array = array_for(plan, index, value, "gradient")
        if array.size:
            gradients[index] = array
    return gradients


def _is_first(came: dict[int, Any], index: int, value: Any, name: str, other: str) -> bool:
    """Whether this is the first gradient of a variable that has several names. ValueError for a second one that is not
    the same. `came`: the gradients so far."""
    if index not in came:
        came[index] = value
        return True
    from dps.variables.sharing import is_same  # here: few runs have tied weights

    if is_same(came[index], value):
        return False
    raise ValueError(
        f"{name} and {other} are one variable (tied weights) and got two gradients; push their sum under {name}"
    )


def index_of(plan: Plan, name: str, what: str) -> int:
    """The index of a variable. ValueError for another name, which says that `what` came for it."""
    if name in plan.tables_by_name:
        raise ValueError(f"a {what} came for {name!r}, which is a keyed table; push dps.Rows(keys, gradients) for it")
    if name not in plan.by_name:
        known = ", ".join(list(plan.by_name)[:10])
        raise ValueError(f"a {what} came for {name!r}, which is no variable; there are {known}")
    return plan.by_name[name]


def array_for(plan: Plan, index: int, value: Any, what: str) -> Array:
    """A value as an array of a variable's shape and dtype. ValueError says what was got and wanted; TypeError for what
    is no array. `what`: "gradient" or "value"."""
    spec = plan.variables[index]
    array = to_array(value, spec.name)
    if array.shape != spec.shape:
        raise ValueError(f"the {what} of {spec.name} has shape {array.shape}; the variable has {spec.shape}")
    if array.dtype != plan.dtypes[index]:
        got, dtype = array.dtype.name, plan.dtypes[index].name
        cast = f".to(torch.{dtype})" if is_tensor(value) else f".astype('{dtype}')"
        raise ValueError(f"the {what} of {spec.name} is {got}; the variable is {dtype}: cast with {cast}")
    return array


def names_of(plan: Plan) -> str:
    """The names of the variables for an error message, at most the first ten."""
    known = [*plan.by_name, *plan.tables_by_name]
    names, more = known[:10], len(known) - 10
    return "{" + ", ".join(map(repr, names)) + (f", and {more} more" if more > 0 else "") + "}"


def check_is_nested(plan: Plan, tree: Any, wants: str = "push wants gradients") -> None:
    """Raise ValueError for a single array or a list of arrays if the variables have names. `wants` begins the text."""
    if isinstance(tree, Mapping) or tree is None:
        return
    if isinstance(tree, list | tuple):
        if tree and "0" not in {name.partition("/")[0] for name in (*plan.by_name, *plan.tables_by_name)}:
            raise ValueError(f"{wants} for {names_of(plan)}; got a {type(tree).__name__} of {len(tree)}")
    elif "value" not in plan.by_name:
        shape = getattr(tree, "shape", None)
        got = f"one {type(tree).__name__}" if shape is None else f"one array of shape {tuple(shape)}"
        hint = (
            ": pass {n: p.grad for n, p in net.named_parameters()}"
            if "gradients" in wants
            else ": pass its state_dict()"
        )
        raise ValueError(f"{wants} for {names_of(plan)}; got {got}{hint if is_module(tree) else ''}")


def row_numbers(rows: Any, what: str) -> Array:
    """Row numbers as an array of integers of one dimension or more. ValueError messages call them `what`."""
    indices: Array = to_array(rows, what) if is_tensor(rows) or is_masked(rows) else np.asarray(rows)
    if indices.ndim == 0 or (indices.dtype.kind not in "iu" and indices.size):
        raise ValueError(f"{what} are integers of shape (n,) or (n, m, ...); got {indices.dtype} {indices.shape}")
    return indices


def _checked_keys(spec: TableSpec, value: Any) -> Rows:
    """The gradient of a keyed table, with int64 keys (n,)."""
    gradient = rows_of_tensor(value, spec.name) if is_tensor(value) else value
    if not isinstance(gradient, Rows):
        raise ValueError(
            f"{spec.name} is a keyed table: its gradient is dps.Rows(keys, gradients), got a {type(value).__name__}"
        )
    keys = row_numbers(gradient.indices, f"Rows of {spec.name}: keys")
    values = to_array(gradient.values, spec.name)
    wanted = (*keys.shape, spec.dim)
    if not (keys.size or values.size):
        return Rows(np.empty(0, np.int64), values)
    if values.shape != wanted or wire_name(values.dtype) != spec.dtype:
        raise ValueError(
            f"Rows of {spec.name}: got values {values.dtype.name} {values.shape}; wanted {np.dtype(spec.dtype).name} "
            f"{wanted}"
        )
    return Rows(key_numbers(spec.name, keys), values.reshape(keys.size, spec.dim))


def _checked_rows(spec: VariableSpec, gradient: Rows) -> Rows:
    if not spec.shape:
        raise ValueError(f"{spec.name} is a scalar, which has no rows; push its gradient as a number or an array")
    indices = row_numbers(gradient.indices, f"Rows of {spec.name}: indices")
    values = to_array(gradient.values, spec.name)
    wanted = (*indices.shape, *spec.shape[1:])
    if not (indices.size or values.size):
        return Rows(indices.reshape(-1), values)
    if values.shape != wanted or wire_name(values.dtype) != spec.dtype:
        raise ValueError(
            f"Rows of {spec.name}: got values {values.dtype.name} {values.shape}; wanted {np.dtype(spec.dtype).name} "
            f"{wanted}"
        )
    indices = indices.reshape(-1)
    check_rows(spec, indices)
    return Rows(indices.astype(np.int64, copy=False), values.reshape(len(indices), *spec.shape[1:]))


def check_rows(spec: VariableSpec, indices: Array) -> None:
    """Raise ValueError if a row number is out of range."""
    if len(indices) and not (int(indices.min()) >= 0 and int(indices.max()) < spec.shape[0]):
        raise ValueError(out_of_range(spec.name, spec.shape[0], indices))


def out_of_range(name: str, rows: int, indices: Array) -> str:
    """An error text for row numbers of a variable that are not all from 0 to `rows` - 1."""
    wrong = indices[(indices < 0) | (indices >= rows)]
    others = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"row {wrong[0]} of {name} is out of range{others}; wanted 0 to {rows - 1}"


def parts_of_shard(
    plan: Plan, layout: ShardLayout, gradients: Mapping[int, Gradient], lists: RowLists
) -> list[tuple[int, Array | RowsOfPart | Packed]]:
    """The gradients for a shard, part by part, with the part's index."""
    found: list[tuple[int, Array | RowsOfPart | Packed]] = []
    for table in layout.tables:
        gradient = gradients.get(table.variable)
        if isinstance(gradient, Rows):
            rows = lists.of_keys(gradient.indices).of_part(table, gradient.values, len(table.spec.ps))
            if rows.last > rows.first or counts_updates(table.spec.optimizer):
                found.append((table.index, rows))
    for arena in layout.arenas:
        for part in arena.parts:
            gradient = gradients.get(part.variable)
            if isinstance(gradient, PackedGradient):
                found.append((part.index, gradient.parts[part.index]))
            elif isinstance(gradient, Rows):
                rows = lists.of(gradient.indices).of_part(part, gradient.values, len(plan.parts_of[part.variable]))
                # t counts for the whole variable, so also for parts without a row in this push
                counts = len(gradient.indices) and counts_updates(plan.variables[part.variable].optimizer)
                if rows.last > rows.first or counts:
                    found.append((part.index, rows))
            elif gradient is not None:
                source = split(gradient, part, len(plan.parts_of[part.variable]))
                found.append((part.index, np.ascontiguousarray(source).reshape(source.shape)))  # a scalar stays one
    return found


def values_of_shard(plan: Plan, layout: ShardLayout, values: Mapping[int, Array]) -> list[tuple[int, Array]]:
    """The values that the parts of a shard are set to, with their index. `values`: those of variables, by their
    index."""
    parts = [part for variable in values for part in plan.parts_of[variable] if part.index in layout.place]
    return [(part.index, split(values[part.variable], part, len(plan.parts_of[part.variable]))) for part in parts]
