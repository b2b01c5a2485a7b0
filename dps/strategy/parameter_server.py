"""One replica in each worker, with the variables on the ps of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.client.session import Session, exchanging
from dps.errors import ConfigError
from dps.messages.replies import Push
from dps.process.record import replace
from dps.strategy.across import AcrossWorkers, StrategyWorkers
from dps.strategy.reduction import reduce_values
from dps.strategy.strategy import Variables
from dps.task.server import Server
from dps.training.optimizers import Optimizer
from dps.training.update_modes import SyncReplicas, Update, parse
from dps.transport.wire import Array
from dps.variables.tree import leaves

if TYPE_CHECKING:
    from dps.strategy.context import ReplicaContext
    from dps.strategy.strategy import Strategy


class SessionVariables(Variables):
    """The values of a run. `session` is the session, for `should_stop`, hooks and checkpoints."""

    def __init__(self, strategy: Strategy, session: Session) -> None:
        super().__init__(strategy)
        self.session, self.exchanging = session, exchanging(session)
        self._read: Any = None
        self._reader: ReplicaContext | None = None
        """The replica of one step that has read these values."""

    def read(self, on_device: bool = False) -> Any:
        """As Variables.read: a pull; in a replica one for each step."""
        replica = self._replica("read")
        if self._read is None or replica is None or replica is not self._reader:
            self._read, self._reader = self.session.pull(), replica
            for _, value in leaves(self._read):
                if value is not None:  # in place of a keyed table, of which `session.lookup` has the rows
                    value.flags.writeable = False
        return self._read

    def apply_gradients(self, grads: Any, loss: Any = None) -> Push:
        """As Variables.apply_gradients: a push. A synchronous ps sums those of all workers."""
        self._replica("apply_gradients")
        push: Push | None = None
        try:
            push = self.session.push(grads, loss=loss)
        finally:
            self.exchanging.pushed(push)
        self._read = None
        return push

    def assign(self, values: Any) -> None:
        """As Variables.assign. In sync mode values are set with the next step."""
        self._replica("assign")
        self.session.assign(values)
        self._read = None


class ParameterServer(AcrossWorkers):
    """One replica in each worker process; the variables are those of a `dps.Session`, on the ps.

    With `update="sync"` all workers are in sync: each gets its part of the global batch, and the ps sums the workers'
    gradients (`reduction="sum"`, whatever the mode that is given says). A worker without a gradient for a variable, or
    one that has left, adds nothing. `reduce`, `gather` and the calls of replicas are barriers over all workers, which
    must make the same ones; they wait up to `timeout` seconds. In the other modes each worker works for itself on
    whole batches, and `num_replicas_in_sync` is 1.

    `variables` may be called once: all trained values are nested in its params. Use the strategy in a `with` block, or
    call `close`, which ends the session.

    Args:
        server: This process's `dps.Server`, or the address of any task of the run.
        update: The update mode, as of `dps.Session`. A synchronous one has to know the number of workers: from the
            server's cluster, from the chief, or as `dps.SyncReplicas(N, N)`. None: asynchronous.
        settings: More arguments of `dps.Session`, such as `hooks` and `timeout`.

    Raises:
        ConfigError: A synchronous mode that does not know the number of workers, or has backup workers. From
            `variables`: no update mode, in a run that is synchronous.

    Example:
        ```pycon
        >>> with dps.strategy.ParameterServer(server) as strategy, strategy.scope():
        ...     first, sgd = {"w": np.zeros(2)}, dps.optim.SGD(0.5)
        ...     variables = strategy.variables(first, optimizer=sgd)
        ...     push = strategy.run(lambda: variables.apply_gradients({"w": np.ones(2)}))
        ...     print(push.step, variables.read()["w"])
        1 [-0.5 -0.5]
        ```
    """

    def __init__(self, server: Server | str, update: Update | str | None = None, **settings: Any) -> None:
        super().__init__([None], settings.get("timeout", 60.0))
        self.server, self._settings = server, settings
        self._update = parse(update) if isinstance(update, str) else update
        if isinstance(self._update, SyncReplicas):
            self._update = replace(self._update, reduction="sum")
        self._workers = workers_in_sync(server, self._update, self.timeout)
        if isinstance(server, Server) and server.cluster and server.is_first:  # one of the workers says it
            self._check_jobs(server)
        self._made: SessionVariables | None = None

    def _check_jobs(self, server: Server) -> None:
        from dps.cluster import spec as jobs

        jobs.warn(jobs.unfit(server.cluster, type(self).__name__, needs=("ps",), leaves=()))

    @property
    def checkpoint_dir(self) -> str | None:
        """The folder of the run's checkpoints, where this strategy was given one."""
        found = self._settings.get("checkpoint_dir")
        return None if found is None else str(found)

    def __repr__(self) -> str:
        return f"dps.strategy.{type(self).__name__}(update={self._update!r})"

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of workers that sum their gradients; 1 if none waits for another."""
        return self._workers

    @property
    def first_replica(self) -> int:
        """The number of this worker among those in sync."""
        if self._workers > 1 and isinstance(self.server, str):
            raise ConfigError(
                f"ParameterServer: got the address {self.server}, which does not say which of the {self._workers} "
                "workers this is; give this process's dps.Server"
            )
        if self._workers == 1 or isinstance(self.server, str):
            return 0
        tasks = self.server.expected("worker") or list(range(self._workers))
        if self.server.task not in tasks:
            raise ConfigError(f"{self.server.name} is none of the workers {tasks} that are in sync")
        return tasks.index(self.server.task)

    def _all_workers(self) -> StrategyWorkers | None:
        if self.num_replicas_in_sync == 1:
            return None
        if self._made is None:
            raise ConfigError("reduce: workers meet on the ps once they have joined the run; make the variables first")
        return WorkersInSync(self._made, self.timeout)

    def _variables(self, params: Any, optimizer: Optimizer | None) -> Variables:
        self._check_first(self._made)
        session = Session(self.server, params, optimizer=optimizer, update=self._update, **self._settings)
        if self._update is None and isinstance(session.update, SyncReplicas):
            session.close()
            raise ConfigError(
                f"ParameterServer: the run has {session.update}, and this strategy was given no update, as for workers "
                "that do not wait for each other; say update='sync' here, and leave it out on the ps or say 'sync:sum'"
            )
        self._made = SessionVariables(self, session)
        return self._made

    def _check_first(self, made: Variables | None) -> None:
        if made is not None:
            raise ConfigError(
                f"variables: called a second time; under {type(self).__name__} one call holds all trained values: "
                'nest them, as strategy.variables({"generator": ..., "discriminator": ...})'
            )

    def close(self) -> None:
        """End the session, as `dps.Session.close`. Blocks. A second call does nothing."""
        if self._made is not None:
            self._made.session.close()


class WorkersInSync:
    """The workers of a synchronous run, whose values go through the step ps."""

    def __init__(self, variables: SessionVariables, timeout: float) -> None:
        self._exchanging, self._timeout = variables.exchanging, timeout

    def all_reduce(self, arrays: Sequence[Array], op: str = "sum") -> list[Array]:
        """As Workers.all_reduce. Added in the order of tasks, so all get the same bits."""
        what = f"reduce {op!r} of {', '.join(f'{array.dtype.name}{list(array.shape)}' for array in arrays[:4])}"
        rows = self._exchanging.gather(what, arrays, self._timeout)
        return [np.asarray(reduce_values(op, of_workers)) for of_workers in zip(*rows, strict=True)]

    def gather(self, arrays: Sequence[Array]) -> list[list[Array]]:
        """As Workers.gather."""
        return self._exchanging.gather(f"gather of {len(arrays)} arrays", arrays, self._timeout)


def workers_in_sync(server: Server | str, update: Update | None, timeout: float) -> int:
    """The number of workers that sum their gradients. Blocks until the chief has answered, if only that knows it.

    Raises ConfigError if it cannot be known."""
    if not isinstance(update, SyncReplicas):
        return 1
    aggregated, total = update.replicas_to_aggregate, update.total_num_replicas
    if aggregated is not None:
        if total not in (None, aggregated):
            raise ConfigError(f"ParameterServer: {update} does not sum one gradient of each of {total} workers")
        return aggregated
    if total is not None:
        return total
    what, numbers = "ParameterServer: how many workers are in sync is not known", "say update=dps.SyncReplicas(N, N)"
    if isinstance(server, str):
        raise ConfigError(f"{what} from an address, got {server}; give this process's dps.Server, or {numbers}")
    if not server.expected("worker"):
        server.wait_joined(server.runtime.now() + timeout)
    known = server.expected("worker")
    if not known:
        raise ConfigError(f"{what} to the chief at {server.target}; start it with --workers N, or {numbers}")
    return len(known)
