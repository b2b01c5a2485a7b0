"""The training of `fit`: epochs of steps under the model's strategy, with callbacks and hooks around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.cluster.partition import split_rows
from dps.errors import ConfigError, DataError
from dps.hooks.hook import Chain, Hook
from dps.hooks.scalars import Scalars
from dps.nn.batches import Batches, ModelBatch, name_source
from dps.nn.callbacks import Callback
from dps.nn.compiled import CompileSettings
from dps.nn.metrics import SharedTotals
from dps.nn.network import BuiltModel
from dps.process import config
from dps.strategy.strategy import Strategy, Variables
from dps.strategy.values import PerReplica
from dps.training.optimizers import SGD
from dps.transport.current import runtime
from dps.transport.endpoint import Runtime
from dps.variables.tree import leaves

if TYPE_CHECKING:
    from dps.hooks.gradient_norms import GradientNorms


class LocalLoop:
    """As much of `dps.Session` as there is without a ps; see `dps.hooks.hook.Loop`."""

    name = "model"

    def __init__(self, variables: Variables) -> None:
        self._variables, self._stop = variables, False
        self.scalars, self.global_step = Scalars(), int(getattr(variables, "step", 0))
        self._norms: list[GradientNorms] = []

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that writes files."""
        return not self._variables.strategy.first_replica

    @property
    def checkpoint_dir(self) -> str | None:
        """Where this process keeps checkpoints, if its strategy does."""
        found: str | None = getattr(self._variables.strategy, "checkpoint_dir", None)
        return found if hasattr(self._variables, "save") else None

    @property
    def runtime(self) -> Runtime:
        """The clock and the storage."""
        return runtime()

    def should_stop(self) -> bool:
        """Whether a hook, or Ctrl-C, asked for the end."""
        return self._stop or config.stop_requested.is_set()

    def request_stop(self) -> None:
        """Make `should_stop` true."""
        self._stop = True

    def summary(self, name: str, value: Any) -> None:
        """Keep a number for hooks."""
        self.scalars.store_value(name, value)

    def watch_gradient_norms(self, function: Callable[[float], None]) -> None:
        """As of `dps.Session`, for the gradients of each replica of this process."""
        from dps.hooks.gradient_norms import GradientNorms

        self._norms.append(GradientNorms(function, self.runtime.now))

    def measure_gradients(self, gradients: Mapping[str, Any]) -> None:
        """A replica has these gradients."""
        for norms in self._norms:
            norms.measure([gradient for _, gradient in leaves(gradients) if gradient is not None])

    def stats(self) -> dict[str, Any]:
        """There are no ps, and no counters of theirs."""
        return {}

    def pull(self) -> Any:
        """The values now."""
        return self._variables.read()

    def save(self, timeout: float | None = None, position: bytes = b"") -> str:
        """Write a checkpoint, if the strategy can without ps; else ConfigError."""
        if hasattr(self._variables, "save"):
            return str(self._variables.save(position))
        raise ConfigError("a model without ps has no run checkpoints; use dps.nn.ModelCheckpoint, or ParameterServer")


def parts_of(batch: ModelBatch, parts: int) -> list[ModelBatch]:
    """A batch in parts; the first ones have an example more where it does not divide."""
    found, start = [], 0
    for rows in split_rows(batch.size, parts):
        xs = [x[start : start + rows] for x in batch.xs]
        found.append(ModelBatch(xs, None if batch.y is None else batch.y[start : start + rows]))
        start += rows
    return found


class Training:
    """One call of `fit`."""

    def __init__(
        self, network: BuiltModel, compiled: CompileSettings, strategy: Strategy, variables: Variables,
        callbacks: Sequence[Callback], hooks: Sequence[Hook],
    ) -> None:  # fmt: skip
        self._network, self._compiled, self._strategy, self._variables = network, compiled, strategy, variables
        self._callbacks = callbacks
        self._loop: Any = getattr(variables, "session", None) or LocalLoop(variables)
        self._hooks = Chain(hooks, lambda: str(self._loop.name), lambda text: None)
        together = strategy.num_replicas_in_sync > strategy.local_replicas
        if getattr(self._loop, "traffic", None) is not None:  # compressed numbers are no sums
            together = False
        self._shared = SharedTotals(variables, strategy.num_replicas_in_sync) if together else None
        self._steps = 0

    def run_epochs(
        self, batches: Batches, epochs: range, steps: int | None, seed: int | None,
        validate: Callable[[], dict[str, float]], stopped: Callable[[], bool],
    ) -> None:  # fmt: skip
        """All epochs. `steps`: of an epoch; `seed`: shuffles; `stopped`: whether a callback asked for the end."""
        self._hooks.call_hooks("begin")
        self._hooks.call_hooks("after_create_session", self._loop)
        self._call_callbacks("on_train_begin", {})
        logs: dict[str, float] = {}
        for epoch in epochs:
            if stopped() or self._loop.should_stop():
                break
            self._call_callbacks("on_epoch_begin", epoch, {})
            logs = self._run_epoch(batches, epoch, steps, seed)
            logs |= validate()
            for name, value in logs.items():
                self._loop.summary(f"epoch_{name}", value)
            self._call_callbacks("on_epoch_end", epoch, logs)
        self._call_callbacks("on_train_end", logs)
        self._hooks.call_hooks("end", self._loop)

    def _run_epoch(self, batches: Batches, epoch: int, steps: int | None, seed: int | None) -> dict[str, float]:
        sums, count = self._compiled.nothing(), 0
        if self._shared is not None:
            self._shared.begin_epoch(epoch)
        for batch in _at_most(batches.epoch(epoch, seed), steps):
            if self._loop.should_stop():
                break
            where = f"{batches.what}: batch {count + 1} of epoch {epoch + 1}"
            self._network.check_inputs(batch.xs, where)
            self._call_callbacks("on_train_batch_begin", count, {})
            with name_source(where):
                sums += self._run_step(batch)
            self._call_callbacks("on_train_batch_end", count, self._compiled.logs(sums))
            count += 1
        else:
            _check_count(batches.what, epoch, count, steps)
        if self._shared is not None:
            sums = self._shared.end_epoch(count, sums)
        return self._compiled.logs(sums)

    def _run_step(self, batch: ModelBatch) -> Any:
        """One step of all replicas; the sums of those of this process."""
        strategy, first = self._strategy, self._strategy.first_replica
        self._hooks.call_hooks("before_run", self._loop)
        parts = parts_of(batch, strategy.num_replicas_in_sync)[first : first + strategy.local_replicas]
        found = strategy.local_results(strategy.run(self._run_replica, args=(PerReplica(parts), batch.size)))
        total, push = sum(sums for sums, _ in found), found[-1][1]
        if isinstance(self._loop, LocalLoop):
            self._loop.global_step = push.step
        if self._shared is not None and not push.accepted:
            self._shared.broken = True
        self._hooks.call_hooks("after_run", self._loop, push, self._compiled.logs(total).get("loss"))
        return total

    def _run_replica(self, part: ModelBatch, size: int) -> list[Any]:
        """One replica's part of a step."""
        sums, loss, grads = self._compiled.nothing(), None, dict[str, Any]()
        if part.size:

            def scaled(out: Any) -> tuple[Any, Any]:
                losses, gradient = self._compiled.loss(part.y, out)
                return losses, np.asarray(gradient) / out.dtype.type(size)

            made = self._network.train_batch(self._variables.read(), part.xs, scaled)
            sums, grads = self._compiled.sums(part.y, made.out, made.losses), made.grads
            loss = float(sums[1] / sums[0])
        if isinstance(self._loop, LocalLoop):
            self._loop.measure_gradients(grads)
        if self._shared is not None:
            grads = {**grads, **self._shared.make_gradient(sums)}
        return [sums, self._variables.apply_gradients(grads, loss=loss)]

    def _call_callbacks(self, method: str, *arguments: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, method)(*arguments)


def _at_most(batches: Iterator[ModelBatch], steps: int | None) -> Iterator[ModelBatch]:
    return batches if steps is None else islice(batches, steps)


def _check_count(what: str, epoch: int, count: int, steps: int | None) -> None:
    """DataError for an epoch with fewer batches than there had to be."""
    if count and (steps is None or count == steps):
        return
    wanted = "at least one" if steps is None else f"steps_per_epoch={steps}"
    raise DataError(
        f"{what}: epoch {epoch + 1} has {count} batches, wanted {wanted}: the data has ended; give a dataset that can "
        "be read again, .repeat() it, or ask for fewer epochs or steps"
    )


def totals_of(params: dict[str, Any], strategy: Strategy) -> dict[str, Any]:
    """The parameters, and what their strategy needs to sum losses and metrics over workers."""
    if strategy.num_replicas_in_sync == strategy.local_replicas:
        return params
    return {**params, **SharedTotals.make_variable(SGD(1.0))}
