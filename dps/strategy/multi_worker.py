"""Replicas on the devices of several workers, without a ps: their gradients are summed from worker to worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dps.cluster.device import Device
from dps.collectives.group import Group
from dps.errors import ConfigError
from dps.strategy.across import AcrossWorkers
from dps.strategy.one_machine import homes_of, resolve_devices
from dps.strategy.strategy import Variables
from dps.task.server import Server
from dps.training.optimizers import Optimizer

ALGORITHMS = ("auto", "ring", "tree", "direct", "all", "ps")
ON_LOSS = ("continue", "end")


class MultiWorkerMirrored(AcrossWorkers):
    """A replica on each device of each worker; all keep copies of the variables, and sum gradients by all-reduce.

    The cluster needs no ps. Every worker runs the same program and makes the same calls: `variables`,
    `apply_gradients`, `reduce`, `gather` and the calls of replicas are barriers over all workers, and give all of them
    the same bits.
    `distribute_dataset` gives each replica its part of the global batch. Values begin as worker 0 has them.

    A worker that is lost is named in a warning. With `on_loss="continue"` the others go on: global batches are then
    split among them, and in the step in which it was lost its part is missing. Worker 0 (or the first that is left)
    writes checkpoints, in the format of the ps. Use the strategy in a `with` block, or call `close`.

    Args:
        server: This process's `dps.Server`, a worker.
        devices: As of `Mirrored`; each worker says its own.
        cross_device_ops: How gradients are summed. "auto" chooses by size and place; "ring", "tree"; "direct": each
            worker sums a part; "all": each worker sums everything; "ps": the first ps sums, and the cluster needs one.
            Or one's own: a function, or an object that can be called. It gets the list of the workers' arrays (1-D, of
            one dtype, in worker order), and returns their sum, of the same shape and dtype. Every worker calls it with
            the same arrays, and it has to return the same bits on all.
        on_loss: "continue", or "end": when a worker is gone, the others' next call raises TaskLost, which names it.
        checkpoint_dir: Where checkpoints are kept; the newest is restored. None: there are none.
        save_steps: Save every so many steps, too; else when the strategy is closed.
        timeout: The longest wait of a worker for the others, in seconds, and of replicas as of `Strategy`.

    Raises:
        ConfigError: No worker's server, unknown settings, devices as of `Mirrored`, or a number of workers that the
            chief does not know.
        DeadlineExceeded: Not all workers came in time; the message names them.

    Example:
        ```pycon
        >>> with dps.strategy.MultiWorkerMirrored(server, ["/cpu:0", "/cpu:1"]) as strategy:
        ...     with strategy.scope():
        ...         first, sgd = {"w": np.zeros(2)}, dps.optim.SGD(0.5)
        ...         variables = strategy.variables(first, optimizer=sgd)
        ...     def step():
        ...         return variables.apply_gradients({"w": np.ones(2)}).step
        ...     print(strategy.run(step), variables.read()["w"])
        PerReplica(1, 1) [-1. -1.]
        ```
    """

    def __init__(
        self, server: Server, devices: Sequence[str | Device] | None = None, *,
        cross_device_ops: str | Callable[[Sequence[Any]], Any] = "auto", on_loss: str = "continue",
        checkpoint_dir: str | None = None, save_steps: int | None = None, timeout: float = 60.0,
    ) -> None:  # fmt: skip
        super().__init__(resolve_devices(devices, "MultiWorkerMirrored"), timeout)
        if not isinstance(server, Server) or server.job != "worker":
            got = f"the server of {server.name}" if isinstance(server, Server) else repr(server)
            raise ConfigError(f"MultiWorkerMirrored: got {got:.60}, wanted the dps.Server of a worker")
        if not callable(cross_device_ops) and cross_device_ops not in ALGORITHMS:
            known = ", ".join(map(repr, ALGORITHMS))
            raise ConfigError(f"cross_device_ops: got {cross_device_ops!r}, wanted {known} or a function")
        if on_loss not in ON_LOSS:
            raise ConfigError(f"on_loss: got {on_loss!r}, wanted 'continue' or 'end'")
        if save_steps is not None and (isinstance(save_steps, bool) or save_steps < 1):
            raise ConfigError(f"save_steps: got {save_steps!r}, wanted a whole number from 1, or None")
        if server.cluster and server.is_first:  # one of the workers says it
            from dps.cluster import spec as jobs

            fit = (("ps",), ()) if cross_device_ops == "ps" else ((), ("ps",))
            jobs.warn(jobs.unfit(server.cluster, "MultiWorkerMirrored", *fit))
        self.server, self.checkpoint_dir, self.save_steps = server, checkpoint_dir, save_steps
        server.wait_joined(server.runtime.now() + self.timeout)
        self.home = server.home()
        self.group = Group(
            self.home, server.binding, type(self).__name__, replicas=len(self.devices), algorithm=cross_device_ops,
            on_loss=on_loss, timeout=self.timeout,
        )  # fmt: skip
        self._made: list[Any] = []

    def __repr__(self) -> str:
        return f"dps.strategy.MultiWorkerMirrored({self.server.name}, {', '.join(map(repr, self.devices))})"

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas of all workers."""
        return sum(self.group.replicas)

    @property
    def first_replica(self) -> int:
        """The number of this worker's first replica among those in sync."""
        return sum(self.group.replicas[: self.group.rank])

    @property
    def input_pipelines(self) -> tuple[int, int]:
        """The number of workers, and which of them this one is. Each says its own number of devices."""
        return len(self.group.replicas), self.group.rank

    @property
    def leads(self) -> bool:
        """Whether this worker writes the checkpoints: the first one that is left."""
        return self.group.rank == 0

    def _all_workers(self) -> Group:
        return self.group

    def any_goes_on(self, here: bool) -> bool:
        return bool(self.group.all_reduce([np.array([here], np.int64)], "max")[0])

    def _variables(self, params: object, optimizer: Optimizer | None) -> Variables:
        from dps.strategy.worker_variables import WorkerVariables

        folder = self.checkpoint_dir
        if self._made and folder is not None:
            raise ConfigError(
                "variables: called a second time; with a checkpoint_dir one call holds all values: nest them, as "
                'strategy.variables({"generator": ..., "discriminator": ...})'
            )
        made = WorkerVariables(self, params, optimizer, *homes_of(self.devices))
        self._made.append(made)
        return made

    def close(self) -> None:
        """Save the last step, if there is a checkpoint_dir, and leave the other workers. Blocks.

        A second call does nothing.

        Raises:
            TaskLost: This worker was taken for lost; what it did last, the others may have done again without it.
            CheckpointError: The last step could not be saved.
        """
        made, self._made = self._made, []
        try:
            for each in made:
                each.finish_training()
        finally:
            self.group.close()

    def __exit__(self, kind: object = None, *of: object) -> None:
        if kind is not None:  # the other workers do not come to save with this one
            self._made = [made for made in self._made if not made.needs_all]
        self.close()
