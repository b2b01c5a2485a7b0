"""The session of a training loop. The loop's text is the same for every update mode.

Each public call of a session is here, with its documentation, and hands over to one of the session's parts:
`_training` (the loop's calls, in local mode on a copy), `_pulls`, `_pushes`, `_reports` and `_hooks` (what
the loop's hooks are told), `_connection` (its membership in the run) and `_waiter`.

More than 500 lines: two thirds are the documentation of the public calls, which stand in one class.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from dps.actors.caller import Caller
from dps.client.connection import Connection
from dps.client.pulling import Pulls
from dps.client.pushing import Pushes
from dps.client.reports import Reports
from dps.client.saving import Saves
from dps.client.waiting import Loss, ThreadGuard, Waiter, one_at_a_time
from dps.errors import ConfigError, DeadlineExceeded, DpsError, HookError, checked_seconds, told
from dps.hooks.hook import Chain, Hook, Loop
from dps.hooks.scalars import Scalars
from dps.messages.replies import Published, Push, Reply, Version
from dps.messages.runs import Restore
from dps.process import config
from dps.process.telemetry import LoopTimes, timed_read
from dps.task.server import Server
from dps.training.optimizers import Optimizer, checked
from dps.training.update_modes import Update, from_wire
from dps.transport.endpoint import Runtime
from dps.transport.wire import Array
from dps.variables.plan import Plan
from dps.variables.tree import Nesting, nested

if TYPE_CHECKING:
    from dps.client.calling import Calling
    from dps.client.compressing import Traffic
    from dps.client.exchanging import Exchanging
    from dps.client.opening import PlanRequest
    from dps.client.publishing import Publications
    from dps.client.training import PsTraining
    from dps.training.averages import MovingAverage
    from dps.training.compression import Compressor


T = TypeVar("T")

FOREVER = float("inf")
"""A timeout for waits that may take as long as they like; who is waited for is logged every 10 s."""


class Session:
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

    scalars: Scalars
    """The numbers that `summary` was given; hooks read them."""

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
        from dps.client.modes import client_mode

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
        times = LoopTimes(self._server.runtime.now, timeout)
        self._turns = ThreadGuard(lambda: self.name, times)
        self._stop = self._closed = self._opened = False
        self._calling: Calling | None = None
        self.scalars = Scalars()
        try:
            home = self._server.home()
            self._hooks = Chain(hooks, lambda: self.name, self._hook_failed, home.hooks, times)
            self._reports = Reports(self, self._hooks, home.pushed)
            if checkpoint_dir:
                from dps.hooks.saver import CheckpointSaver

                if not any(isinstance(h, CheckpointSaver) for h in self._hooks.hooks):
                    self._hooks.hooks.append(CheckpointSaver())
            if local_init_fn is not None or ready_fn is not None:
                from dps.hooks.waiting import Scaffold

                self._hooks.hooks.insert(0, Scaffold(local_init_fn, ready_fn, timeout))
            deadline = self.runtime.now() + timeout
            self._server.wait_joined(deadline)
            home = self._server.home()
            self._connection = Connection(home, client_mode, compressed, shared_memory, reads=params is None)
            if init_fn is not None:
                first_values = partial(opening.first_values, init_fn, params, self.name)
                self._connection.joining.first_values = first_values
            self._open(
                opening.PlanRequest(params, optimizer, placement, partitioner, moving_average), settings, deadline
            )
        except BaseException as error:
            self._give_up(error)
            raise

    # -- pulls and lookups --------------------------------------------------------------------------------------

    @one_at_a_time
    def pull(
        self, names: Sequence[str] | None = None, out: Any = None, if_newer_than: Version | None = None,
        timeout: float | None = None, published: Published | int | None = None,
    ) -> Any:  # fmt: skip
        """The newest values, in the nesting of params. Blocks.

        In sync mode the values are at least those of the session's local step. In bounded mode the call waits while
        this worker is too far ahead of the slowest one.

        Args:
            names: Only these variables, such as `["hidden/w"]`; they come as nested dicts. None: all.
            out: Arrays, or tensors of PyTorch on the CPU, in the nesting of params and of the variables' shapes and
                dtypes, to fill and return. None: new arrays.
            if_newer_than: A `session.version`: nothing is moved when no value has changed since.
            timeout: Seconds; None: the session's.
            published: A published version, or its number: the values of all shards are those of one cut. It waits for
                nothing, and is pulled without `pull_compression`. None: the newest values, of each shard one version.

        Returns:
            The values. The arrays belong to the caller. In place of a keyed table stands None. None: nothing changed
            since `if_newer_than`.

        Raises:
            ValueError: A name that no variable has, an array of `out` that does not fit or is read-only, memory of
                `out` for two variables, or a published version that the ps do not keep any more.
            TypeError: One text as `names`, or an `if_newer_than` that is no version.
            DeadlineExceeded: The values did not come in time; the message names who did not answer.
            TaskLost: The run has ended.

        Example:
            ```pycon
            >>> session.pull()["w"]
            array([0., 0., 0.], dtype=float32)
            >>> session.pull(if_newer_than=session.version) is None
            True
            ```
        """
        if timeout is not None:
            checked_seconds(timeout, 0.0)
        if published is not None:
            if if_newer_than is not None:
                raise ValueError("pull: a published version does not change; leave if_newer_than out")
            return self._publications.pull(published, names, out, timeout)
        return self._training.pull(names, out, if_newer_than, timeout)

    @one_at_a_time
    def pull_async(self, names: Sequence[str] | None = None) -> Reply[Any]:
        """Start a pull and return at once.

        Args:
            names: As of `pull`.

        Returns:
            A reply whose `result()` is what `pull` returns.

        Raises:
            ValueError: A name that no variable has.

        Example:
            ```pycon
            >>> reply = session.pull_async(["w"])  # compute something else meanwhile
            >>> reply.result()["w"]
            array([0., 0., 0.], dtype=float32)
            ```
        """
        return self._training.pull_async(names)

    @one_at_a_time
    def prefetch(self, names: Sequence[str] | None = None, in_place: bool = False) -> Iterator[Any]:
        """Values for each turn of a loop; the next values are on their way while the loop computes.

        Hides the time of a pull behind the computing. The values do not include the loop's own last push: the staleness
        of each push is one more, and its result says so. The loop ends when `should_stop` is true. Each turn blocks
        until its values are there.

        Args:
            names: As of `pull`.
            in_place: The values are those of a `view`: read-only, valid until the next turn or the end of the loop, and
                without a copy where the ps are on this machine. `gradients`, called in each turn, gives arrays to fill
                that no push reads. All variables: there can be no names.

        Returns:
            An iterator over what `pull` would return. Once it has raised an error, it raises it again.

        Raises:
            ValueError: Names were given for values in place.
            ConfigError: The run is in sync mode, where a step needs the values of the step before, or in local mode.

        Example:
            ```pycon
            >>> for turn, values in enumerate(session.prefetch()):
            ...     reply = session.push_async({"w": values["w"] - 1})
            ...     if turn == 9:
            ...         session.request_stop()
            >>> reply.result().step
            10
            ```
        """
        self._waiter.check_open()
        self._connection.agreed.mode.check_prefetch()
        if in_place and names is not None:
            raise ValueError(f"prefetch: got names {names!r:.80} with in_place=True, which reads all variables")
        return self._turns.each("prefetch", self._training.prefetched(names, in_place))

    def view(self) -> AbstractContextManager[Any]:
        """The values to read, without a copy where the ps are on this machine; elsewhere they are pulled.

        Blocks as `pull`. The arrays are read-only and valid inside the block. Each shard shows one version throughout:
        the ps does not write to memory that somebody holds.

        Returns:
            A block for `with`, which gives the values, in the nesting of params.

        Raises:
            DeadlineExceeded: The values did not come in time.
            TaskLost: The run has ended.

        Example:
            ```pycon
            >>> with session.view() as values:
            ...     float(values["w"].sum())
            0.0
            ```
        """
        return self._training.view_block()

    @one_at_a_time
    def averages(self, names: Sequence[str] | None = None, timeout: float | None = None) -> Any:
        """The moving averages of the variables, for evaluation. Blocks.

        The ps keep them if the run was opened with a `moving_average`; a reader may ask for them, too. In sync mode
        they are at least those of the session's local step. Each shard's averages are of one version.

        Args:
            names: As of `pull`.
            timeout: Seconds; None: the session's.

        Returns:
            The averages, in the nesting of params and in the variables' shapes and dtypes; the value itself for a
            variable that is not trained. The arrays belong to the caller.

        Raises:
            ConfigError: The run keeps no averages.
            ValueError: A name that no variable has.
            DeadlineExceeded: They did not come in time; the message names who did not answer.
            TaskLost: The run has ended.

        Example:
            ```python
            with dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(0.1),
                             moving_average=dps.optim.MovingAverage(0.9)) as session:
                session.push({"w": -np.ones(3)})  # w is 0.1 now
                assert np.allclose(session.averages()["w"], 0.01)
            ```
        """
        self._waiter.check_open()
        from dps.client.opening import check_averages  # here: `import dps` stays quick

        check_averages(self._connection.agreed.plan)
        return self._pulls.apart(0, names, timeout)

    @overload
    def lookup(self, /, name: str, rows: Any, timeout: float | None = None, out: Array | None = None) -> Array: ...

    @overload
    def lookup(
        self, /, name: Mapping[str, Any], rows: None = None, timeout: float | None = None,
        out: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]: ...  # fmt: skip

    @one_at_a_time
    def lookup(self, name: Any, rows: Any = None, timeout: float | None = None, out: Any = None) -> Any:
        """Rows of a variable, or of several variables at one time. Blocks; in bounded mode as `pull` does.

        Args:
            name: The variable's name, such as "table" or "hidden/w". Or a dict from names to row numbers: all are asked
                for at once.
            rows: Row numbers, integers from 0; they may repeat. Of a keyed table its keys, any int64; one that was
                never pushed has its first value, and gets no row. Their shape is (n,), or any other of one dimension
                and more, such as (batch, fields). None where `name` is a dict.
            timeout: Seconds; None: the session's.
            out: An array to fill and return, of the shape of the result and of the variable's dtype; for a dict of
                names a dict of such arrays. None: new ones.

        Returns:
            The rows, of the shape of `rows` and then of a row, such as (batch, fields, dim). The array belongs to the
            caller. For a dict of names: a dict of such arrays.

        Raises:
            ValueError: An unknown name, a row that the variable does not have, keys that are no int64, or an `out` that
                does not fit or whose elements share memory.
            DeadlineExceeded: The rows did not come in time.

        Example:
            ```pycon
            >>> session.lookup("table", [3, 0, 3])
            array([[3., 3.],
                   [0., 0.],
                   [3., 3.]], dtype=float32)
            >>> session.lookup("table", [[3, 0], [1, 3]]).shape
            (2, 2, 2)
            >>> session.lookup({"table": [1], "w": [0, 2]})["table"]
            array([[1., 1.]], dtype=float32)
            ```
        """
        if timeout is not None:
            checked_seconds(timeout, 0.0)
        return self._training.lookup(name, rows, timeout, out)

    @overload
    def lookup_async(self, /, name: str, rows: Any, out: Array | None = None) -> Reply[Array]: ...

    @overload
    def lookup_async(
        self, /, name: Mapping[str, Any], rows: None = None, out: Mapping[str, Array] | None = None
    ) -> Reply[dict[str, Array]]: ...  # fmt: skip

    @one_at_a_time
    def lookup_async(self, name: Any, rows: Any = None, out: Any = None) -> Any:
        """Start a lookup and return at once.

        In bounded mode the ps of the global step is asked at once whether the session may read, and the rows in
        `result()` or `done()`, after its answer: a session sends nothing while the program computes.

        Args:
            name: As of `lookup`.
            rows: As of `lookup`.
            out: As of `lookup`; it is filled when the result is there and must not be used before.

        Returns:
            A reply whose `result()` is what `lookup` returns.

        Raises:
            ValueError: As of `lookup`.

        Example:
            ```pycon
            >>> session.lookup_async("table", [1]).result()
            array([[1., 1.]], dtype=float32)
            ```
        """
        return self._training.lookup_async(name, rows, out)

    # -- pushes -------------------------------------------------------------------------------------------------

    @one_at_a_time
    def push(self, grads: Any, loss: Any = None, timeout: float | None = None) -> Push:
        """Send gradients and wait for the result. Blocks; in sync mode until the step is done.

        Args:
            grads: Gradients in the nesting of params, of the variables' shapes and dtypes. A missing key, or None, is
                no gradient; a push that has none at all counts as a step, and is told once. `dps.Rows` holds the
                gradient of some rows. The arrays may be changed when the call has returned; after DeadlineExceeded the
                push is still on its way and reads them.
            loss: A number for hooks and logs; an array or tensor of one element is one, too. A loss that is NaN or
                infinite is logged once; `dps.NanGuard` ends the loop.
            timeout: Seconds; None: the session's.

        Returns:
            The global step after the push, whether it was accepted, and its staleness.

        Raises:
            ValueError: A wrong name, shape or dtype, or a NaN; the message names the variable, and nothing is applied.
                Or a keyed table without room for new keys: nothing is applied on the ps that says so, in sync on none.
            TypeError: A gradient that is no array of numbers or is a parameter of PyTorch, or a loss that is no number;
                nothing is applied.
            DeadlineExceeded: No result in time; the push goes on.
            TaskLost: The run has ended.

        Example:
            ```pycon
            >>> session.push({"w": np.ones(3, np.float32)}, loss=0.7)
            Push(step=1, accepted=True, staleness=0)
            >>> session.push({"table": dps.Rows([1, 3], np.ones((2, 2), np.float32))}).step
            2
            ```
        """
        if timeout is not None:
            checked_seconds(timeout, 0.0)
        return self._training.push(grads, loss, timeout)

    @one_at_a_time
    def push_async(self, grads: Any, loss: Any = None) -> Reply[Push]:
        """Start a push and return at once.

        Hooks are told of its result when it is asked for, at a later push or at the end.

        Args:
            grads: As of `push`. The arrays must not be changed until the result is there.
            loss: As of `push`.

        Returns:
            A reply whose `result()` is what `push` returns; `accepted` tells whether the push is in its step.

        Raises:
            ValueError: As of `push`.
            TypeError: As of `push`.

        Example:
            ```pycon
            >>> reply = session.push_async({"w": np.ones(3, np.float32)})
            >>> reply.result().step
            1
            ```
        """
        return self._training.push_async(grads, loss)

    @one_at_a_time
    def step(self, grads: Any, loss: Any = None, timeout: float | None = None, out: Any = None) -> Any:
        """Push gradients and pull the values after the update, in one round trip. Blocks.

        Args:
            grads: As of `push`.
            loss: As of `push`.
            timeout: Seconds; None: the session's.
            out: As of `pull`. If it does not fit, nothing is pushed.

        Returns:
            The values after the update, in the nesting of params: `out`, or else arrays that are the caller's.

        Raises:
            ValueError: As of `push`, and as of `pull` for `out`.
            TypeError: As of `push`.
            DeadlineExceeded: No result in time; the push goes on.
            TaskLost: The run has ended.

        Example:
            ```pycon
            >>> session.step({"w": np.ones(3, np.float32)})["w"]
            array([-0.5, -0.5, -0.5], dtype=float32)
            ```
        """
        if timeout is not None:
            checked_seconds(timeout, 0.0)
        return self._training.step(grads, loss, timeout, out)

    def step_in_place(self, grads: Any, loss: Any = None, timeout: float | None = None) -> AbstractContextManager[Any]:
        """Push gradients, and read the values after the update without a copy where the ps are on this machine.

        A `step` whose values are those of a `view`: read-only, and valid inside the block. With the arrays of
        `gradients` neither way has a copy. Blocks as `step`, at the beginning of the block. Without `with` nothing is
        pushed, and a warning says so.

        Args:
            grads: As of `push`. Inside the block the arrays are the caller's again.
            loss: As of `push`.
            timeout: Seconds; None: the session's.

        Returns:
            A block for `with`, which gives the values after the update, in the nesting of params.

        Raises:
            ValueError: As of `push`.
            TypeError: As of `push`.
            DeadlineExceeded: No result in time; the push goes on.
            TaskLost: The run has ended.

        Example:
            ```pycon
            >>> grads = session.gradients()
            >>> grads["w"][:] = 1
            >>> for turn in range(3):
            ...     with session.step_in_place({"w": grads["w"]}) as values:
            ...         grads["w"][:] = values["w"] + 2
            >>> session.pull()["w"]
            array([-1.625, -1.625, -1.625], dtype=float32)
            ```
        """
        if timeout is not None:
            checked_seconds(timeout, 0.0)
        return self._training.step_block(grads, loss, timeout)

    @one_at_a_time
    def assign(self, values: Any, timeout: float | None = None) -> None:
        """Set variables to values: those that get no gradient, such as the statistics of batch normalisation, or any.

        The values are set exactly once, as a gradient is applied exactly once, and make a new version. The step and the
        optimizer's slots stay as they are. In async and bounded mode the call blocks until the values are set. In sync
        mode it returns at once: the values go with this session's next push, and are set after the gradients of the
        step that this push is part of. Where several workers assign a variable in one step, the value of the lowest
        task counts. Without a later push nothing is set.

        Args:
            values: Values in the nesting of params, of the variables' shapes and dtypes, for any of the variables,
                trained or not. A missing key, or None, leaves a variable alone. The arrays are copied. Of a variable
                that is assigned several times the last value counts.
            timeout: Seconds; None: the session's.

        Raises:
            ValueError: A wrong name, shape or dtype, or a NaN; the message names the variable, and nothing is set.
            TypeError: A value that is no array of numbers, or `dps.Rows`.
            DeadlineExceeded: No answer in time; the values are still on their way.
            TaskLost: The run has ended.

        Example:
            ```pycon
            >>> session.assign({"w": np.array([0.5, 1.5, 2.5], np.float32)})
            >>> session.pull()["w"]
            array([0.5, 1.5, 2.5], dtype=float32)
            ```
        """
        self._training.assign(values, timeout)

    def reading(self, batches: Iterable[T]) -> Iterator[T]:
        """The same batches; the time that it takes to get each of them counts as reading data.

        What a loop does between two calls of its session counts as computing, but for the time that a dataset of
        `dps.data` takes. This says so of any other source, such as a `torch.utils.data.DataLoader`. `dps status` and
        `dps monitor` name a worker that is slow, and whether it computes, reads data, moves values or waits. The loop
        runs in the thread that pushes.

        Args:
            batches: What the loop iterates over.

        Yields:
            Its elements.

        Example:
            ```pycon
            >>> batches = [np.zeros(3, np.float32), np.ones(3, np.float32)]
            >>> for batch in session.reading(batches):
            ...     step = session.push({"w": batch}).step
            >>> step
            2
            ```
        """
        end, now, following = object(), self.runtime.now, iter(batches)
        while (batch := timed_read(now, lambda: next(following, end))) is not end:
            yield batch  # type: ignore[misc]

    @one_at_a_time
    def gradients(self) -> Any:
        """Arrays to write gradients to, which a push sends without copying them first. Does not block.

        Returns:
            Arrays in the nesting of params, of the variables' shapes and dtypes, with undefined contents. They are the
            caller's until they are pushed, and again when that push has its result. Once the program refers to none of
            them, nor to slices, tensors or buffers in their memory, and no push reads them, a later call may give the
            same memory again. An address alone is no reference: keep the array with it.

        Example:
            ```pycon
            >>> grads = session.gradients()
            >>> grads["w"][:] = 1
            >>> session.push({"w": grads["w"]}).step
            1
            ```
        """
        self._waiter.check_open()
        return self._pushes.gradients()

    # -- the run ------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the task that the session belongs to, such as "worker:0"."""
        return self._server.name

    @property
    def runtime(self) -> Runtime:
        """The clock and the storage that this session uses, for hooks: the real ones, or the simulator's."""
        return self._server.runtime

    @property
    def global_step(self) -> int:
        """The highest global step that this session has heard of. Does not ask the ps and does not block."""
        return self._connection.steps.step

    @property
    def version(self) -> Version:
        """The version that the last pull of all variables read, for `pull(if_newer_than=...)`."""
        return self._pulls.version

    @property
    def traffic(self) -> Traffic | None:
        """Bytes of gradients and values that this session has moved, and what they would be without compression.

        None for a session without compressors. The object is a copy. Does not block.
        """
        from copy import copy  # here: `import dps` stays quick

        compression = self._connection.compression
        return None if compression is None else copy(compression.traffic)

    @property
    def update(self) -> Update:
        """The run's update mode, on which all its tasks have agreed."""
        return from_wire(self._connection.agreed.settings["update"])

    @property
    def checkpoint_dir(self) -> str | None:
        """The run's folder for checkpoints; None when it has none."""
        return str(self._connection.agreed.settings.get("checkpoint_dir") or "") or None

    @property
    @one_at_a_time
    def is_chief(self) -> bool:
        """Whether this is the session of the lowest worker that is alive.

        Asks the chief, and blocks up to 2 s. While the chief is away this is its last answer, at once.
        """
        return self._connection.lookout.asks_leads(min(self.runtime.tuning.client.leads_s, self._timeout))

    def should_stop(self) -> bool:
        """Whether the loop should end: a hook, Ctrl-C or the chief asked for it, or the run has ended. Does not block.

        Returns:
            True from then on.

        Example:
            ```pycon
            >>> session.should_stop()
            False
            ```
        """
        server = self._server
        return self._stop or config.stop_requested.is_set() or server.stop_requested or server.exit_code is not None

    def request_stop(self) -> None:
        """Make `should_stop` true in this session. Does not block.

        Example:
            ```pycon
            >>> session.request_stop()
            >>> session.should_stop()
            True
            ```
        """
        self._stop = True

    def summary(self, name: str, value: Any) -> None:
        """Report a number, such as an accuracy, to the hooks that write logs and summaries. Does not block.

        The newest value of a name counts.

        Args:
            name: What the number is, in one line; not one of the names that rows have, such as "step" and "loss".
            value: A number, or an array or tensor of one element.

        Raises:
            ConfigError: A name that rows have, that is blank or has control characters, or a value that is no number
                (also a ValueError).

        Example:
            ```python
            session.summary("accuracy", 0.93)
            ```
        """
        self.scalars.store_value(name, value)

    def watch_gradient_norms(self, function: Callable[[float], None]) -> None:
        """Call a function with the norm of what each push of this session brings. For hooks. Does not block.

        The norm is the Euclidean one of all gradients of the push, `sqrt(sum of g**2)`, before compression. The
        function is called before the push is sent, on the session's thread. Norms take at most 2 % of the loop's time:
        of large gradients only some pushes have one.

        Args:
            function: It gets the norm. Several functions may be given, one after the other; each is called.

        Example:
            ```pycon
            >>> norms = []
            >>> session.watch_gradient_norms(norms.append)
            >>> session.push({"w": np.array([3, 4, 0], np.float32)}).accepted
            True
            >>> norms
            [5.0]
            ```
        """
        self._reports.watch_norms(function)

    @one_at_a_time
    def run(self, function: Callable[..., Any] | str, *args: Any, timeout: float | None = None) -> Any:
        """Run a function on a worker that serves (`--serve MODULE`), and return its value. Blocks.

        The worker is the one that a scope `dps.device("/job:worker/task:7")` around the call names; without a scope,
        the one whose address the session was given, or the session's own. `dps.Coordinator` runs many calls at a time.

        Args:
            function: A function at the top of a module that the worker serves, or its path, "module:function".
            args: Its arguments: numbers, text, bytes, arrays, in lists, tuples and dicts. A session arrives as the
                worker's own session of the run, so that the function pulls and pushes.
            timeout: Seconds; None: the session's.

        Returns:
            What the function returned: plain values and arrays, which are the caller's.

        Raises:
            RemoteError: The function raised; `remote_traceback` has the worker's traceback. The error is of the class
                that was raised, too, where that is one of dps or a usual one of Python.
            ConfigError: No worker is named, or it does not serve the function.
            TypeError: An argument or the value cannot travel.
            DeadlineExceeded: No value in time; the message names the worker, which may still run the function.
            TaskLost: The run has ended.

        Example:
            ```python
            cluster = dps.LocalCluster(workers=2, processes=False, serve="operator:add")
            params = {"w": np.zeros(3)}
            with cluster as local:
                with local.session(params, optimizer=dps.optim.SGD(0.1)) as session:
                    with dps.device("/job:worker/task:1"):
                        assert session.run("operator:add", 1, 2) == 3
            ```
        """
        self._waiter.check_open()
        if self._calling is None:
            from dps.client.calling import Calling

            self._calling = Calling(self._connection, lambda leaf: isinstance(leaf, Session))
        return self._calling.run(function, args, self._waiter.deadline(timeout))

    @one_at_a_time
    def save(self, timeout: float | None = None, position: bytes = b"") -> str:
        """Write a checkpoint now. Blocks. Nothing is written when these values are saved already.

        Args:
            timeout: Seconds; None: the session's.
            position: The position of the input, read before this call, which is kept with the checkpoint (see
                `dps.data.InputSaver`); at most 1 MB.

        Returns:
            The checkpoint's name.

        Raises:
            ValueError: The run has no checkpoint_dir.
            CheckpointError: The disk refuses.
            DeadlineExceeded: The checkpoint was not written in time. The chief goes on with it. The next call of `save`
                before a push waits for the same one, and makes no second one.

        Example:
            ```python
            params = {"w": np.zeros(3, np.float32)}
            with dps.Session(server, params, optimizer=dps.optim.SGD(0.1),
                         checkpoint_dir="run") as session:
                session.push({"w": np.ones(3, np.float32)})
                name = session.save()
                session.push({"w": np.ones(3, np.float32)})
                assert session.restore(name) == 1
            ```
        """
        self._waiter.check_open()
        return str(self._waiter.retrying(lambda deadline: self._saves.save(deadline, position), timeout))

    @one_at_a_time
    def publish(self, label: str = "", timeout: float | None = None) -> Published:
        """Publish the values as they are now: one cut of all shards, under a number. Blocks until all ps keep it.

        In sync and local mode the cut lies between two steps; in local mode the values are those of the last round. In
        async and bounded mode with several ps it lies between two pushes of each session, and pushes wait shortly. The
        ps keep the newest published version, for `pull(published=...)`, until a newer one is published. A rollback
        drops it; the numbers go on. Values that are the newest published version already get no other number, so that
        every worker of a loop may publish; a warning says so where the label is another one.

        Args:
            label: For people and followers, such as "step-42"; at most 200 characters.
            timeout: Seconds; None: the session's.

        Returns:
            The version: its run, number, label and step. After a rollback during the call the step is a lower one.

        Raises:
            CheckpointError: The run's journal cannot be written; nothing was published.
            DeadlineExceeded: Not all ps kept the values in time, or a session did not tell or deliver its pushes, which
                the message names; nothing was published.
            TaskLost: The run has ended.

        Example:
            ```pycon
            >>> published = session.publish("step-0")
            >>> push = session.push({"w": np.ones(3, np.float32)})
            >>> session.pull(published=published)["w"]
            array([0., 0., 0.], dtype=float32)
            ```
        """
        return self._publications.publish(label, timeout)

    @property
    def _publications(self) -> Publications:
        from dps.client.publishing import Publications  # here: few sessions publish

        return Publications(self._connection, self._waiter, self._pulls)

    @one_at_a_time
    def restore(self, name: str = "", timeout: float | None = None) -> int:
        """Roll the whole run back to a checkpoint. Blocks. All sessions are rolled back, as after the loss of a ps.

        Where the run cannot be rolled back now, because the chief or a ps is away or another session has just rolled it
        back, the call waits until it can.

        Args:
            name: What `save` returned; "": the newest whole checkpoint.
            timeout: Seconds; None: the session's.

        Returns:
            The step of the checkpoint.

        Raises:
            ValueError: The run has no checkpoint_dir.
            TypeError: A name that is no string.
            CheckpointError: There is no such checkpoint, or it cannot be read.
            DeadlineExceeded: The run was not rolled back in time.
        """
        if not isinstance(name, str):
            raise TypeError(f'restore: got the name {name!r:.60}, wanted a string from save, or "" for the newest')
        self._waiter.check_open()
        connection, deadline = self._connection, self._waiter.deadline(timeout)

        def ask(until: float) -> None:
            connection.ask(Restore(connection.number, connection.membership.epoch, name), until, "the chief")

        self._waiter.retrying(ask, max(0.0, deadline - connection.caller.now()))
        self._waiter.recover(deadline)
        return connection.steps.step

    @one_at_a_time
    def stats(self) -> dict[str, Any]:
        """Counters of every ps and of the chief, for people. Blocks. `dps status` has those of other sessions, too.

        Returns:
            The counters by task name, such as "ps:0". Those of a ps have this session's own under "sessions", and there
            on the ps that counts its pushes "times": seconds for which the session's loop has read data (`read_s`), has
            computed (`computed_s`), has moved values and gradients (`moved_s`) and has waited for others (`waited_s`)
            since the session joined. A push tells them, one in 50 ms. A ps with keyed tables has "tables": of each its
            `rows`, how many it may have (`most`), bytes (`nbytes`), and keys that are counted and have no row yet
            (`counted`); and since the run epoch began how many keys got a row (`admitted`), gradients of a key that was
            not admitted yet were dropped (`dropped`), expired rows were freed (`expired`), and pushes found no room
            (`refused`). Expired rows are among `rows` until they are freed.

        Raises:
            DeadlineExceeded: A task did not answer in time.

        Example:
            ```pycon
            >>> sorted(session.stats())
            ['chief', 'ps:0']
            ```
        """
        self._waiter.check_open()
        found: dict[str, Any] = self._waiter.retrying(self._connection.stats, None)
        return found

    # -- the end ------------------------------------------------------------------------------------------------

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
            self._training.finish_pushes()
            self._hooks.call_hooks("end", self)
        except StopIteration:
            pass  # a hook has no more data: as good an end
        except BaseException as error:
            self._close(told(error))
            raise
        self._close("")

    def _close(self, error: str) -> None:
        """Leave the run; `error`: why, "" for a good end. A second call does nothing."""
        if self._closed or self._turns.is_of_parent:
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
        if error is not None and not isinstance(error, StopIteration):
            self._close(told(error))
            return False
        self.close()
        return True

    # -- for traces -------------------------------------------------------------------------------------------

    @property
    def _push_numbers(self) -> tuple[tuple[int, int], dict[int, int]]:
        """Run epoch and incarnation of this session, and the number of its last push to each ps, that of the steps
        first. With these a trace links pushes to updates. Does not block."""
        membership = self._connection.membership
        return (membership.epoch, membership.incarnation), dict(self._pushes.numbers)

    def _chief_caller(self) -> tuple[Caller, str]:
        """A new connection with the keys of this session, and the address of the run's chief, which it can ask.

        It belongs to the thread that calls, which closes it. Does not block.
        """
        home = self._connection.home
        return Caller(home.runtime, home.name, home.keys), home.chief

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
        if params is not None and not self._own_server:
            config.trains.set()
        self._server.check_sees("ps", connection.agreed.plan.ps)
        if connection.compression is not None:
            connection.compression.check(connection.agreed.plan)
        known = connection.agreed.plan
        nesting = Nesting(nested([*known.by_name, *known.tables_by_name]) if params is None else params)
        self._pushes = Pushes(connection, self._waiter, nesting, self._reports.report_push, self._turns.times)
        self._pulls = Pulls(connection, self._waiter, self._pushes)
        self._saves = Saves(connection, self._pushes)
        from dps.client.training import PsTraining, SessionParts  # here: `import dps` stays quick

        self._parts = SessionParts(
            self, connection, self._waiter, self._turns, self._hooks, self._reports, self._pushes, self._pulls,
            self._train,
        )  # fmt: skip
        if params is None:
            self._training = PsTraining(self._parts)
        else:
            self._reports.watch_mistakes(params)
            if self._server.is_first:
                self._reports.trains(self._server, self.global_step)
            self._train()
        elsewhere = connection.joining.first_values is not None
        self._reports.opened(values.values(), elsewhere, connection.agreed)

    def _train(self) -> PsTraining:
        """The session takes part in the training: its calls are those of the run's update mode."""
        self._training = self._connection.agreed.mode.training(self._parts)
        return self._training

    def _give_up(self, error: BaseException) -> None:
        """Opening has failed: leave nothing behind, here or at the chief."""
        if self._opened:
            self._close(told(error))
            return
        self._closed = True
        if hasattr(self, "_connection"):
            self._connection.caller.close()
        if hasattr(self, "_waiter"):
            self._waiter.closed = True
        self._end_own_server()

    def _rejoined(self, new_epoch: bool, loss: Loss) -> Callable[[], None]:
        """The session has joined again, under a new incarnation and often in a new run epoch. Returns what tells the
        program, which is called once it takes part."""
        membership = self._connection.membership
        self._pulls.roll_back()
        given_up = self._pushes.roll_back()

        def tell() -> None:
            if new_epoch:
                self._reports.rolled_back(membership.restored, membership.epoch, loss)
            self._pushes.report_given_up(given_up)

        return tell

    def _hook_failed(self, text: str) -> None:
        """A hook that raises closes the session, also where there is no with-block."""
        if self._opened:
            self._close(text)


def join_run(server: Server, timeout: float = 60.0) -> Session:
    """A session that trains with the variables of the run, and brings none. Blocks until the run has variables."""
    session = Session(server, timeout=timeout)
    try:
        session._connection.joining.take_part(session.runtime.now() + timeout)
        session._pushes.roll_back()  # there are none; those to come are of the new incarnation
        session._train()
    except BaseException as error:
        session._give_up(error)
        raise
    return session


def publications(session: Session) -> Publications:
    """The published versions as a session sees them."""
    return session._publications


def exchanging(session: Session) -> Exchanging:
    """The calls by which a session in sync exchanges values with those of the other workers."""
    from dps.client.exchanging import Exchanging

    return Exchanging(session._connection, session._waiter, session._turns)


def is_open(session: Session | None) -> bool:
    """Whether there is a session that takes part in its run. A hook that raises closes one, too."""
    return session is not None and not session._closed


def client_of(session: Session) -> Server:
    """The task of a session. Where the session was given an address, it has made the task."""
    return session._server


if TYPE_CHECKING:
    _: type[Loop] = Session
