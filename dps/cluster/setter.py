"""Device setter: puts variables on the ps tasks and everything else on the workers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dps.cluster.device import NOWHERE, Device, on_task
from dps.cluster.partition import MinSize, Partitioner, cut
from dps.cluster.placement import Greedy, Policy, RoundRobin, as_int, checked_task, imbalance, nbytes
from dps.cluster.spec import ClusterSpec
from dps.errors import PlacementError
from dps.process.record import record
from dps.training.definition import BadArgument

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


@record
class ReplicaDeviceSetter:
    """Places variables on the ps tasks by a policy, and everything else on the workers.

    `dps.replica_device_setter` makes it.

    Args:
        tasks: The existing ps task indices; the policy's answer k means the k-th of them.
        ps: The device of variables, without the task.
        worker: The device of everything else.
        merge_devices: Whether a scope's fields are merged with the setter's answer. False: a scope that sets anything
            replaces it.
        policy: Which ps task gets which variable.

    Example:
        ```pycon
        >>> setter = dps.replica_device_setter(ps_tasks=2)
        >>> str(setter.variable("w", (3, 4))), str(setter.compute())
        ('/job:ps/task:0', '/job:worker')
        ```
    """

    tasks: tuple[int, ...]
    ps: Device
    worker: Device
    merge_devices: bool
    policy: Policy

    @functools.cached_property
    def _turns(self) -> tuple[Device, ...]:
        """The devices of variables outside all scopes, turn by turn; empty if they cannot be computed in advance."""
        return () if self.ps.job is None else tuple(on_task(self.ps, task) for task in self.tasks)

    def variable(
        self, name: str, shape: Sequence[int] = (), dtype: DTypeLike = "float32", scope: str | Device = ""
    ) -> Device:
        """The device of a variable that is made now; asks the policy once.

        The policy is not asked if `scope` names another job than the ps job.

        Args:
            name: The variable's name.
            shape: Its shape.
            dtype: Its dtype.
            scope: The merged device of the enclosing scopes; its fields win.

        Returns:
            The device.

        Raises:
            PlacementError: The policy's answer is invalid, or `scope` names a ps task that does not exist.
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
        """The device of computations.

        Args:
            scope: The merged device of the enclosing scopes; its fields win.

        Returns:
            The worker device, merged with `scope`.
        """
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
    """Make a setter that spreads variables over the ps tasks. Source: tf.compat.v1.train.replica_device_setter.

    Args:
        ps_tasks: How many ps tasks there are; ignored if `cluster` is given.
        ps_device: The device of variables, without the task.
        worker_device: The device of everything else.
        merge_devices: Whether a scope's fields are merged with the setter's answer. False: a scope that sets anything
            replaces it.
        cluster: The cluster. With a sparse ps job variables go to the tasks that exist.
        ps_strategy: A policy (name, shape, dtype) -> task. None: the tasks in turn, with a counter of its own.

    Returns:
        The setter; None if there is no ps job or no ps task. `dps.device(None)` changes nothing.

    Raises:
        TypeError: The strategy is not callable.
        ValueError: A negative `ps_tasks`.

    Example:
        ```pycon
        >>> setter = dps.replica_device_setter(ps_tasks=2, ps_strategy=dps.placement.Greedy(2))
        >>> [str(setter.variable(name, (rows, 4))) for name, rows in zip("abc", (100, 10, 10))]
        ['/job:ps/task:0', '/job:ps/task:1', '/job:ps/task:1']
        ```
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


WARN_ABOVE = 1.25
"""The largest number of bytes per ps over the mean."""
ALIKE = 0.03
"""A difference that does not matter."""
WORTH_NBYTES = 1 << 20
"""For smaller models an uneven placement does not matter."""


def advice(variables: Sequence[tuple[str, Sequence[int], DTypeLike]], nbytes_per_task: Mapping[int, int]) -> str | None:
    """One line of advice if the largest ps of a plan is above `WARN_ABOVE` times the mean and a better placement
    exists.

    `variables`: name, shape and dtype, in creation order. It tries greedy placement, partitioned variables, and both,
    and names the best; of equally good ones, the simplest. None for an even plan or a small model, or if none helps.
    """
    ratio, n = imbalance(nbytes_per_task), len(nbytes_per_task)
    if ratio <= WARN_ABOVE or sum(nbytes_per_task.values()) < WORTH_NBYTES:
        return None
    partitioner = MinSize(max_shards=n)
    greedy, split = f"placement=dps.placement.Greedy({n})", f"partitioner=dps.partition.{partitioner!r}"
    tried = (
        (spread(variables, Greedy(n), None, n), greedy),
        (spread(variables, RoundRobin(n), partitioner, n), split),
        (spread(variables, Greedy(n), partitioner, n), f"{greedy} and {split}"),
    )
    best = min(would_be for would_be, _ in tried)
    would_be, what = next(one for one in tried if one[0] <= best + ALIKE)
    if would_be > WARN_ABOVE:
        return None
    fullest = max(nbytes_per_task, key=nbytes_per_task.__getitem__)
    return f"ps:{fullest} holds {ratio:.2f} times the mean of all ps; with {what} it would be {would_be:.2f} times"


def spread(
    variables: Sequence[tuple[str, Sequence[int], DTypeLike]], policy: Policy, partitioner: Partitioner | None, n: int
) -> float:
    """The largest number of bytes per ps over the mean, if the variables were split and placed this way on `n` ps."""
    held = dict.fromkeys(range(n), 0)
    for name, shape, dtype in variables:
        for part in cut(name, shape, dtype, partitioner):
            held[policy(part.name, part.shape, dtype)] += nbytes(part.name, part.shape, dtype)
    return imbalance(held)
