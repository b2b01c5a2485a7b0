"""The strategy: how a step is distributed over replicas, and how their values become one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from dps.cluster.device import Device, device
from dps.errors import ConfigError
from dps.messages.replies import Push
from dps.strategy.context import ReplicaBarrier, ReplicaContext, StepOver, enter_scope, replica_now, scope_now
from dps.strategy.input import Distributed, InputContext, batches_of_function, split_batches
from dps.strategy.reduction import gather_values, op_of, reduce_values
from dps.strategy.values import (
    MirroredValue,
    PerReplica,
    check_no_mask,
    each_leaf,
    of_replica,
    regroup_results,
    values_of,
)
from dps.training.optimizers import Optimizer
from dps.transport.current import runtime


class Variables:
    """The variables that `strategy.variables(params, optimizer=...)` makes.

    In a replica, `apply_gradients` is a barrier: it blocks until all replicas have called it. `read` never waits for
    other replicas.

    Args:
        strategy: The strategy that they belong to.

    Example:
        ```pycon
        >>> strategy = dps.strategy.Mirrored(["/cpu:0", "/cpu:1"])
        >>> with strategy.scope():
        ...     variables = strategy.variables({"w": np.zeros(2)}, optimizer=dps.optim.SGD(0.5))
        >>> def step():
        ...     return variables.apply_gradients({"w": np.ones(2)}).step
        >>> strategy.run(step)
        PerReplica(1, 1)
        >>> variables.read()["w"]
        array([-1., -1.])
        ```
    """

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def read(self, on_device: bool = False) -> Any:
        """The current values. Blocks if they are on a ps.

        Args:
            on_device: In a replica on a GPU: its own copy, as arrays of that GPU, which change with the next update.
                On the CPU it makes no difference.

        Returns:
            Arrays in the nesting of params. They are read-only, and keep their values when variables are updated; only
            the arrays of a table that is updated by rows change in place. Variables with `synchronization="on_read"`:
            the replica's own value, or outside of replicas the values of all, reduced as their `aggregation` says.

        Raises:
            ConfigError: The caller is a replica of another strategy.
        """
        raise NotImplementedError

    def apply_gradients(self, grads: Any, loss: Any = None) -> Push:
        """Sum the gradients of all replicas, and make one step with the sum. Blocks until all replicas call it.

        Args:
            grads: This replica's gradients in the nesting of params, of the variables' shapes and dtypes. A missing
                key, or None, is no gradient; `dps.Rows` is one of some rows. Outside of replicas: the sum, or
                PerReplica values.
            loss: This replica's loss, which the hooks of a session are told.

        Returns:
            The step after the update, and whether it was accepted.

        Raises:
            ValueError: A wrong name, shape or dtype, or a NaN; the message names the variable, and nothing is applied.
            ConfigError: The caller is a replica of another strategy, or replicas make different calls.
            DeadlineExceeded: A replica did not come in time; the message names it.
        """
        raise NotImplementedError

    def assign(self, values: Any) -> None:
        """Set values. Blocks if they are on a ps or other replicas have to call it, too.

        Args:
            values: Arrays in the nesting of params; what is left out stays as it is. In a replica, a variable with
                `synchronization="on_read"` is set for this replica alone; the values of others are aggregated over the
                replicas as `aggregation` says, at a barrier. Outside of replicas all copies are set; of an on_read
                variable that is summed the first replica gets the value, and the others zeros. Under
                `MultiWorkerMirrored` all workers have to call it, and the values of the first one count.

        Raises:
            ValueError: A wrong name, shape or dtype.
            ConfigError: In one of several replicas, a variable without `aggregation`; or workers set different ones.
            DeadlineExceeded: A replica or a worker did not come in time; the message names it.
        """
        raise NotImplementedError

    def _replica(self, what: str) -> ReplicaContext | None:
        """The replica that calls. Raises ConfigError for one of another strategy."""
        replica = replica_now.get()
        if replica is not None and replica.strategy is not self.strategy:
            raise ConfigError(
                f"{what}: these variables are of {self.strategy!r}, and this is a replica of {replica.strategy!r}; "
                "make them with the strategy that runs the step"
            )
        return replica


class Strategy:
    """Base class of strategies: one training text, distributed in different ways.

    A function that `run` is given runs once for each replica, each in a thread and a context of its own; one replica
    runs in the caller's thread. Sums are taken in replica order, so the same gradients give the same bits.

    Args:
        devices: The device of each replica of this process, such as "/gpu:0"; None: wherever the caller computes.
        timeout: The longest wait of a replica for the others, in seconds; `dps.FOREVER` is no limit.

    Example:
        ```pycon
        >>> strategy = dps.strategy.Mirrored(["/cpu:0", "/cpu:1"])
        >>> with strategy.scope():
        ...     dps.strategy.get_strategy() is strategy
        True
        >>> for batch in strategy.distribute_dataset([np.arange(5)]):
        ...     sums = strategy.run(lambda part: part.sum(), args=(batch,))
        ...     print(sums.values, int(strategy.reduce("sum", sums)))
        (np.int64(3), np.int64(7)) 10
        ```
    """

    def __init__(self, devices: Sequence[str | None], timeout: float = 60.0) -> None:
        if isinstance(timeout, bool) or not hasattr(timeout, "__float__") or not float(timeout) > 0:
            raise ConfigError(f"timeout: got {timeout!r}, wanted seconds above 0, or dps.FOREVER")
        self.devices, self.timeout = tuple(devices), float(timeout)

    def __repr__(self) -> str:
        return f"dps.strategy.{type(self).__name__}({', '.join(map(repr, self.devices))})"

    # -- how many ---------------------------------------------------------------------------------------------------

    @property
    def local_replicas(self) -> int:
        """The number of replicas that this process runs."""
        return len(self.devices)

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas sum their gradients: the global batch is split in so many parts."""
        return self.local_replicas

    @property
    def first_replica(self) -> int:
        """The number of this process's first replica among those in sync."""
        return 0

    @property
    def input_pipelines(self) -> tuple[int, int]:
        """How many processes read input for the replicas in sync, and which of them this one is, from 0."""
        return self.num_replicas_in_sync // self.local_replicas, self.first_replica // self.local_replicas

    def close(self) -> None:
        """Give back what the strategy holds outside of this process. Without a ps: nothing. A `with` block does it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of: object) -> None:
        self.close()

    # -- running ----------------------------------------------------------------------------------------------------

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A scope in which this strategy is the current one. Variables are made inside it.

        Yields:
            Nothing.

        Raises:
            ConfigError: The scope, or a replica, of another strategy is around.
        """
        self._check_not_inside_another("scope")
        with enter_scope(self, replica_now.get()):
            yield

    def run(
        self, function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a function once for each replica, and wait for all. Blocks. It need not be called inside `scope()`.

        A replica that raises, or returns while others wait for it, ends the step for all.

        Args:
            function: The step. It may read variables, compute, and apply gradients.
            args: Its arguments. Of a PerReplica in them, at any depth, each replica gets its own value.
            kwargs: The same, by name.

        Returns:
            What the replicas return: the plain value for one replica, else its nesting with a PerReplica at each leaf.

        Raises:
            Exception: What a replica raised; a note says which one.
            ConfigError: Arguments of another number of replicas, a call inside a replica, or replicas that make
                different calls.
            DeadlineExceeded: A replica was waited for too long; the message names it.
        """
        self._check_not_inside_another("run")
        if replica_now.get() is not None:
            raise ConfigError("run: called inside a replica; call the function itself, or merge_call for all replicas")
        given = [
            of_replica((tuple(args), dict(kwargs or {})), replica, self.local_replicas, "run")
            for replica in range(self.local_replicas)
        ]
        if len(given) == 1:
            return self._as_replica(0, None, function, *given[0])
        return regroup_results(self._run_together(function, given))

    def _run_together(self, function: Callable[..., Any], given: Sequence[Any]) -> list[Any]:
        meeting = ReplicaBarrier(len(given), self.timeout)

        def work(replica: int) -> None:
            try:
                meeting.end_replica(replica, self._as_replica(replica, meeting, function, *given[replica]))
            except StepOver:
                pass
            except BaseException as error:
                error.add_note(f"raised in replica {replica} of {self!r}; the step ended for all")
                meeting.fail_step(error)

        try:
            for replica in range(len(given)):
                runtime().spawn(f"replica {replica}", lambda replica=replica: work(replica))  # type: ignore[misc]
            return meeting.wait_for_results()
        except BaseException as error:  # Ctrl-C as well: replicas that wait end
            meeting.fail_step(error)
            raise

    def _as_replica(
        self, replica: int, meeting: ReplicaBarrier | None, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        with enter_scope(self, ReplicaContext(self, replica, meeting)), device(self.devices[replica]):
            return function(*args, **kwargs)

    def over_replicas(self, op: str, values: Sequence[Any], axis: int | None = None) -> Any:
        """Reduce what each replica of this process has over all replicas that are reached.

        Args:
            op: "sum", "mean" or "max".
            values: A nesting of arrays for each replica of this process.
            axis: As of `reduce`.

        Returns:
            The reduced values, in that nesting.
        """
        return each_leaf(lambda path, *leaves: reduce_values(op, leaves, axis), *values)

    def gather_over_replicas(self, values: Sequence[Any], axis: int) -> Any:
        """Put what each replica of this process has one after the other, over all replicas that are reached.

        Args:
            values: As of `over_replicas`.
            axis: Along which axis.

        Returns:
            The longer arrays, in that nesting.
        """
        return each_leaf(lambda path, *leaves: gather_values(leaves, axis), *values)

    def any_goes_on(self, here: bool) -> bool:
        """Whether some process of those that are reached has more batches. Blocks until all of them call it.

        Args:
            here: Whether this process has.

        Returns:
            The same on all.
        """
        return here

    # -- values -----------------------------------------------------------------------------------------------------

    def reduce(self, op: str, value: Any, axis: int | None = None) -> Any:
        """Make one value of those of all replicas in sync. All workers that have some of them have to call it.

        Args:
            op: "sum", "mean" or "max", in any case.
            value: What `run` returned, or a nesting of such values. A plain value is the same on all replicas.
            axis: Also reduce each value over this axis; a mean is then that of all elements. None: only over replicas.

        Returns:
            Numbers or arrays, in the nesting of `value`, in its dtypes. But a mean of bools and integers is computed in
            float64, and their sum in int64 or uint64. Halves are added up in float32.

        Raises:
            ConfigError: Values of different shapes or of another number of replicas, an axis that they do not have,
                masked arrays of numpy, the sum of a plain value over several replicas, or workers that make different
                calls.
            DeadlineExceeded: A worker did not come in time; the message names it.
        """
        op = op_of(op)

        def leaf(path: str, found: Any) -> Any:
            if isinstance(found, PerReplica):
                return reduce_values(op, values_of(found, self.local_replicas, f"reduce {op!r}"), axis)
            if self.local_replicas > 1 and op == "sum":
                raise ConfigError(
                    f"reduce 'sum': got {type(found).__name__} {found!r:.60}, which is the same on all "
                    f"{self.local_replicas} replicas; wanted what run returned, or 'mean'"
                )
            return found if axis is None else reduce_values(op, [found], axis)

        return each_leaf(leaf, value)

    def gather(self, value: Any, axis: int) -> Any:
        """Put the arrays of the replicas one after the other, in replica order.

        Args:
            value: What `run` returned: arrays whose other dimensions are the same.
            axis: Along which axis.

        Returns:
            The longer arrays, in the nesting of `value`.

        Raises:
            ConfigError: Shapes that do not fit together, an axis that they do not have, masked arrays of numpy, or
                values of another number of replicas.
        """

        def leaf(path: str, found: Any) -> Any:
            is_of_each = isinstance(found, PerReplica)
            return gather_values(values_of(found, self.local_replicas, "gather") if is_of_each else [found], axis)

        return each_leaf(leaf, value)

    def broadcast(self, value: Any) -> Any:
        """Give a value to all replicas.

        Args:
            value: Any value.

        Returns:
            A MirroredValue, or the plain value for one replica.
        """
        return value if self.local_replicas == 1 else MirroredValue([value] * self.local_replicas)

    def local_results(self, value: Any) -> tuple[Any, ...]:
        """The values of the replicas of this process.

        Args:
            value: What `run` returned.

        Returns:
            A value for each replica, in replica order; of a nesting, a nesting for each.

        Raises:
            ConfigError: Values of another number of replicas.
        """
        return tuple(of_replica(value, i, self.local_replicas, "local_results") for i in range(self.local_replicas))

    # -- variables and input ----------------------------------------------------------------------------------------

    def variables(self, params: Any, optimizer: Optimizer | None = None) -> Variables:
        """Make variables, inside `scope()`. Blocks until they have their first values, also those on a ps.

        Args:
            params: Their first values: arrays in any nesting of dicts, lists and tuples. A `dps.Variable` gives one
                settings of its own.
            optimizer: How gradients become updates; one of `dps.optim`. Not needed where nothing is trained.

        Returns:
            The variables.

        Raises:
            ConfigError: Made outside of the scope or in a replica, no optimizer, or dtypes that cannot be trained.
        """
        if replica_now.get() is not None:
            raise ConfigError("variables: made in a replica, which would make them at each step; make them before run")
        self._check_made_in_scope()
        return self._variables(params, optimizer)

    def _variables(self, params: Any, optimizer: Optimizer | None) -> Variables:
        raise NotImplementedError

    def _check_made_in_scope(self) -> None:
        if scope_now.get() is not self:
            raise ConfigError(f"variables: made outside of the scope of {self!r}; put `with strategy.scope():` around")

    def distribute_dataset(self, dataset: Iterable[Any], to_device: bool = False) -> Distributed:
        """Split global batches between the replicas.

        A batch that does not divide is split unevenly: the first replicas get an example more, and others may get
        none. With `average_loss` losses and gradients are right all the same.

        Args:
            dataset: An iterable of global batches, such as a dataset of `dps.data`: arrays, or nestings of arrays,
                whose first axis counts examples.
            to_device: Whether batches are copied to the replicas' GPUs, one step ahead. Those of a dataset of
                `dps.data.remote` are copied when the loop asks for them, since asking finishes the batch before.

        Returns:
            An iterable, which gives for each batch the argument for `run`: a nesting with a PerReplica at each leaf, or
            the batch itself for one replica.

        Raises:
            ConfigError: No iterable; while it is read: batches without a first axis, or of different lengths.
        """
        return split_batches(self, dataset, to_device)

    def distribute_datasets_from_function(
        self, function: Callable[[InputContext], Iterable[Any]], to_device: bool = False
    ) -> Distributed:
        """Have each process make its own dataset, of batches for one replica.

        With several replicas in a process, a step takes several batches. Of a dataset of `dps.data.remote` all but the
        last of these are finished before the step's push, since asking finishes the batch before.

        Args:
            function: Gets an `InputContext`, which says which part of the input this process reads.
            to_device: As of `distribute_dataset`.

        Returns:
            An iterable as of `distribute_dataset`. Each replica in turn gets the next batch of the dataset. It ends
            with the last batch of all processes in sync: until then replicas without one get an empty batch, of no
            examples along the first axis. Under `MultiWorkerMirrored` each step therefore costs one small all-reduce.

        Raises:
            ConfigError: While it is read: a last step for which no empty batch can be made.
        """
        return batches_of_function(self, function, to_device)

    def on_device(self, replica: int, batch: Any) -> Any:
        """A batch in the memory of a replica's GPU; as it is on the CPU.

        Args:
            replica: The replica of this process.
            batch: Arrays in any nesting.

        Returns:
            The arrays there.

        Raises:
            ConfigError: A masked array of numpy for a GPU.
        """
        where = Device(self.devices[replica] or "")
        if where.device_type != "GPU":
            return batch
        from dps.kernels import device as gpu

        each_leaf(lambda path, array: check_no_mask(array), batch)
        with gpu.device(where.device_index or 0):
            return each_leaf(lambda path, array: gpu.to_device(array), batch)

    def _check_not_inside_another(self, what: str) -> None:
        around = scope_now.get()
        if around is not None and around is not self:
            other = "another one like it" if repr(around) == repr(self) else repr(around)
            raise ConfigError(f"{what}: {self!r} inside of {other}; strategies do not nest, leave one of them out")
