"""Checkpoints that one worker writes of its own copies, in the format that a chief and its ps write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dps.checkpoint import (
    Manifest,
    SavedPart,
    SavedShard,
    SavedVariable,
    candidates,
    commit,
    folder_name,
    newest_whole,
    parse_folder_name,
    part_t,
    read_part,
    retain,
    tensor_name,
    write_shard,
)
from dps.checkpoint.names import join
from dps.optim import from_wire
from dps.telemetry import log
from dps.transport.endpoint import Runtime
from dps.transport.wire import Array
from dps.variables.plan import Plan
from dps.variables.saved import check_saved

KEPT = 5
"""The number of newest checkpoints that are kept, as by a session."""


class Checkpoints:
    """The checkpoints in one folder. Each time that a run begins there is one run epoch, under a rising number."""

    def __init__(self, folder: str, runtime: Runtime) -> None:
        self._folder, self._runtime, self._storage = folder, runtime, runtime.storage
        self._saved = ""
        self._epoch = 0

    def _begin(self) -> int:
        """The number of this run's epoch."""
        if not self._epoch:
            names = candidates(self._storage, self._folder)
            self._epoch = 1 + max([parsed[0] for name in names if (parsed := parse_folder_name(name))], default=0)
        return self._epoch

    def restore(self, plan: Plan, put: Callable[[str, str, Array, int], None]) -> int:
        """Hand the newest whole checkpoint to `put`: name, slot, values, updates of the variable. Returns its step, 0
        if there is none. Raises CheckpointError if it does not fit."""
        self._begin()
        manifest = newest_whole(self._storage, self._folder, log.warning)
        if manifest is None:
            return 0
        check_saved(plan, self._folder, manifest)
        for spec in plan.variables:
            rows = spec.shape[0] if spec.shape else 1
            applied = part_t(manifest, spec.name, 0, rows)
            saved = manifest.variable(spec.name).slots
            for slot in ("", *(slot for slot in _slots(spec.optimizer) if slot in saved)):
                args = self._storage, self._folder, manifest, spec.name, 0, rows, slot or None
                put(spec.name, slot, np.asarray(read_part(*args)), applied)
        log.info("restored %s/%s", self._folder, manifest.name)
        return manifest.step

    def save(
        self, plan: Plan, step: int, applied: Mapping[str, int], state: Sequence[tuple[str, str, Array]],
        position: bytes = b"",
    ) -> str:  # fmt: skip
        """Write values, slots and the position of the input; returns the checkpoint's name. Raises CheckpointError."""
        name = folder_name(step, self._begin())
        if name == self._saved:
            return name
        shapes = {spec.name: spec.shape for spec in plan.variables}
        tensors = {}
        for variable, slot, array in state:
            shape = shapes[variable]
            by_rows = slot and array.size != int(np.prod(shape))
            tensors[tensor_name(variable, 0, 1, slot or None)] = array.reshape(shape[:1] if by_rows else shape)
        file = write_shard(self._storage, join(self._folder, name), 0, 1, tensors, {})
        variables = tuple(
            SavedVariable(
                spec.name, np.dtype(spec.dtype).name, spec.shape,
                (SavedPart(0, 0, spec.shape[0] if spec.shape else 1, 0, applied[spec.name]),),
                spec.optimizer, _slots(spec.optimizer),
            )
            for spec in plan.variables
        )  # fmt: skip
        about = dict[str, object](), self._runtime.wall(), True
        manifest = Manifest(step, self._epoch, (SavedShard(file, step),), variables, *about, tied=dict(plan.tied))
        commit(self._storage, self._folder, manifest, position)
        retain(self._storage, self._folder, KEPT)
        self._saved = name
        log.info("saved %s/%s", self._folder, name)
        return name


def _slots(optimizer: Mapping[str, object] | None) -> tuple[str, ...]:
    return () if optimizer is None else tuple(from_wire(optimizer).slots)
