"""The context of a thread: the strategy in whose scope it is, or the replica that it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from dps.errors import ConfigError
from dps.strategy.meeting import Meeting
from dps.strategy.reduction import op_of
from dps.strategy.values import each_leaf, of_replica, regrouped

if TYPE_CHECKING:
    from dps.strategy.strategy import Strategy

scope_now: ContextVar[Strategy | None] = ContextVar("dps_strategy", default=None)
"""The strategy whose scope, or whose replica, the caller is in; None for the default one."""
replica_now: ContextVar[ReplicaContext | None] = ContextVar("dps_replica", default=None)
"""The replica that the caller is; None outside replicas."""


@contextmanager
def entered(strategy: Strategy | None, replica: ReplicaContext | None) -> Iterator[None]:
    """Enter the scope of a strategy, and a replica of it or none."""
    before = scope_now.set(strategy), replica_now.set(replica)
    try:
        yield
    finally:
        scope_now.reset(before[0])
        replica_now.reset(before[1])


class ReplicaContext:
    """What one replica knows of itself, and its calls to the others. `dps.strategy.get_replica_context()` returns it.

    `all_reduce`, `all_gather` and `merge_call` block until all replicas have made the same call, at most for the
    strategy's `timeout`.

    Args:
        strategy: The strategy that runs the replica.
        replica_id: The replica's number, from 0.
        meeting: Where this step's replicas meet. None: there is one replica.

    Example:
        ```pycon
        >>> strategy = dps.strategy.Mirrored(["/cpu:0", "/cpu:1"])
        >>> def step():
        ...     context = dps.strategy.get_replica_context()
        ...     return context.all_reduce("sum", context.replica_id + 1.0)
        >>> strategy.run(step)
        MirroredValue(np.float64(3.0))
        ```
    """

    def __init__(self, strategy: Strategy, replica_id: int, meeting: Meeting | None = None) -> None:
        self.strategy, self.replica_id, self._meeting = strategy, replica_id, meeting

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas that sum their gradients."""
        return self.strategy.num_replicas_in_sync

    def all_reduce(self, op: str, value: Any) -> Any:
        """Reduce a value over all replicas, and return the result to each. Blocks until all replicas call it.

        Args:
            op: "sum", "mean" or "max".
            value: A number, an array, or a nesting of them; of the same shapes on all replicas.

        Returns:
            The reduced value, in the same nesting. Arrays are read-only, because all replicas share them.

        Raises:
            ConfigError: Values that do not fit together, or replicas that make different calls.
            DeadlineExceeded: A replica did not come in time; the message names it.
        """
        op = op_of(op)

        def decide(values: list[Any]) -> list[Any]:
            made = each_leaf(lambda path, leaf: _still(leaf), self.strategy.over_replicas(op, values))
            return [made] * len(values)

        return self.meet(f"all_reduce {op!r}", value, decide)

    def all_gather(self, value: Any, axis: int = 0) -> Any:
        """Put the arrays of all replicas one after the other, in replica order. Blocks until all replicas call it.

        Args:
            value: An array, or a nesting of arrays, whose other dimensions are the same on all replicas.
            axis: Along which axis.

        Returns:
            The longer arrays, in the same nesting. They are read-only, because all replicas share them.

        Raises:
            ConfigError: Arrays that do not fit together, or replicas that make different calls.
            DeadlineExceeded: A replica did not come in time; the message names it.
        """

        def decide(values: list[Any]) -> list[Any]:
            made = each_leaf(lambda path, leaf: _still(leaf), self.strategy.gather_over_replicas(values, axis))
            return [made] * len(values)

        return self.meet("all_gather", value, decide)

    def merge_call(
        self, function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function once for all replicas of this process, outside of them, and return its result to each.

        Blocks until all replicas of this process call it. Under `MultiWorkerMirrored`, and under `ParameterServer`
        in sync, it is called in each worker, and `reduce` and `apply_gradients` in it reach all of them.

        Args:
            function: Called as `function(strategy, *args, **kwargs)`. It may call `reduce` and `apply_gradients`.
            args: This replica's arguments. The function gets them of all replicas, as PerReplica.
            kwargs: The same, by name.

        Returns:
            What the function returns; of a PerReplica in it, this replica's value.

        Raises:
            DeadlineExceeded: A replica did not come in time; the message names it.
        """
        strategy = self.strategy

        def decide(values: list[Any]) -> list[Any]:
            positional, named = regrouped(values)
            made = function(strategy, *positional, **named)
            return [of_replica(made, replica, len(values), "merge_call") for replica in range(len(values))]

        return self.meet("merge_call", (tuple(args), dict(kwargs or {})), decide)

    def meet(self, what: str, value: Any, decide: Callable[[list[Any]], list[Any]]) -> Any:
        """Wait for all replicas; one of them calls `decide` with all values, outside of replicas."""
        scope = scope_now.get()

        def outside(values: list[Any]) -> list[Any]:
            with entered(scope, None):
                return decide(values)

        if replica_now.get() is not self and scope is not None:
            raise ConfigError(f"{what}: called with the context of another replica; ask get_replica_context() there")
        if self._meeting is None:
            return outside([value])[0]
        return self._meeting.meet(self.replica_id, what, value, outside)


def _still(value: Any) -> Any:
    """Make an array read-only that all replicas get, so that none changes it."""
    if hasattr(value, "setflags"):
        value.setflags(write=False)
    return value
