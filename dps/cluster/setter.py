"""The setter that spreads variables over the ps tasks and leaves the rest on the workers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dps.cluster.device import NOWHERE, Device, on_task
from dps.cluster.placement import Policy, RoundRobin, as_int, checked_task
from dps.cluster.spec import ClusterSpec
from dps.definition import BadArgument
from dps.errors import PlacementError
from dps.record import record

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


@record
class ReplicaDeviceSetter:
    """Variables to the ps tasks by a policy, everything else to the workers; made by `replica_device_setter`.

    `tasks` are the ps task indices that exist; the policy's answer k means the k-th of them.
    """

    tasks: tuple[int, ...]
    ps: Device
    worker: Device
    merge_devices: bool
    policy: Policy

    @functools.cached_property
    def _turns(self) -> tuple[Device, ...]:
        """What a variable outside of all scopes gets in each turn; nothing where it is not that simple."""
        return () if self.ps.job is None else tuple(on_task(self.ps, task) for task in self.tasks)

    def variable(
        self, name: str, shape: Sequence[int] = (), dtype: DTypeLike = "float32", scope: str | Device = ""
    ) -> Device:
        """The device of a variable that is created now, with what `scope` sets winning; asks the policy once.

        The policy is not asked when `scope` names another job than the ps job. Raises PlacementError when
        the policy answers nonsense, or when `scope` names a ps task that does not exist.
        """
        inner = scope if isinstance(scope, Device) else Device(scope)
        if inner is NOWHERE and self._turns:
            return self._turns[checked_task(self.policy, len(self.tasks), name, shape, dtype)]
        if self.ps == NOWHERE:
            return self.compute(inner)
        if inner != NOWHERE and not self.merge_devices:
            return inner
        placed = self.ps
        if placed.job is not None and inner.job in (None, placed.job):
            turn = checked_task(self.policy, len(self.tasks), name, shape, dtype)
            placed = on_task(placed, self.tasks[turn])
        if inner != NOWHERE:
            placed = placed.merge(inner)
        if placed.job is not None and placed.job == self.ps.job and placed.task not in self.tasks:
            known = ", ".join(map(str, self.tasks))
            raise PlacementError(f"{name!r}: got the scope {str(inner)!r}, wanted a task of {placed.job}: {known}")
        return placed

    def compute(self, scope: str | Device = "") -> Device:
        """The device of work that is no variable: the worker device, with what `scope` sets winning."""
        inner = Device(scope)
        return self.worker.merge(inner) if self.merge_devices or inner == Device() else inner


def replica_device_setter(
    ps_tasks: int = 0,
    ps_device: str | Device = "/job:ps",
    worker_device: str | Device = "/job:worker",
    merge_devices: bool = True,
    cluster: ClusterSpec | Mapping[str, object] | None = None,
    ps_strategy: Policy | None = None,
) -> ReplicaDeviceSetter | None:
    """A setter over the ps tasks, or None when there is no ps job or no ps task (`device(None)` does nothing).

    `cluster` wins over `ps_tasks`; with a sparse ps job variables go to the tasks that exist. `ps_strategy`
    (name, shape, dtype) -> task defaults to round robin with a counter of its own. With `merge_devices`
    False, a scope that sets anything replaces the setter's answer. Raises TypeError for a strategy that
    cannot be called, ValueError for a negative `ps_tasks`.
    """
    ps = Device(ps_device)
    count = as_int(ps_tasks)
    if count is None or count < 0:
        raise ValueError(f"ps_tasks: got {ps_tasks!r}, wanted a whole number from 0")
    tasks = list(range(count))
    if cluster is not None:
        spec = ClusterSpec(cluster)
        tasks = spec.task_indices(ps.job) if ps.job in spec.jobs else []
    if not tasks:
        return None
    if ps_strategy is not None and not callable(ps_strategy):
        raise BadArgument(f"ps_strategy: got {ps_strategy!r}, wanted a callable such as dps.placement.Greedy(n)")
    policy = RoundRobin(len(tasks)) if ps_strategy is None else ps_strategy
    return ReplicaDeviceSetter(tuple(tasks), ps, Device(worker_device), merge_devices, policy)
