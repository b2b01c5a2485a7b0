"""Variables that this process keeps: one copy for each device that has one, all updated with the same gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.cluster.device import Device
from dps.errors import ConfigError
from dps.messages.replies import Push
from dps.strategy.context import ReplicaContext
from dps.strategy.reduction import not_finite_text, reduce_values, sum_gradients
from dps.strategy.strategy import Variables
from dps.strategy.values import PerReplica, array_of, values_of
from dps.training.optimizers import Optimizer, from_wire
from dps.transport.wire import Array
from dps.variables.copies import Copy, GpuCopy, HostCopy, ready
from dps.variables.layout import check_gradients
from dps.variables.plan import Plan
from dps.variables.planning import plan_of
from dps.variables.tree import Nesting, Variable, leaves, to_array

if TYPE_CHECKING:
    from dps.strategy.strategy import Strategy

ONLY_FIRST = "only_first_replica"


class _Here:
    """A placement: everything is in this process."""

    def variable(self, name: str, shape: Sequence[int] = (), dtype: Any = "float32", scope: Any = "") -> Device:
        return Device("/job:ps/task:0")

    def compute(self, scope: Any = "") -> Device:
        return Device()


class MirroredVariables(Variables):
    """One copy for each of `homes`; `home_of` says which one a replica reads.

    Copies get the same gradients, summed once on the host, so on devices of one kind they hold the same bits.
    """

    def __init__(
        self, strategy: Strategy, params: Any, optimizer: Optimizer | None, homes: Sequence[int | None],
        home_of: Sequence[int],
    ) -> None:  # fmt: skip
        """`homes`: the number of the GPU of each copy, or None for the host."""
        super().__init__(strategy)
        plan, values = plan_of(params, optimizer, [0], _Here(), None, makes=True)
        self._plan = self._applied_plan(plan)
        self._nesting, self._home_of = Nesting(params), list(home_of)
        settings = {name: leaf for name, leaf in leaves(params) if isinstance(leaf, Variable) and name in values}
        self._aggregation = {name: variable.aggregation for name, variable in settings.items()}
        on_read = [name for name, variable in settings.items() if variable.synchronization == "on_read"]
        self._own = [{name: values[name].copy() for name in on_read} for _ in self._home_of]
        """For each replica, the values of the variables with synchronization="on_read"."""
        wires = {spec.name: spec.optimizer for spec in self._plan.variables}
        optimizers = {name: None if wire is None else from_wire(wire) for name, wire in wires.items()}
        self._copies: list[dict[str, Copy]] = [
            {name: _make_copy(value, optimizers[name], home) for name, value in values.items() if name not in on_read}
            for home in homes
        ]
        self._specs = {name: (value.shape, value.dtype) for name, value in values.items()}
        self._applied = dict.fromkeys(values, 0)
        self._step = 0

    def _applied_plan(self, plan: Plan) -> Plan:
        """The plan with the optimizers of the copies; here those that the user gave."""
        return plan

    @property
    def step(self) -> int:
        """The number of steps that were made."""
        return self._step

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, on_device: bool = False) -> Any:
        """As Variables.read."""
        replica = self._replica("read")
        copies = self._copies[0 if replica is None else self._home_of[replica.replica_id]]
        on_device = on_device and replica is not None
        found = {name: copy.here() if on_device else copy.host() for name, copy in copies.items()}
        own = self._reduce_on_read() if replica is None else self._own[replica.replica_id]
        found |= {name: _read_only(value) for name, value in own.items()}
        return self._nesting.build([found[self._main_name(path)] for path in self._nesting.paths])

    def _main_name(self, path: str) -> str:
        """The name of a variable, of which tied weights have several."""
        return self._plan.variables[self._plan.by_name[path]].name

    def _reduce_on_read(self) -> dict[str, Any]:
        """The on_read variables of all replicas; those of all workers, where there are several, have to read them."""
        return {name: self._aggregate_values(name, [own[name] for own in self._own]) for name in self._own[0]}

    # -- gradients ------------------------------------------------------------------------------------------------

    def apply_gradients(self, grads: Any, loss: Any = None) -> Push:
        """As Variables.apply_gradients."""
        replica = self._replica("apply_gradients")
        if replica is not None:
            checked = self._check_gradients(grads)
            made: Push = replica.meet("apply_gradients", checked, lambda all_: [self._apply_sum(all_)] * len(all_))
            return made
        found = dict(leaves(grads))
        replicas = self.strategy.local_replicas
        parts = [{n: _replica_gradient(value, i, replicas) for n, value in found.items()} for i in range(replicas)]
        return self._apply_sum([self._check_gradients(part) for part in parts])

    def _check_gradients(self, grads: Any) -> dict[str, Any]:
        flat = {name: array_of(value) if hasattr(value, "copy_to_host") else value for name, value in leaves(grads)}
        gradients = check_gradients(self._plan, list(flat.items()))
        return {self._plan.variables[index].name: gradient for index, gradient in gradients.items()}

    def _apply_sum(self, of_replicas: Sequence[Mapping[str, Any]]) -> Push:
        """Make one step with the sum over the replicas, in their order. If a gradient is not finite, nothing is
        changed."""
        sums: dict[str, Any] = {}
        for name in self._specs:
            found = [gradients[name] for gradients in of_replicas if name in gradients]
            if found:
                sums[name] = sum_gradients(found, self._specs[name][0])
        total = {name: ready(gradient) for name, gradient in self._reduce_over_workers(sums).items()}
        for name, gradient in total.items():
            if problem := not_finite_text(name, gradient):
                raise ValueError(problem)
        for name, gradient in total.items():
            self._applied[name] += 1
            for copies in self._copies:
                copies[name].update(gradient, self._applied[name], self._step)
        self._step += 1
        return Push(self._step, True)

    def _reduce_over_workers(self, sums: Mapping[str, Any]) -> Mapping[str, Any]:
        """The sums of the gradients of this process, added to those of others; here there are none."""
        return sums

    # -- assigning ------------------------------------------------------------------------------------------------

    def assign(self, values: Any) -> None:
        """As Variables.assign."""
        replica = self._replica("assign")
        found = self._check_values(values)
        own = {name: value for name, value in found.items() if name in self._own[0]}
        shared = {name: value for name, value in found.items() if name not in own}
        if replica is not None:
            self._own[replica.replica_id] |= {name: value.copy() for name, value in own.items()}
            if shared:
                self._assign_together(replica, shared)
            return
        together = self._values_of_first(found)
        self._set_values({name: together[name] for name in shared})
        for name, value in own.items():
            self._spread_own(name, value)

    def _spread_own(self, name: str, value: Array) -> None:
        """Set an on_read variable to one value of all replicas: of a sum the first one gets it, the others zeros."""
        for index, of_replica in enumerate(self._own, self.strategy.first_replica):
            counts = index == 0 or self._aggregation[name] != "sum"
            of_replica[name] = value.copy() if counts else np.zeros_like(value)

    def _assign_together(self, replica: ReplicaContext, values: dict[str, Array]) -> None:
        replicas = self.strategy.num_replicas_in_sync
        without = [name for name in values if self._aggregation.get(name) is None]
        if without and replicas > 1:
            raise ConfigError(
                f"assign: {without[0]} would get another value from each of {replicas} replicas; "
                "say how they become one: dps.Variable(value, aggregation='mean'), 'sum' or 'only_first_replica'"
            )

        def decide(of_replicas: list[dict[str, Array]]) -> list[None]:
            if any(each.keys() != of_replicas[0].keys() for each in of_replicas):
                names = " and ".join(str(sorted(each)) for each in of_replicas)
                raise ConfigError(f"assign: replicas set different variables, {names}; wanted the same on all")
            self._set_values(
                {name: self._aggregate_values(name, [each[name] for each in of_replicas]) for name in values}
            )
            return [None] * len(of_replicas)

        replica.meet("assign", values, decide)

    def _aggregate_values(self, name: str, values: Sequence[Array]) -> Array:
        aggregation = self._aggregation.get(name) or ONLY_FIRST
        if aggregation == ONLY_FIRST:
            return values[0]
        return np.asarray(reduce_values(aggregation, values), values[0].dtype)

    def _values_of_first(self, values: Mapping[str, Array]) -> Mapping[str, Array]:
        """What the first worker sets; here there is one."""
        return values

    def _set_values(self, values: Mapping[str, Array]) -> None:
        for copies in self._copies:
            for name, value in values.items():
                copies[name].assign(value)

    def _check_values(self, values: Any) -> dict[str, Array]:
        """Nested values, checked, by the names of their variables."""
        found: dict[str, Array] = {}
        for path, value in leaves(values):
            if value is not None:
                fitting = self._check_value(path, value)
                if not np.array_equal(found.setdefault(self._main_name(path), fitting), fitting, equal_nan=True):
                    raise ValueError(
                        f"assign: {self._main_name(path)} and {path} are one variable (tied weights), got two values"
                    )
        return found

    def _check_value(self, name: str, value: Any) -> Array:
        """A value for a variable, checked."""
        if name not in self._plan.by_name:
            raise ValueError(f"assign: {name!r} is no variable; there are {', '.join(list(self._specs)[:10])}")
        shape, dtype = self._specs[self._main_name(name)]
        array = to_array(value, name)
        if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
            raise ValueError(f"assign: {name} got {array.dtype.name} {array.shape}, wanted {dtype.name} {shape}")
        return array.astype(dtype)


def _make_copy(value: Array, optimizer: Optimizer | None, gpu: int | None) -> Copy:
    return HostCopy(value, optimizer) if gpu is None else GpuCopy(value, optimizer, gpu)


def _replica_gradient(value: Any, replica: int, replicas: int) -> Any:
    """A replica's gradient. A gradient that all replicas share counts once."""
    if isinstance(value, PerReplica):
        return values_of(value, replicas, "apply_gradients")[replica]
    return value if replica == 0 else None


def _read_only(value: Array) -> Array:
    view = np.asarray(value).view()
    view.flags.writeable = False
    return view
