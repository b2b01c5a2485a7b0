"""The session of a training loop. The loop's text is the same for every update mode."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dps.client.connection import Connection
from dps.client.pulling import Pulls
from dps.client.pushing import Pushes
from dps.client.reports import Reports
from dps.client.waiting import Loss, ThreadGuard, Waiter, one_at_a_time
from dps.client.writing import Writing
from dps.errors import ConfigError, DeadlineExceeded, DpsError, HookError
from dps.hooks.hook import Chain
from dps.hooks.scalars import Scalars
from dps.process import config
from dps.task.server import Server
from dps.training.optimizers import Optimizer, checked
from dps.training.update_modes import Update
from dps.transport.wire import Array
from dps.variables.plan import Plan
from dps.variables.tree import Nesting, nested

if TYPE_CHECKING:
    from dps.client.exchanging import Exchanging
    from dps.client.opening import PlanRequest
    from dps.client.reports import MistakeWarnings
    from dps.hooks.hook import Hook, Loop
    from dps.training.averages import MovingAverage
    from dps.training.compression import Compressor


FOREVER = float("inf")
"""A timeout for waits that may take as long as they like; who is waited for is logged every 10 s."""


class Session(Writing):
    """A client of the ps: it pulls values, pushes gradients and keeps count of the steps.

    Threads may use a session in turn; one that calls it during another's call gets a RuntimeError. The same loop works
    in every update mode. Opening blocks until the chief has restored or initialised the run, at most `timeout` seconds.
    Use the session in a `with` block, or call `close`: the end of the block waits for pushes on their way and leaves
    the run.

    Args:
        server: This process's `dps.Server`, or the address of any task of the run, such as `server.target`.
        params: The variables: arrays in any nesting of dicts, lists and tuples, in the order of their creation. A
            `dps.Variable` gives a leaf settings of its own. The arrays are read while the session opens and stay the
            caller's. Of PyTorch the `state_dict()`: tied weights are one variable with several names. None: a reader,
            which takes the variables that the run has.
        optimizer: How the ps turn gradients into updates; one of `dps.optim`. Required with `params`.
        update: The update mode: an instance, or "async", "sync", "sync:sum", "bounded:S", "local:H". None: that of
            the ps.
        durability: "none"; other values are not there yet.
        placement: Which ps gets which variable: a setter of `dps.replica_device_setter`, or a policy of
            `dps.placement`. None: what a `dps.device(setter)` scope around says, or else the ps in turn.
        partitioner: How many parts a variable is cut into; one of `dps.partition`. None: no variable is cut.
        checkpoint_dir: The folder of the run's checkpoints, from which the run is restored when it begins. A session
            that has one gets a `dps.CheckpointSaver`. None: nothing is saved or restored.
        hooks: Instances of `dps.Hook`, called in this order.
        moving_average: Keeps a moving average of every variable that is trained, for `averages`: an instance of
            `dps.optim.MovingAverage`. None: no averages.
        init_fn: Makes the first values, such as those of a model that was trained before: a function of `params` that
            returns arrays in their nesting. What it leaves out keeps its value of `params`. It is called once for a
            run, in the session that the chief asks for first values; never when the run is restored.
        local_init_fn: A function of the session, called when it is open, before the hooks' `after_create_session`, and
            again after each rollback.
        ready_fn: A function of the session that is called after `local_init_fn`, again and again, until it returns
            True or says that nothing is missing: an empty text or list. A text or a list of names says what is.
        check_finite: Whether gradients with NaN or infinities are refused.
        keep_checkpoints: How many of the newest checkpoints are kept.
        shared_memory: Whether a ps on this machine is reached through shared memory. False: through its socket only.
        compression: Compresses gradients: one of `dps.compress` for all variables, or a map from patterns of names to
            compressors, where None leaves a variable alone and the first pattern that matches counts.
        pull_compression: Compresses pulled values: `Float16` or `Bfloat16`, or a map as of `compression`.
        pull_deltas: Whether a pull moves only what changed since the last one, which the session keeps.
        keys: The folder of keys with which a session connects by an address; see `dps.Server`. None: as DPS_KEYS says.
        timeout: The longest wait of any call, in seconds. A call's own `timeout` goes first. `dps.FOREVER`: no limit.

    Raises:
        ConfigError: Update mode, optimizer or layout differ from those of the run, an argument is wrong, or two arrays
            of `params` share memory.
        NotAuthenticated: The chief or a ps refuses the keys, or has others.
        DeadlineExceeded: The session did not open within `timeout`; the message names who did not answer.
        TaskLost: The run has ended, or a task that it needs is gone for good.
        HookError: A hook raised. The session is closed; the other workers go on.

    Example:
        ```pycon
        >>> params = {"w": np.zeros(3, np.float32)}
        >>> with dps.Session(server, params, optimizer=dps.optim.SGD(0.5),
        ...                  hooks=[dps.StopAtStep(last_step=4)]) as session:
        ...     while not session.should_stop():
        ...         values = session.pull()
        ...         push = session.push({"w": values["w"] - 1}, loss=1.0)
        >>> push
        Push(step=4, accepted=True, staleness=0)
        ```

        All arguments, with values that differ from the defaults where that makes sense for one worker:

        ```pycon
        >>> with dps.Session(
        ...     server,
        ...     {"w": np.zeros(3, np.float32)},
        ...     optimizer=dps.optim.Adagrad(0.1),
        ...     update="async",  # or dps.Async(), dps.SyncReplicas(), dps.Bounded(4)
        ...     durability="none",
        ...     placement=dps.placement.Greedy(1),
        ...     partitioner=dps.partition.Fixed(2),
        ...     checkpoint_dir="run",
        ...     hooks=[dps.StopAtStep(last_step=1)],
        ...     moving_average=dps.optim.MovingAverage(0.999),
        ...     init_fn=lambda params: {"w": np.ones(3, np.float32)},
        ...     local_init_fn=lambda session: print("open at step", session.global_step),
        ...     ready_fn=lambda session: True,
        ...     check_finite=True,
        ...     keep_checkpoints=3,
        ...     shared_memory=True,
        ...     compression={"w": dps.compress.TopK(0.5)},
        ...     pull_compression=dps.compress.Float16(),
        ...     pull_deltas=False,
        ...     keys=None,  # "keys" where `server` is the address of a run with keys
        ...     timeout=30.0,
        ... ) as session:
        ...     push = session.push({"w": np.ones(3, np.float32)})
        open at step 0
        >>> push.step
        1
        ```
    """

    # More than 12 attributes: the session is where its parts meet, and each call hands over to one or two of them.

    def __init__(
        self,
        server: Server | str,
        params: Any = None,
        *,
        optimizer: Optimizer | None = None,
        update: Update | str | None = None,
        durability: str = "none",
        placement: Any = None,
        partitioner: Any = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        hooks: Sequence[Hook] = (),
        moving_average: MovingAverage | None = None,
        init_fn: Callable[[Any], Any] | None = None,
        local_init_fn: Callable[[Any], Any] | None = None,
        ready_fn: Callable[[Any], Any] | None = None,
        check_finite: bool = True,
        keep_checkpoints: int = 5,
        shared_memory: bool = True,
        compression: Compressor | Mapping[str, Compressor | None] | None = None,
        pull_compression: Compressor | Mapping[str, Compressor | None] | None = None,
        pull_deltas: bool = False,
        keys: str | os.PathLike[str] | None = None,
        timeout: float = 60.0,
    ) -> None:
        # More than 9 parameters: this is a public signature, and each is a setting that people give by its name.
        from dps.client import opening  # here: `import dps` stays quick

        opening.check_timeout(timeout)
        if optimizer is not None:
            checked(optimizer, "the session")
        opening.check_average(moving_average, params)
        opening.check_functions(params, init_fn=init_fn, local_init_fn=local_init_fn, ready_fn=ready_fn)
        settings = opening.run_settings(
            update, durability, checkpoint_dir, None if params is None else check_finite, keep_checkpoints
        )
        compressed = opening.compression_asked(compression, pull_compression, pull_deltas)
        self._own_server = isinstance(server, str)
        if keys is not None and not isinstance(server, str):
            raise ConfigError(
                "keys: a session of a dps.Server has the server's keys; give them to dps.Server(keys=...)"
            )
        self._server = Server.client(server, keys) if isinstance(server, str) else server
        self._timeout = timeout
        self._turns = ThreadGuard(lambda: self.name)
        self._stop = self._closed = self._opened = False
        self._connection: Connection
        self.scalars = Scalars()
        """The numbers that `summary` was given; hooks read them."""
        try:
            home = self._server.home()
            self._hooks = Chain(hooks, lambda: self.name, self._hook_failed, home.hooks)
            self._reports = Reports(self, self._hooks, home.pushed)
            if checkpoint_dir:
                from dps.hooks.saver import CheckpointSaver

                if not any(isinstance(h, CheckpointSaver) for h in self._hooks.hooks):
                    self._hooks.hooks.append(CheckpointSaver())
            if local_init_fn is not None or ready_fn is not None:
                from dps.hooks.waiting import Scaffold

                self._hooks.hooks.insert(0, Scaffold(local_init_fn, ready_fn, timeout))
            deadline = self._deadline(None)
            self._server.wait_joined(deadline)
            self._connection = Connection(self._server.home(), compressed, shared_memory, reads=params is None)
            if init_fn is not None:
                from dps.client.opening import first_values

                self._connection.joining.first_values = partial(first_values, init_fn, params, self.name)
            self._open(
                opening.PlanRequest(params, optimizer, placement, partitioner, moving_average), settings, deadline
            )
        except BaseException as error:
            self._give_up(error)
            raise

    # -- opening ----------------------------------------------------------------------------------------------

    def _open(self, model: PlanRequest, settings: dict[str, Any], deadline: float) -> None:
        connection, params = self._connection, model.params
        self._waiter = Waiter(connection, self._timeout, self._rejoined)
        plan: Plan | None = None
        values: dict[str, Array] = {}
        if params is not None:
            plan, values = model.planned(self._server, connection, deadline)
        self._hooks.call_hooks("begin")
        connection.joining.batch = self._hooks.loop_settings()["batch"] or 0
        self._opened = True  # from here on the chief may know of this session
        try:
            connection.joining.open(plan, values, settings, deadline)
        except DpsError as error:
            self._opened = isinstance(error, DeadlineExceeded | HookError)
            raise
        config.session_opened.set()
        self._server.check_sees("ps", connection.agreed.plan.ps)
        if connection.compression is not None:
            connection.compression.check(connection.agreed.plan)
        nesting = Nesting(nested(list(connection.agreed.plan.by_name)) if params is None else params)
        self._pushes = Pushes(connection, self._waiter, nesting, self._reports.settled)
        self._pulls = Pulls(connection, self._waiter, self._pushes)
        from dps.client.at_once import AtOnce  # here: `import dps` stays quick
        from dps.client.held import Held

        self._at_once = AtOnce(connection, self._pushes, self._pulls)
        self._newest = partial(Held, self._at_once, self._pushes, self._pulls)
        self._watch: MistakeWarnings | None = None
        """Looks at the first pushes."""
        self._replaced: MistakeWarnings | None = None
        """Looks at what pulls write to the caller's arrays."""
        if params is not None:
            from dps.client.reports import MistakeWarnings

            self._watch = self._replaced = MistakeWarnings(self.name, params)
            self._train()
        elsewhere, variables = connection.joining.first_values is not None, len(connection.agreed.plan.variables)
        self._reports.opened(values.values(), elsewhere, variables)

    def _train(self) -> None:
        """The session takes part in the training; in local mode with a copy of its own."""
        if self._connection.agreed.local:
            from dps.client.local import begin

            begin(self)

    def _give_up(self, error: BaseException) -> None:
        """Opening has failed: leave nothing behind, here or at the chief."""
        if self._opened:
            self._close(f"{type(error).__name__}: {error}")
            return
        self._closed = True
        if hasattr(self, "_connection"):
            self._connection.caller.close()
        if hasattr(self, "_waiter"):
            self._waiter.closed = True
        self._end_own_server()

    def _rejoined(self, new_epoch: bool, loss: Loss) -> None:
        """The session takes part again, under a new incarnation and often in a new run epoch."""
        connection = self._connection
        self._pulls.roll_back()

        def tell() -> None:
            if new_epoch:
                self._reports.rolled_back(connection.membership.restored, connection.membership.epoch, loss)

        self._pushes.roll_back(tell)

    def _hook_failed(self, text: str) -> None:
        """A hook that raises closes the session, also where there is no with-block."""
        if self._opened:
            self._close(text)

    @one_at_a_time
    def close(self) -> None:
        """Leave the run, as the end of a `with` block does.

        Waits for the pushes on their way, calls the hooks' `end` and tells the chief; a worker waits up to 45 s for a
        chief that is away. Blocks. A second call does nothing.

        Raises:
            HookError: A hook's `end` raised.
            DeadlineExceeded: A push on its way got no result in time.
        """
        if self._closed:
            return
        try:
            self._finish_pushes()
            self._hooks.call_hooks("end", self)
        except StopIteration:
            pass  # a hook has no more data: as good an end
        except BaseException as error:
            self._close(f"{type(error).__name__}: {error}")
            raise
        self._close("")

    def _finish_pushes(self) -> None:
        self._pushes.drain()

    def _close(self, error: str) -> None:
        """Leave the run; `error`: why, "" for a good end. A second call does nothing."""
        if self._closed:
            return
        self._turns.take("close", self.runtime.tuning.client.farewell_s)
        try:
            self._closed = self._waiter.closed = True
            self._connection.close(error, self._timeout)
        finally:
            self._turns.lock.release()
            self._end_own_server()

    def _end_own_server(self) -> None:
        if self._own_server:
            self._server.stop()
            self._server.join(2.0)

    def _deadline(self, timeout: float | None) -> float:
        return self._server.runtime.now() + (self._timeout if timeout is None else timeout)

    def __enter__(self) -> Session:
        return self

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._opened else "opening"
        step = self._connection.steps.step if self._opened else 0
        return f"<Session of {self._server.name}: {state} at step {step}; the chief is at {self._server.target}>"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Ends the session; running out of data (StopIteration) counts as a good end and is swallowed."""
        if kind is not None and not issubclass(kind, StopIteration):
            self._close(f"{type(error).__name__}: {error}")
            return False
        self.close()
        return True


def join_run(server: Server, timeout: float = 60.0) -> Session:
    """A session that trains with the variables of the run, and brings none. Blocks until the run has variables."""
    session = Session(server, timeout=timeout)
    try:
        session._connection.joining.take_part(session._deadline(None))
        session._train()
    except BaseException as error:
        session._give_up(error)
        raise
    return session


def exchanging(session: Session) -> Exchanging:
    """The calls by which a session in sync exchanges values with those of the other workers."""
    from dps.client.exchanging import Exchanging

    return Exchanging(session._connection, session._waiter, session._turns)


if TYPE_CHECKING:
    _: type[Loop] = Session
