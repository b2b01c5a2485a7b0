"""Variables of a strategy: what a training text reads, updates and assigns, whatever keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dps.errors import ConfigError
from dps.reply import Push
from dps.strategy.context import ReplicaContext, replica_now

if TYPE_CHECKING:
    from dps.strategy.strategy import Strategy


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
                variable that is summed the first replica gets the value, and the others zeros.

        Raises:
            ValueError: A wrong name, shape or dtype.
            ConfigError: In one of several replicas, a variable without `aggregation`.
            DeadlineExceeded: A replica did not come in time; the message names it.
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
