"""The variables of a plan in checkpoints: described for a manifest, and compared with one. Errors name both sides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dps.checkpoint import Manifest, SavedPart, SavedVariable
from dps.errors import CheckpointError
from dps.variables.columns import VariableSpec
from dps.variables.plan import Plan


def describe_variable(spec: VariableSpec, parts: Sequence[SavedPart]) -> SavedVariable:
    """A variable of the plan as a manifest describes it."""
    from dps.training.averages import slots_of

    dtype, slots = np.dtype(spec.dtype).name, slots_of(spec.optimizer)
    return SavedVariable(spec.name, dtype, spec.shape, tuple(parts), spec.optimizer, slots)


def check_saved(plan: Plan, checkpoint_dir: str, manifest: Manifest) -> None:
    """Raise CheckpointError unless the checkpoint holds every variable of the plan. Other variables are ignored."""
    for spec in plan.variables:
        saved(spec, checkpoint_dir, manifest)


def saved(spec: VariableSpec, checkpoint_dir: str, manifest: Manifest) -> SavedVariable:
    """The saved variable. Raises CheckpointError if it is missing or has another shape or dtype."""
    try:
        found = manifest.variable(spec.name)
    except CheckpointError as error:
        raise CheckpointError(
            f"{spec.name} is {np.dtype(spec.dtype).name} {spec.shape} in this program; in {checkpoint_dir} {error}"
        ) from None
    if found.shape != spec.shape or np.dtype(found.dtype) != np.dtype(spec.dtype):
        raise CheckpointError(
            f"{spec.name} is {found.dtype} {found.shape} in {checkpoint_dir}/{manifest.name} and "
            f"{np.dtype(spec.dtype).name} {spec.shape} in this program; use the model that was saved, "
            "or another checkpoint_dir"
        )
    return found
