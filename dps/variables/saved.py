"""The variables of a plan in checkpoints: described for a manifest, and compared with one. Errors name both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dps.checkpoint import Manifest, SavedPart, SavedVariable
from dps.errors import CheckpointError
from dps.variables.columns import VariableSpec
from dps.variables.plan import Plan
from dps.variables.tables import TableSpec

Wire = Mapping[str, Any] | None
"""The wire form of an optimizer; None: the variable is not trained."""
KEYS = "keys"
"""The name under which the keys of a keyed table are saved, as a slot."""
STAMPS = "stamps"
"""The name under which the step of the last push of each row is saved, as a slot, if rows expire."""


def counted_name(spec: TableSpec) -> str:
    """The name under which the keys of a keyed table that are not admitted yet are saved: a variable of their counts,
    with the keys as a slot."""
    return f"{spec.name}@counted"


def describe_variable(spec: VariableSpec, parts: Sequence[SavedPart]) -> SavedVariable:
    """A variable of the plan as a manifest describes it."""
    from dps.training.averages import slots_of

    dtype, slots = np.dtype(spec.dtype).name, slots_of(spec.optimizer)
    return SavedVariable(spec.name, dtype, spec.shape, tuple(parts), spec.optimizer, slots)


def describe_table(spec: TableSpec, counts: Sequence[tuple[int, int, int]]) -> SavedVariable:
    """A keyed table as a manifest describes it: a variable of the rows that there are, with the keys as a slot.
    `counts`: for each part its rows, the number of its shard file, and how often its optimizer was applied."""
    from dps.training.averages import slots_of

    parts, rows = _parts(counts)
    slots = (*slots_of(spec.optimizer), KEYS, *([STAMPS] if spec.expire_steps else []))
    return SavedVariable(spec.name, np.dtype(spec.dtype).name, (rows, spec.dim), parts, spec.optimizer, slots)


def describe_counted(spec: TableSpec, counts: Sequence[tuple[int, int]]) -> SavedVariable:
    """The keys of a keyed table that are not admitted yet, as a manifest describes them. `counts`: for each part how
    many there are, and the number of its shard file."""
    parts, rows = _parts([(n, shard, 0) for n, shard in counts])
    return SavedVariable(counted_name(spec), "uint8", (rows,), parts, None, (KEYS,))


def _parts(counts: Sequence[tuple[int, int, int]]) -> tuple[tuple[SavedPart, ...], int]:
    """Parts that lie one after the other, and how many rows they have together."""
    parts, row = list[SavedPart](), 0
    for index, (rows, shard, updates) in enumerate(counts):
        parts.append(SavedPart(index, row, rows, shard, updates))
        row += rows
    return tuple(parts), row


def saved_counted(spec: TableSpec, manifest: Manifest) -> SavedVariable | None:
    """The saved keys that are not admitted yet; None if the table was saved without `admit`."""
    return next((found for found in manifest.variables if found.name == counted_name(spec)), None)


def saved_table(spec: TableSpec, checkpoint_dir: str, manifest: Manifest) -> SavedVariable:
    """A saved keyed table. Raises CheckpointError if it is missing or is another one."""
    try:
        found = manifest.variable(spec.name)
    except CheckpointError as error:
        raise CheckpointError(f"{spec.name} is a keyed table in this program; in {checkpoint_dir} {error}") from None
    own = np.dtype(spec.dtype).name
    if KEYS not in found.slots or found.shape[1:] != (spec.dim,) or found.dtype != own:
        kind = "a keyed table" if KEYS in found.slots else "no keyed table"
        raise CheckpointError(
            f"{spec.name} is {kind}, {found.dtype} {found.shape}, in {checkpoint_dir}/{manifest.name} and a keyed "
            f"table of {own} with dim={spec.dim} in this program; use the model that was saved, or another "
            "checkpoint_dir"
        )
    _check_optimizer(spec.name, found.optimizer, spec.optimizer, f"{checkpoint_dir}/{manifest.name}", keyed=True)
    return found


def check_saved(plan: Plan, checkpoint_dir: str, manifest: Manifest) -> None:
    """Raise CheckpointError unless the checkpoint holds every variable of the plan. `left_out` names other ones."""
    for spec in plan.variables:
        saved(spec, checkpoint_dir, manifest)
    for table in plan.tables:
        saved_table(table, checkpoint_dir, manifest)


def left_out(plan: Plan, checkpoint_dir: str, manifest: Manifest) -> str:
    """A warning that names variables of the checkpoint that the plan does not have; "" if there are none."""
    own = [spec.name for spec in plan.variables] + [spec.name for spec in plan.tables]
    read = {manifest.variable(name).name for name in own} | set(map(counted_name, plan.tables))
    names = [variable.name for variable in manifest.variables if variable.name not in read]
    if not names:
        return ""
    more = ", ..." if len(names) > MOST_NAMES else ""
    where = f"{len(names)} of the {len(manifest.variables)} variables in {checkpoint_dir}/{manifest.name}"
    return f"{where} are not restored: this program does not have {', '.join(names[:MOST_NAMES])}{more}"


MOST_NAMES = 5
"""How many variables of a checkpoint a warning names."""


def saved(spec: VariableSpec, checkpoint_dir: str, manifest: Manifest) -> SavedVariable:
    """The saved variable. Raises CheckpointError if it is missing or has another shape, dtype or optimizer."""
    try:
        found = manifest.variable(spec.name)
    except CheckpointError as error:
        raise CheckpointError(
            f"{spec.name} is {np.dtype(spec.dtype).name} {spec.shape} in this program; in {checkpoint_dir} {error}"
        ) from None
    if KEYS in found.slots:
        raise CheckpointError(
            f"{spec.name} is a keyed table in {checkpoint_dir}/{manifest.name} and has a shape in this program; use "
            "the model that was saved, or another checkpoint_dir"
        )
    if found.shape != spec.shape or np.dtype(found.dtype) != np.dtype(spec.dtype):
        raise CheckpointError(
            f"{spec.name} is {found.dtype} {found.shape} in {checkpoint_dir}/{manifest.name} and "
            f"{np.dtype(spec.dtype).name} {spec.shape} in this program; use the model that was saved, "
            "or another checkpoint_dir"
        )
    _check_optimizer(spec.name, found.optimizer, spec.optimizer, f"{checkpoint_dir}/{manifest.name}")
    return found


def _check_optimizer(name: str, found: Wire, own: Wire, where: str, keyed: bool = False) -> None:
    """Raise CheckpointError for two optimizers of the program with different rules, whose slots mean other things.
    Their numbers may differ, and a variable may be trained that was not, or not be trained any more. `keyed`: of
    a keyed table, which begins from no file."""
    if found is not None and own is not None:
        rule, own_rule = (wire.get("inner", wire).get("name") for wire in (found, own))
        if rule != own_rule:
            begun = f"dps.Variable(shape=..., dtype=..., init=dps.init.FromFile({where!r}))"
            more = "" if keyed else f"; {begun} begins there with these values, new slots and step 0"
            raise CheckpointError(
                f"{name} is trained with {rule} in {where} and with {own_rule} in this program; use the optimizer that "
                f"was saved, or another checkpoint_dir{more}"
            )


def share_slots(found: Wire, own: Wire) -> bool:
    """Whether the slots and the count of updates that were saved with an optimizer of the ps are those of another one.
    They are not if a variable was not trained, or if only one of both applies the rounds of local mode."""
    return found is not None and own is not None and _rule(found) == _rule(own)


def _rule(wire: Mapping[str, Any]) -> tuple[Any, bool]:
    return wire.get("name"), "inner" in wire
