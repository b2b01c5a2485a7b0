"""The context of a thread: the strategy in whose scope it is, or the replica that it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from dps.errors import ConfigError, DeadlineExceeded
from dps.process.telemetry import log
from dps.strategy.reduction import op_of
from dps.strategy.values import each_leaf, of_replica, regroup_results
from dps.transport.current import runtime

if TYPE_CHECKING:
    from dps.strategy.strategy import Strategy


REPORT_S = 10.0
"""How often the log names the replicas that are waited for."""


class StepOver(BaseException):
    """Ends a replica that waits for one that has ended. Programs do not catch it by mistake: it is no Exception."""


class ReplicaBarrier:
    """The barriers of one step, of `count` replicas. `what` names a barrier; all replicas must come to the same one.

    The last replica to come calls `decide` with the values of all, in replica order, and gives each its result. The
    step is over for all once a replica has failed, or has returned while others wait.
    """

    def __init__(self, count: int, timeout_s: float) -> None:
        self._count, self._timeout_s, self._runtime = count, timeout_s, runtime()
        self._lock, self._changed = threading.Lock(), runtime().condition()
        self._come: dict[int, tuple[str, Any]] = {}
        self._round = 0
        self._made: list[Any] = []
        """The results of the round that was decided last; the next one needs all who get them."""
        self.ended: dict[int, Any] = {}
        """The results of the replicas that have returned."""
        self.error: BaseException | None = None
        """Why the step is over."""

    def exchange_values(self, replica: int, what: str, value: Any, decide: Callable[[list[Any]], list[Any]]) -> Any:
        """Wait for all replicas. Returns this replica's result. Blocks."""
        with self._lock:
            number = self._round
            self._come[replica] = what, value
            self._check_same_barrier(what)
            if self.error is not None:
                raise StepOver
            last = len(self._come) == self._count
        if last:
            try:
                made = decide([self._come[index][1] for index in range(self._count)])
            except BaseException as error:
                self.fail_step(error)
                raise StepOver from error
            with self._lock:
                self._made, self._come, self._round = made, {}, number + 1
                self._changed.notify()
            return made[replica]
        self._wait_until(lambda: self._round > number, lambda: self._missing_text(what))
        if self._round == number:
            raise StepOver
        return self._made[replica]

    def end_replica(self, replica: int, result: Any) -> None:
        """A replica has returned."""
        with self._lock:
            self.ended[replica] = result
            self._check_same_barrier("the end of the step")
            self._changed.notify()

    def fail_step(self, error: BaseException) -> None:
        """The step is over for all. The first error counts."""
        with self._lock:
            self.error = self.error or error
            self._changed.notify()

    def wait_for_results(self) -> list[Any]:
        """Wait for the end of all replicas, on the thread that has called `run`. Returns the results of all."""
        self._wait_until(
            lambda: len(self.ended) == self._count, lambda: self._missing_text("the end of the step"), leads=True
        )
        if self.error is not None:
            raise self.error
        return [self.ended[replica] for replica in range(self._count)]

    # -- waiting ------------------------------------------------------------------------------------------------

    def _wait_until(self, ready: Callable[[], bool], missing: Callable[[], str], leads: bool = False) -> None:
        """Wait until `ready` is true, or the step is over. The deadline counts from the time when a replica begins to
        wait."""
        now = self._runtime.now
        since, told = now(), now()
        while not ready() and self.error is None:
            if leads and not self.ended:
                since = told = now()  # replicas compute, or wait for each other
            elif now() - since > self._timeout_s:
                self.fail_step(DeadlineExceeded(f"{missing()} for {self._timeout_s:g} s"))
            elif now() - told > REPORT_S:
                told = now()
                log.warning("%s for %.0f s", missing(), now() - since)
            left_s = min(1.0, max(0.001, since + self._timeout_s - now()))
            self._changed.wait(lambda: ready() or self.error is not None, left_s)

    def _missing_text(self, what: str) -> str:
        here = {**self._come, **self.ended}
        away = [replica for replica in range(self._count) if replica not in here]
        return f"{what}: {_replica_names(here)} wait for {_replica_names(away)}"

    def _check_same_barrier(self, what: str) -> None:
        """End the step if replicas wait at different barriers, or for one that has returned. Holds the lock."""
        others = {replica: barrier for replica, (barrier, _) in self._come.items() if barrier != what}
        if not self._come or not (others or self.ended) or self.error is not None:
            return
        if self.ended:
            waiting = {replica: barrier for replica, (barrier, _) in self._come.items()}
            returned = f"{_replica_names(self.ended)} returned from the step"
            text = f"{returned}, {_replica_names(waiting)} waits in {_barrier_names(waiting)}"
        else:
            here = {replica: barrier for replica, (barrier, _) in self._come.items() if barrier == what}
            text = f"{_replica_names(here)} is in {what}, {_replica_names(others)} in {_barrier_names(others)}"
        self.error = ConfigError(f"{text}: every replica must make the same calls in the same order")
        self._changed.notify()


def _replica_names(replicas: Any) -> str:
    """ "replica 1", or "replicas 0, 2"."""
    found = sorted(replicas)
    return f"replica{'s' if len(found) > 1 else ''} {', '.join(map(str, found))}"


def _barrier_names(barriers: Mapping[int, str]) -> str:
    return ", ".join(sorted(set(barriers.values())))


scope_now: ContextVar[Strategy | None] = ContextVar("dps_strategy", default=None)
"""The strategy whose scope, or whose replica, the caller is in; None for the default one."""
replica_now: ContextVar[ReplicaContext | None] = ContextVar("dps_replica", default=None)
"""The replica that the caller is; None outside replicas."""


@contextmanager
def enter_scope(strategy: Strategy | None, replica: ReplicaContext | None) -> Iterator[None]:
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

    def __init__(self, strategy: Strategy, replica_id: int, meeting: ReplicaBarrier | None = None) -> None:
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
            The reduced value, in the same nesting, with a dtype as of `Strategy.reduce`. Arrays are read-only, because
            all replicas share them.

        Raises:
            ConfigError: Values that do not fit together, or replicas that make different calls.
            DeadlineExceeded: A replica did not come in time; the message names it.
        """
        op = op_of(op)

        def decide(values: list[Any]) -> list[Any]:
            made = each_leaf(lambda path, leaf: _read_only(leaf), self.strategy.over_replicas(op, values))
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
            made = each_leaf(lambda path, leaf: _read_only(leaf), self.strategy.gather_over_replicas(values, axis))
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
            positional, named = regroup_results(values)
            made = function(strategy, *positional, **named)
            return [of_replica(made, replica, len(values), "merge_call") for replica in range(len(values))]

        return self.meet("merge_call", (tuple(args), dict(kwargs or {})), decide)

    def meet(self, what: str, value: Any, decide: Callable[[list[Any]], list[Any]]) -> Any:
        """Wait for all replicas; one of them calls `decide` with all values, outside of replicas."""
        scope = scope_now.get()

        def outside(values: list[Any]) -> list[Any]:
            with enter_scope(scope, None):
                return decide(values)

        if replica_now.get() is not self and scope is not None:
            raise ConfigError(f"{what}: called with the context of another replica; ask get_replica_context() there")
        if self._meeting is None:
            return outside([value])[0]
        return self._meeting.exchange_values(self.replica_id, what, value, outside)


def _read_only(value: Any) -> Any:
    """Make an array read-only that all replicas get, so that none changes it."""
    if hasattr(value, "setflags"):
        value.setflags(write=False)
    return value
