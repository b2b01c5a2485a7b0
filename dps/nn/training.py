"""The training of `fit`: epochs of steps under the model's strategy, with callbacks and hooks around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from dps.cluster.partition import split_rows
from dps.errors import DataError
from dps.hooks.chain import Chain
from dps.hooks.hook import Hook
from dps.nn.batches import Batch, Batches, named
from dps.nn.callbacks import Callback
from dps.nn.compiled import Compiled
from dps.nn.loop import LocalLoop
from dps.nn.network import Network
from dps.nn.totals import SharedTotals
from dps.optim import SGD
from dps.strategy.strategy import Strategy
from dps.strategy.values import PerReplica
from dps.strategy.variables import Variables


def parts_of(batch: Batch, parts: int) -> list[Batch]:
    """A batch in parts; the first ones have an example more where it does not divide."""
    found, start = [], 0
    for rows in split_rows(batch.size, parts):
        xs = [x[start : start + rows] for x in batch.xs]
        found.append(Batch(xs, None if batch.y is None else batch.y[start : start + rows]))
        start += rows
    return found


class Training:
    """One call of `fit`."""

    def __init__(
        self, network: Network, compiled: Compiled, strategy: Strategy, variables: Variables,
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

    def run(
        self, batches: Batches, epochs: range, steps: int | None, seed: int | None,
        validate: Callable[[], dict[str, float]], stopped: Callable[[], bool],
    ) -> None:  # fmt: skip
        """All epochs. `steps`: of an epoch; `seed`: shuffles; `stopped`: whether a callback asked for the end."""
        self._hooks.call("begin")
        self._hooks.call("after_create_session", self._loop)
        self._call("on_train_begin", {})
        logs: dict[str, float] = {}
        for epoch in epochs:
            if stopped() or self._loop.should_stop():
                break
            self._call("on_epoch_begin", epoch, {})
            logs = self._epoch(batches, epoch, steps, seed)
            logs |= validate()
            for name, value in logs.items():
                self._loop.summary(f"epoch_{name}", value)
            self._call("on_epoch_end", epoch, logs)
        self._call("on_train_end", logs)
        self._hooks.call("end", self._loop)

    def _epoch(self, batches: Batches, epoch: int, steps: int | None, seed: int | None) -> dict[str, float]:
        sums, count = self._compiled.nothing(), 0
        if self._shared is not None:
            self._shared.begin(epoch)
        for batch in _at_most(batches.epoch(epoch, seed), steps):
            if self._loop.should_stop():
                break
            where = f"{batches.what}: batch {count + 1} of epoch {epoch + 1}"
            self._network.check(batch.xs, where)
            self._call("on_train_batch_begin", count, {})
            with named(where):
                sums += self._step(batch)
            self._call("on_train_batch_end", count, self._compiled.logs(sums))
            count += 1
        else:
            _check_count(batches.what, epoch, count, steps)
        if self._shared is not None:
            sums = self._shared.end(count, sums)
        return self._compiled.logs(sums)

    def _step(self, batch: Batch) -> Any:
        """One step of all replicas; the sums of those of this process."""
        strategy, first = self._strategy, self._strategy.first_replica
        self._hooks.call("before_run", self._loop)
        parts = parts_of(batch, strategy.num_replicas_in_sync)[first : first + strategy.local_replicas]
        found = strategy.local_results(strategy.run(self._replica, args=(PerReplica(parts), batch.size)))
        total, push = sum(sums for sums, _ in found), found[-1][1]
        if isinstance(self._loop, LocalLoop):
            self._loop.global_step = push.step
        if self._shared is not None and not push.accepted:
            self._shared.broken = True
        self._hooks.call("after_run", self._loop, push, self._compiled.logs(total).get("loss"))
        return total

    def _replica(self, part: Batch, size: int) -> list[Any]:
        """One replica's part of a step."""
        sums, loss, grads = self._compiled.nothing(), None, dict[str, Any]()
        if part.size:

            def scaled(out: Any) -> tuple[Any, Any]:
                losses, gradient = self._compiled.loss(part.y, out)
                return losses, np.asarray(gradient) / out.dtype.type(size)

            made = self._network.train(self._variables.read(), part.xs, scaled)
            sums, grads = self._compiled.sums(part.y, made.out, made.losses), made.grads
            loss = float(sums[1] / sums[0])
        if self._shared is not None:
            grads = {**grads, **self._shared.gradient(sums)}
        return [sums, self._variables.apply_gradients(grads, loss=loss)]

    def _call(self, method: str, *arguments: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, method)(*arguments)


def _at_most(batches: Iterator[Batch], steps: int | None) -> Iterator[Batch]:
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
    return {**params, **SharedTotals.variable(SGD(1.0))}
