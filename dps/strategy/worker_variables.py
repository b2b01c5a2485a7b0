"""Variables of which each of several workers has copies: updated with the sum of all workers' gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.checkpoint import (
    Manifest,
    SavedPart,
    SavedShard,
    commit,
    folder_name,
    last_epoch,
    newest_to_begin,
    part_t,
    read_part,
    retain,
    tensor_name,
    write_shard,
)
from dps.checkpoint.files import join
from dps.errors import ConfigError
from dps.kernels import halves
from dps.process.telemetry import log
from dps.strategy.mirrored_variables import ONLY_FIRST, MirroredVariables
from dps.strategy.reduction import sum_gradients
from dps.task.server import Server
from dps.training.averages import SLOT, slots_of
from dps.training.optimizers import Optimizer
from dps.transport.endpoint import Runtime
from dps.transport.wire import Array
from dps.variables.plan import Plan
from dps.variables.saved import check_saved, describe_variable, left_out, share_slots
from dps.variables.tree import Rows

if TYPE_CHECKING:
    from dps.messages.replies import Push
    from dps.strategy.local import Local
    from dps.strategy.multi_worker import MultiWorkerMirrored


class WorkerVariables(MirroredVariables):
    """This worker's copies. They begin as those of worker 0, which may have restored them from a checkpoint."""

    strategy: MultiWorkerMirrored | Local

    def __init__(
        self, strategy: MultiWorkerMirrored | Local, params: Any, optimizer: Optimizer | None,
        homes: Sequence[int | None], home_of: Sequence[int],
    ) -> None:  # fmt: skip
        super().__init__(strategy, params, optimizer, homes, home_of)
        assert isinstance(strategy.server, Server), "an address has no workers' group"
        self._server = strategy.server
        self._zeros: dict[str, Array] = {}
        self._checkpoints: WorkerCheckpoints | None = None
        self._check_agreed()
        if strategy.checkpoint_dir is not None:
            self._checkpoints = WorkerCheckpoints(strategy.checkpoint_dir, self._server.runtime)
        self._copy_first_worker()

    def _describe_variables(self) -> list[str]:
        """What has to be the same on all workers, each as a line."""
        return [f"{spec.name} {spec.dtype}{list(spec.shape)} {spec.optimizer}" for spec in self._plan.variables]

    def _check_agreed(self) -> None:
        """Raise ConfigError if another worker has other variables."""
        own = self._describe_variables()
        texts = self.strategy.group.gather([np.frombuffer("\n".join(own).encode(), np.uint8)])
        for name, (text,) in zip(self.strategy.group.members, texts, strict=True):
            theirs = bytes(text).decode().split("\n")
            if theirs != own:
                differs = next((pair for pair in zip(own, theirs, strict=False) if pair[0] != pair[1]), None)
                mine, other = differs or (f"{len(own)} variables", f"{len(theirs)} variables")
                raise ConfigError(
                    f"variables: {self._server.name} has {mine}, {name} has {other}; all workers must make the "
                    "same ones"
                )

    def _copy_first_worker(self) -> None:
        """Take the values, the optimizers' slots and the step of the first worker."""
        step = None
        if self._checkpoints is not None and self.strategy.leads:
            step = self._checkpoints.restore_newest(self._plan, self._restore_array)
        state = self._state()
        arrays = [array for _, _, array in state]
        counts = np.array([step is not None, step or 0, *self._applied.values()], np.int64)
        *found, counts = self.strategy.group.broadcast([*arrays, counts])
        is_saved, self._step, *applied = (int(count) for count in counts)
        self._applied = dict(zip(self._applied, applied, strict=True))
        for (name, slot, _), array in zip(state, found, strict=True):
            self._set_array(name, slot, array)
            if is_saved and name in self._own[0]:  # what all replicas had together; a first value is that of each
                self._spread_own(name, array)

    def _state(self) -> list[tuple[str, str, Array]]:
        """All values, and the slots of their optimizers: name, slot ("" for the values), array on the host."""
        found = []
        for name in self._specs:
            if name in self._own[0]:
                found.append((name, "", self._own[0][name]))
                continue
            copy = self._copies[0][name]
            found.append((name, "", copy.host()))
            found += [(name, slot, array) for slot, array in copy.slots().items()]
        return found

    def _set_array(self, name: str, slot: str, array: Array) -> None:
        if name in self._own[0]:
            for own in self._own:
                own[name] = array.copy()
            return
        for copies in self._copies:
            if slot:
                copies[name].load(slot, array)
            else:
                copies[name].assign(array)

    def _restore_array(self, name: str, slot: str, array: Array, applied: int) -> None:
        self._set_array(name, slot, array)
        self._applied[name] = applied

    # -- steps ----------------------------------------------------------------------------------------------------

    def _reduce_over_workers(self, sums: Mapping[str, Array | Rows]) -> dict[str, Array | Rows]:
        """As MirroredVariables: the sums over the replicas of all workers. Blocks."""
        trained = [spec.name for spec in self._plan.variables if spec.optimizer is not None]
        if not trained:
            return {}
        dense = [self._dense_gradient(name, sums.get(name)) for name in trained]
        has = np.zeros((2, len(trained)), dense[0].dtype)
        for index, name in enumerate(trained):
            if name in sums:
                has[int(isinstance(sums[name], Rows)), index] = 1
        *totals, has = self.strategy.group.all_reduce([*dense, has])
        found: dict[str, Array | Rows] = {name: totals[i] for i, name in enumerate(trained) if has[0, i]}
        with_rows = [name for i, name in enumerate(trained) if has[1, i]]
        if not with_rows:
            return found
        found = {name: np.array(total) for name, total in found.items()}  # further operations use their memory
        return {**found, **self._gather_rows(with_rows, sums, found)}

    def _dense_gradient(self, name: str, gradient: Array | Rows | None) -> Array:
        """A gradient as it is sent; zeros if there is none, and for rows, which are sent separately."""
        if gradient is not None and not isinstance(gradient, Rows):
            return np.asarray(halves.widened(gradient))
        zeros = self._zeros.get(name)
        if zeros is None:
            shape, dtype = self._specs[name]
            zeros = self._zeros[name] = np.zeros(shape, np.float32 if halves.is_half(dtype) else dtype)
        return zeros

    def _gather_rows(
        self, names: Sequence[str], sums: Mapping[str, Any], dense: Mapping[str, Any]
    ) -> dict[str, Array | Rows]:  # fmt: skip
        """The sums of variables for which some worker has rows: of all workers' rows, one after the other."""
        own: list[Array] = []
        for name in names:
            rows, (shape, dtype) = sums.get(name), self._specs[name]
            kind = np.dtype(np.float32) if halves.is_half(dtype) else dtype
            if not isinstance(rows, Rows):
                rows = Rows(np.zeros(0, np.int64), np.zeros((0, *shape[1:]), kind))
            own += [np.asarray(rows.indices, np.int64), np.asarray(halves.widened(rows.values)).astype(kind)]
        parts = self.strategy.group.gather(own)
        found: dict[str, Array | Rows] = {}
        for index, name in enumerate(names):
            of_workers: list[Any] = [Rows(part[2 * index], part[2 * index + 1]) for part in parts]
            found[name] = sum_gradients(([dense[name]] if name in dense else []) + of_workers, self._specs[name][0])
        return found

    def _apply_sum(self, of_replicas: Sequence[Mapping[str, Any]]) -> Push:
        push = super()._apply_sum(of_replicas)
        self.strategy.home.pushed(push.step, None, self._server.runtime.now())
        every = self.strategy.save_steps
        if every is not None and push.step % every == 0:
            self.save()
        return push

    # -- the values of all workers ----------------------------------------------------------------------------------

    def _aggregate_values(self, name: str, values: Sequence[Array]) -> Array:
        aggregation = self._aggregation.get(name) or ONLY_FIRST
        if aggregation == ONLY_FIRST:
            return self.strategy.group.broadcast([values[0]])[0]
        return np.asarray(self.strategy.over_replicas(aggregation, values), values[0].dtype)

    def _values_of_first(self, values: Mapping[str, Array]) -> Mapping[str, Array]:
        """The values of the first worker, so that all copies stay the same. Blocks until all workers set them."""
        names = sorted(values)
        rows = self.strategy.group.gather([np.frombuffer("\n".join(names).encode(), np.uint8)])
        for worker, (row,) in zip(self.strategy.group.members, rows, strict=True):
            if (theirs := bytes(row).decode().split("\n")) != names:
                raise ConfigError(
                    f"assign: {self._server.name} sets {', '.join(names)}, {worker} sets {', '.join(theirs)}; all "
                    "workers must set the same variables"
                )
        return dict(zip(names, self.strategy.group.broadcast([values[name] for name in names]), strict=True))

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def save(self, position: bytes = b"") -> str:
        """Write a checkpoint of this step, unless it is there already; only the leading worker does.

        Variables with `synchronization="on_read"` are saved as `read` gives them outside of replicas. Where there are
        such, all workers have to call it, and it blocks until they do. Of a sum that is restored, the first replica
        gets all, and the others zeros.

        Args:
            position: The position of the input, which is kept with the checkpoint (see `dps.data.InputSaver`).

        Returns:
            Its name; "" on other workers.

        Raises:
            ConfigError: The strategy has no checkpoint_dir.
            CheckpointError: The folder cannot be written.
            DeadlineExceeded: A worker whose values are needed did not come in time; the message names it.
        """
        if self._checkpoints is None:
            raise ConfigError(
                f"save: the strategy was given no folder; use {type(self.strategy).__name__}(checkpoint_dir=)"
            )
        own = self._reduce_on_read()
        if not self.strategy.leads:
            return ""
        state = [(name, slot, own.get(name, array)) for name, slot, array in self._state()]
        return self._checkpoints.save_checkpoint(self._plan, self._step, self._applied, state, position)

    @property
    def needs_all(self) -> bool:
        """Whether a checkpoint has values of all workers, so that all have to save it."""
        return bool(self._own[0])

    def finish_training(self) -> None:
        """The strategy is closed: save the last step."""
        if self._checkpoints is not None and self._step:
            self.save()


KEPT = 5
"""The number of newest checkpoints that are kept, as by a session."""


class WorkerCheckpoints:
    """The checkpoints in one folder. Each time that a run begins there is one run epoch, under a rising number."""

    def __init__(self, folder: str, runtime: Runtime) -> None:
        self._folder, self._runtime, self._storage = folder, runtime, runtime.storage
        self._saved = ""
        self._epoch = 0

    def _epoch_number(self) -> int:
        """The number of this run's epoch."""
        if not self._epoch:
            self._epoch = 1 + last_epoch(self._storage, self._folder)
        return self._epoch

    def restore_newest(self, plan: Plan, put: Callable[[str, str, Array, int], None]) -> int | None:
        """Hand the newest whole checkpoint to `put`: name, slot, values, updates of the variable. Returns its step,
        or None if there is none. Raises CheckpointError if it does not fit, or if all are damaged."""
        self._epoch_number()
        manifest = newest_to_begin(self._storage, self._folder, log.warning)
        if manifest is None:
            return None
        check_saved(plan, self._folder, manifest)
        if text := left_out(plan, self._folder, manifest):
            log.warning("%s", text)
        for spec in plan.variables:
            rows = spec.shape[0] if spec.shape else 1
            found = manifest.variable(spec.name)
            goes_on = share_slots(found.optimizer, spec.optimizer)
            applied = part_t(manifest, spec.name, 0, rows) if goes_on else 0
            slots = [slot for slot in slots_of(spec.optimizer) if slot in found.slots and (goes_on or slot == SLOT)]
            for slot in ("", *slots):
                args = self._storage, self._folder, manifest, spec.name, 0, rows, slot or None
                put(spec.name, slot, np.asarray(read_part(*args)), applied)
        log.info("restored %s/%s", self._folder, manifest.name)
        return manifest.step

    def save_checkpoint(
        self, plan: Plan, step: int, applied: Mapping[str, int], state: Sequence[tuple[str, str, Array]],
        position: bytes = b"",
    ) -> str:  # fmt: skip
        """Write values, slots and the position of the input; returns the checkpoint's name. Raises CheckpointError."""
        name = folder_name(step, self._epoch_number())
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
            describe_variable(spec, [SavedPart(0, 0, spec.shape[0] if spec.shape else 1, 0, applied[spec.name])])
            for spec in plan.variables
        )
        about = dict[str, object](), self._runtime.wall(), True
        manifest = Manifest(step, self._epoch, (SavedShard(file, step),), variables, *about, tied=dict(plan.tied))
        commit(self._storage, self._folder, manifest, position)
        retain(self._storage, self._folder, KEPT)
        self._saved = name
        log.info("saved %s/%s", self._folder, name)
        return name
