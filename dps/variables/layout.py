"""Between a user's nested arrays and the parts of the plan: gathers gradients into runs, assembles pulled values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dps.optim import counts_updates
from dps.transport.wire import Array
from dps.variables.plan import Part, Plan, ShardLayout, VariableSpec
from dps.variables.tree import Rows, to_array

Gradient = Array | Rows

MANY = 64
"""Variables of a shard from which on they are gathered in one call."""


def specs_of(
    found: list[tuple[str, Array, dict[str, Any] | None, bool]],
) -> list[VariableSpec]:
    """Logical variables from (name, array, optimizer wire form, sparse)."""
    return [VariableSpec(n, tuple(a.shape), a.dtype.str, o, sparse) for n, a, o, sparse in found]


def split(array: Array, part: Part, parts: int) -> Array:
    """A part's rows of a logical array."""
    return array if parts == 1 else array[part.row0 : part.row0 + part.shape[0]]


def assemble(plan: Plan, views: Mapping[int, Array], names: Mapping[str, int]) -> Callable[[str], Array]:
    """A function from a variable's name to its array, out of the parts in `views` (part index to array)."""

    only_part = plan.only_part

    def leaf(name: str) -> Array:
        if name in only_part:
            return views[only_part[name]]
        parts = plan.parts_of[names[name]]
        return np.concatenate([views[p.index] for p in parts])

    return leaf


def check_gradients(plan: Plan, found: list[tuple[str, Any]]) -> dict[int, Gradient]:
    """Gradients by variable index, checked against names, shapes and dtypes. ValueError says got and wanted.

    A leaf that is None, like a missing key, means no gradient for that variable.
    """
    gradients: dict[int, Gradient] = {}
    by_name, variables, dtypes = plan.by_name, plan.variables, plan.dtypes
    for name, value in found:
        if value is None:
            continue
        index = by_name.get(name)
        if index is None:
            known = ", ".join(list(plan.by_name)[:10])
            raise ValueError(f"a gradient came for {name!r}, which is no variable; there are {known}")
        spec = variables[index]
        if spec.optimizer is None:
            raise ValueError(f"a gradient came for {name!r}, which is not trained; leave it out or pass None")
        if isinstance(value, Rows):
            gradients[index] = _checked_rows(spec, value)
            continue
        array = value if type(value) is np.ndarray and value.flags.c_contiguous else to_array(value, name)
        if array.shape == spec.shape and array.dtype == dtypes[index]:
            gradients[index] = array
            continue
        array = to_array(value, name)
        if array.shape != spec.shape:
            raise ValueError(f"the gradient of {name} has shape {array.shape}; the variable has {spec.shape}")
        if array.dtype.str != spec.dtype:
            dtype = np.dtype(spec.dtype).name
            raise ValueError(
                f"the gradient of {name} is {array.dtype.name}; the variable is {dtype}: cast with .astype('{dtype}')"
            )
        gradients[index] = array
    return gradients


def _checked_rows(spec: VariableSpec, gradient: Rows) -> Rows:
    indices = np.asarray(gradient.indices)
    values = to_array(gradient.values, spec.name)
    if not spec.shape:
        raise ValueError(f"{spec.name} is a scalar; its gradient cannot come as Rows")
    if indices.ndim != 1 or (indices.dtype.kind not in "iu" and len(indices)):
        raise ValueError(
            f"Rows of {spec.name}: indices are integers of shape (n,), got {indices.dtype} {indices.shape}"
        )
    if values.shape != (len(indices), *spec.shape[1:]) or values.dtype.str != spec.dtype:
        raise ValueError(
            f"Rows of {spec.name}: got values {values.dtype.name} {values.shape}; wanted {np.dtype(spec.dtype).name} "
            f"{(len(indices), *spec.shape[1:])}"
        )
    check_rows(spec, indices)
    return Rows(indices.astype(np.int64), values)


def check_rows(spec: VariableSpec, indices: Array) -> None:
    """ValueError when a row number is out of range."""
    if len(indices) and not (int(indices.min()) >= 0 and int(indices.max()) < spec.shape[0]):
        raise ValueError(
            f"row numbers of {spec.name} go from 0 to {spec.shape[0] - 1}, got {indices.min()} to {indices.max()}"
        )


def is_whole(plan: Plan, layout: ShardLayout, gradients: Mapping[int, Gradient]) -> bool:
    """Whether every trained part of a shard has a dense gradient."""
    return all(isinstance(gradients.get(index), np.ndarray) for index in layout.trained)


def fill_run(
    plan: Plan, layout: ShardLayout, gradients: Mapping[int, Gradient], run: Array,
    views: Mapping[int, Array] | None = None,
) -> None:  # fmt: skip
    """Copy dense gradients into a shard's run; those that lie there already are left.

    `views`: the run's parts, as the user has them; None: no gradient lies in the run.
    """
    if views is None and _gather(plan, layout, gradients, run):
        return
    for index, view in (layout.views(run) if views is None else views).items():
        part = plan.parts[index]
        gradient = gradients.get(part.variable)
        if gradient is view or not isinstance(gradient, np.ndarray):
            continue
        source = split(gradient, part, len(plan.parts_of[part.variable]))
        if source.__array_interface__["data"][0] != view.__array_interface__["data"][0]:
            view[...] = source


def _gather(plan: Plan, layout: ShardLayout, gradients: Mapping[int, Gradient], run: Array) -> bool:
    """Copy all gradients of a shard's small variables in one call of numpy's; False where it is not for this."""
    if len(layout.trained) < MANY or len(plan.only_part) < len(plan.variables):
        return False
    if not is_whole(plan, layout, gradients):
        return False
    for arena in layout.arenas:
        if arena.optimizer is None:
            continue
        flat = run[arena.offset : arena.offset + arena.nbytes].view(arena.dtype)
        sources = [gradients[part.variable] for part in arena.parts]
        np.concatenate([source.reshape(-1) for source in sources], out=flat)  # type: ignore[union-attr]
    return True


def parts_of_shard(plan: Plan, layout: ShardLayout, gradients: Mapping[int, Gradient]) -> list[tuple[int, Any]]:
    """The gradients that a shard gets part by part: arrays, or (row numbers within the part, values)."""
    found: list[tuple[int, Any]] = []
    for arena in layout.arenas:
        for part in arena.parts:
            gradient = gradients.get(part.variable)
            parts = len(plan.parts_of[part.variable])
            if isinstance(gradient, Rows):
                inside = slice(None) if parts == 1 else (gradient.indices >= part.row0) & (
                    gradient.indices < part.row0 + part.shape[0]
                )  # fmt: skip
                rows = gradient.indices[inside] - (0 if parts == 1 else part.row0)
                # t is the variable's: parts without a row in this push count it, too
                if len(rows) or (len(gradient.indices) and counts_updates(plan.variables[part.variable].optimizer)):
                    found.append((part.index, (rows, np.ascontiguousarray(gradient.values[inside]))))
            elif gradient is not None:
                source = split(gradient, part, parts)  # ascontiguousarray makes a row of a scalar
                found.append((part.index, np.ascontiguousarray(source).reshape(source.shape)))
    return found
