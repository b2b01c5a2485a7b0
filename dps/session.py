"""The session: what a training loop holds. The same text for every update mode."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import isfinite
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from dps import config, telemetry
from dps.cluster.advice import advice
from dps.cluster.placement import describe
from dps.connection import Connection
from dps.errors import DeadlineExceeded, DpsError
from dps.hooks.chain import Chain
from dps.hooks.scalars import Scalars, as_number
from dps.lookup import Lookups
from dps.optim import Optimizer, checked
from dps.prefetching import prefetched
from dps.protocol import Restore, Save, Saved
from dps.pulling import PullOp, Pulls
from dps.pushes import Pushes
from dps.pushing import streams
from dps.reply import Push, Reply, Version
from dps.server import Server
from dps.settings import check_timeout, run_settings
from dps.stepping import Stepping
from dps.surplus import Surplus, surplus_of
from dps.transport.endpoint import Runtime
from dps.transport.wire import Array
from dps.turns import Turns, one_at_a_time
from dps.update import Update
from dps.variables.layout import Gradient
from dps.variables.plan import Plan
from dps.variables.planning import plan_of
from dps.variables.tree import Nesting, nested
from dps.viewing import local_leases
from dps.waiting import Loss, Waiter

if TYPE_CHECKING:
    from dps.compress import Compressor
    from dps.compressing import Compression, Traffic
    from dps.hooks.hook import Hook

log = logging.getLogger("dps")

T = TypeVar("T")

FAREWELL_S = 5.0
FOREVER = float("inf")
"""A timeout for waits that may take as long as they like; who is waited for is logged every 10 s."""


class Session:
    """Pull, push, step: one client of the ps. One thread at a time uses it: RuntimeError for a second one.

    `server` is this process's `dps.Server`, or the address of any node (`server.target`). With `params` None the
    session reads the layout that is there. `timeout` (seconds) bounds every wait; a call's own goes first. Opening
    blocks until the chief has restored or initialised the run. Raises ConfigError when update mode, optimizer or
    layout differ from those of the run, DeadlineExceeded naming who is waited for, TaskLost when the run is gone,
    HookError when a hook raises: the session is closed then, and the other workers go on.
    """

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
        check_finite: bool = True,
        keep_checkpoints: int = 5,
        shared_memory: bool = True,
        compression: Compressor | Mapping[str, Compressor | None] | None = None,
        pull_compression: Compressor | Mapping[str, Compressor | None] | None = None,
        pull_deltas: bool = False,
        timeout: float = 60.0,
    ) -> None:
        """`update`: an instance, or "async", "sync", "bounded:S". `check_finite` False lets gradients with NaN pass;
        `keep_checkpoints` newest ones are kept. `shared_memory` False: also a ps on this machine is reached over its
        socket only. `compression` of gradients and `pull_compression` of values (`dps.compress`): one for all
        variables, or patterns of names with one for each, None for those left alone; the first that matches counts.
        `pull_deltas`: a pull moves only what changed since the last one, which is kept. A session with a
        checkpoint_dir gets a CheckpointSaver."""
        check_timeout(timeout)
        if optimizer is not None:
            checked(optimizer, "the session")
        settings = run_settings(
            update, durability, checkpoint_dir, None if params is None else check_finite, keep_checkpoints
        )
        self._compression: Compression | None = None
        if pull_deltas or compression is not None or pull_compression is not None:
            from dps.compressing import compression_of

            self._compression = compression_of(compression, pull_compression, bool(pull_deltas))
        self._own_server = isinstance(server, str)
        self._server = Server.client(server) if isinstance(server, str) else server
        self._timeout = timeout
        self._shared_memory = shared_memory
        self._turns = Turns(lambda: self.name)
        self._surplus: Surplus | None = None
        self._stop = False
        self._warned = False
        """Of a loss that is not finite."""
        self._closed = False
        self._connection: Connection
        self._opened = False
        self.scalars = Scalars()
        """What `summary` was given; hooks read it."""
        self._last_at = self._server.runtime.now()
        try:
            self._hooks = Chain(hooks, lambda: self.name, self._hook_failed)
            if checkpoint_dir:
                from dps.hooks.saver import CheckpointSaver

                if not any(isinstance(h, CheckpointSaver) for h in self._hooks.hooks):
                    self._hooks.hooks.append(CheckpointSaver())
            self._open(params, optimizer, placement, partitioner, settings, self._deadline(None))
        except BaseException as error:
            self._give_up(error)
            raise

    # -- opening ----------------------------------------------------------------------------------------------

    def _open(
        self, params: Any, optimizer: Optimizer | None, placement: Any, partitioner: Any, settings: dict[str, Any],
        deadline: float,
    ) -> None:  # fmt: skip
        self._server.wait_joined(deadline)
        connection = Connection(*self._server.session_arguments())
        connection.lanes.wanted = self._shared_memory
        connection.lanes.tells_at_once = params is None
        connection.compression = self._compression
        self._connection = connection
        self._waiter = Waiter(connection, self._timeout, self._rejoined)
        plan: Plan | None = None
        values: dict[str, Array] = {}
        if params is not None:
            tasks = connection.ps_tasks(deadline)
            self._server.check_sees("ps", tasks)
            plan, values = plan_of(params, optimizer, tasks, placement, partitioner)
            self._tell(plan)
            if self._compression is not None:
                self._compression.check(plan)
        self._hooks.call("begin")
        self._opened = True  # from here on the chief may know of this session
        try:
            connection.open(plan, values, settings, deadline)
        except DpsError as error:
            self._opened = isinstance(error, DeadlineExceeded)
            raise
        self._server.check_sees("ps", connection.plan.ps)
        if self._compression is not None:
            self._compression.check(connection.plan)
        nesting = Nesting(nested([v.name for v in connection.plan.variables]) if params is None else params)
        self._pushes = Pushes(connection, self._waiter, nesting, self._settled)
        self._pulls = Pulls(connection, self._waiter, self._pushes)
        self._stepping = Stepping(connection, self._pushes, self._pulls)
        self._lookups = Lookups(connection)
        self._surplus = surplus_of(values.values(), self.runtime)
        self._hooks.call("after_create_session", self)
        if telemetry.on_opened:
            telemetry.opened({"worker": self.name, "step": self.global_step, **self._hooks.knows()})

    def _tell(self, plan: Plan) -> None:
        """The plan in the log: from one worker for people to see, from the others for who looks for it. What would be
        more even is told by that one alone."""
        held = plan.bytes_per_ps()
        if not self._server.is_first:
            log.debug("%s: the plan\n%s", self.name, describe(held))
            return
        log.info("%s: the plan\n%s", self.name, describe(held))
        text = advice([(spec.name, spec.shape, spec.dtype) for spec in plan.variables], held)
        if text is not None:
            log.warning("%s: %s", self.name, text)

    def _give_up(self, error: BaseException) -> None:
        """Opening has failed: leave nothing behind, here or at the chief."""
        if self._opened:
            self._close(f"{type(error).__name__}: {error}")
            return
        self._closed = True
        if hasattr(self, "_connection"):
            self._waiter.closed = True
            self._connection.caller.close()
        self._end_own_server()

    # -- reading ----------------------------------------------------------------------------------------------

    @one_at_a_time
    def pull(
        self, names: Sequence[str] | None = None, out: Any = None, if_newer_than: Version | None = None,
        timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """The values, in the nesting of params; the arrays are the caller's. Blocks.

        `names`: only these variables, as nested dicts. `out`: the same nesting of arrays to fill and return.
        `if_newer_than`: a `session.version`; None comes back when nothing changed since. In sync the values are at
        least of the session's local step; in bounded mode the call waits while this worker is too far ahead.
        """
        self._waiter.check_open()
        if names is None and if_newer_than is None and (values := self._stepping.pull(out)) is not None:
            return values
        in_place = out is not None and if_newer_than is None  # straight from the ps's memory into the caller's arrays
        operation = self._pulls.start(names, if_newer_than, after=False, hold=in_place)
        try:
            return self._pulls.finish(operation, out, timeout)
        finally:
            operation.release()

    @one_at_a_time
    def pull_async(self, names: Sequence[str] | None = None) -> Reply[Any]:
        """As `pull`, but returns at once with a Reply."""
        operation = self._pulls.start(names, None, after=False)
        operation.start()
        self._connection.caller.flush()
        return self._reply(operation, lambda t: self._pulls.finish(operation, None, t), lambda: None)

    @one_at_a_time
    def prefetch(self, names: Sequence[str] | None = None) -> Iterator[Any]:
        """For loops: values as of `pull`, the next of them always on their way while the loop computes.

        `for values in session.prefetch(): session.push_async(gradients(values))` hides the time of a pull behind the
        computing. Values do not have the loop's own last push in them: its staleness is one more, and pushes say so.
        Ends when `should_stop`. Blocks while the next values are not there. Raises ConfigError in sync mode.
        """
        self._waiter.check_open()
        values = prefetched(self._pulls, names, self.should_stop, self._connection.caller.flush)
        return self._turns.each("prefetch", values)

    @contextmanager
    def view(self) -> Iterator[Any]:
        """The values read-only, in place where the ps are on this machine, else pulled. Valid inside the block.

        One version of each shard, never torn: a lease keeps the memory still. Blocks as `pull` does.
        """
        with ExitStack() as held:
            values = self._turns.of("view", self._viewed)(held)
            held.callback(self._turns.of("view", held.pop_all().close))
            yield values

    def _viewed(self, held: ExitStack) -> Any:
        """The values to read, and in `held` what lets them go."""
        self._waiter.check_open()
        packed = self._compression is not None and self._compression.pulls  # the same values wherever the ps are
        leases = None if packed else local_leases(self._connection)
        if leases is not None:
            held.callback(leases.release)
            return self._pulls.still(leases.memories())
        if (lent := self._stepping.lent()) is not None:
            held.callback(lent.release)
            self._stepping.holds()
            return self._pulls.still([lent.memory])
        return held.enter_context(self._pulls.held(None))

    @one_at_a_time
    def lookup(self, name: str, rows: Any, timeout: float | None = None, out: Array | None = None) -> Array:
        """Rows of a variable, shape (len(rows), ...), in the order of `rows`, integers (n,), which may repeat. Blocks.

        `out`: an array of that shape and the variable's dtype to fill and return.
        """
        self._waiter.check_open()
        operation = self._lookups.start(name, rows, out)
        try:
            self._waiter.wait(operation, timeout, f"looking up rows of {name}")
            return operation.result()
        finally:
            operation.drop()

    @one_at_a_time
    def lookup_async(self, name: str, rows: Any, out: Array | None = None) -> Reply[Array]:
        """As `lookup`, but returns at once with a Reply; `out` is filled when its result is there."""
        self._waiter.check_open()
        operation = self._lookups.start(name, rows, out)

        def finish(timeout: float | None) -> Array:
            self._waiter.wait(operation, timeout, f"looking up rows of {name}")
            return operation.result()

        return self._reply(operation, finish, lambda: None)

    # -- writing ----------------------------------------------------------------------------------------------

    @one_at_a_time
    def push(self, grads: Any, loss: Any = None, timeout: float | None = None) -> Push:
        """Send gradients and wait for the result; in sync that is the token for the next step. Blocks.

        Gradients have the nesting of params; missing keys and None mean none. `dps.Rows` for sparse ones. They may
        change once the result is there; after DeadlineExceeded the push is still on its way, and reads them. Raises
        ValueError naming the variable for a wrong name, shape, dtype or NaN; nothing is applied then. `loss` is a
        number, also as an array or tensor of one element, or None: TypeError or ValueError for anything else. A loss
        that is NaN or infinite is a warning, once; `dps.NanGuard` ends the loop.
        """
        gradients = self._gradients(grads, loss)
        made, operation = self._stepping.push(gradients, loss)
        if made is not None:
            self._settled(made.result, loss)
            return made.result
        return self._pushes.finish(operation or self._pushes.start(gradients, loss, timeout), timeout)

    @one_at_a_time
    def push_async(self, grads: Any, loss: Any = None) -> Reply[Push]:
        """As `push`, but returns at once with a Reply; the arrays must not change until its result is there.

        Hooks hear of the result when it is asked for, or at a later push or the end of the block.
        """
        operation = self._pushes.start(self._gradients(grads, loss), loss, None)
        self._connection.caller.flush()
        return self._reply(operation, lambda t: self._pushes.finish(operation, t), lambda: operation.accepted)

    @one_at_a_time
    def step(self, grads: Any, loss: Any = None, timeout: float | None = None) -> Any:
        """Push and pull in one round trip; returns the values after the update. Blocks."""
        gradients = self._gradients(grads, loss)
        made, pushing = self._stepping.step(gradients, loss)
        if made is not None:
            incarnation = self._connection.caller.incarnation
            self._settled(made.result, loss)
            if self._connection.caller.incarnation != incarnation or made.lent is None:  # a hook may have rolled back
                return self.pull(timeout=timeout)
            self._stepping.note(made.lent)
            return made.values
        pulling: PullOp | None = None

        def lead() -> None:
            """Where gradients take a while to leave the pull goes first: values may come meanwhile."""
            nonlocal pulling
            if streams(self._connection, gradients):
                pulling = self._pulls.start(None, None, after=True, leads=True)
                pulling.start()

        try:
            if pushing is None:
                pushing = self._pushes.start(gradients, loss, timeout, self._pulls.may_come_with_a_push, first=lead)
            if pulling is None and self._pulls.may_follow_a_push:
                pulling = self._pulls.start(None, None, after=True, behind=pushing)
                pulling.start()
            self._pushes.finish(pushing, timeout)
            if pulling is None or pushing.rolled_back:
                return self.pull(timeout=timeout)
            return self._pulls.finish(pulling, None, timeout)
        finally:
            if pulling is not None:
                pulling.drop()

    @one_at_a_time
    def gradients(self) -> Any:
        """Arrays to fill, in the nesting of params, that are pushed without being gathered first.

        Yours until pushed, again yours when the push is acknowledged. Contents are undefined.
        """
        self._waiter.check_open()
        return self._pushes.gradients()

    def _reply(
        self, operation: Any, finish: Callable[[float | None], T], accepted: Callable[[], bool | None]
    ) -> Reply[T]:
        """A reply whose calls are this session's."""
        of = self._turns.of
        return Reply(of("result", finish), of("done", lambda: self._waiter.poll(operation)), accepted)

    def _gradients(self, grads: Any, loss: Any) -> Mapping[int, Gradient]:
        """A step of the loop begins: its gradients by variable index, checked, as its loss is."""
        self._waiter.check_open()
        if loss is not None:
            as_number(loss, "loss")  # before anything is sent
        gradients = self._pushes.of(grads)
        self._hooks.call("before_run", self)
        self._connection.runtime.compute()
        return gradients

    def _settled(self, result: Push, loss: Any) -> None:
        """A push has its result: tell who listens."""
        if self._surplus is not None and self._surplus.give_back():
            self._surplus = None
        now = self.runtime.now()
        number = None if loss is None else as_number(loss, "loss")
        if number is not None and not isfinite(number):
            self._not_finite(number, result.step)
        if telemetry.on_progress:
            telemetry.progress(
                {
                    "worker": self.name, "step": result.step, "loss": number,
                    "accepted": result.accepted, "staleness": result.staleness, "seconds": now - self._last_at,
                }
            )  # fmt: skip
        self._last_at = now
        self._hooks.call("after_run", self, result, loss)

    def _not_finite(self, loss: float, step: int) -> None:
        """A loss is NaN or infinite: a warning, once, unless a hook sees to it."""
        from dps.hooks.nan import NanGuard

        if self._warned or any(isinstance(hook, NanGuard) for hook in self._hooks.hooks):
            return
        self._warned = True
        log.warning(
            "%s: the loss is %s at step %d, and training goes on; lower the learning rate or check the data; "
            "hooks=[dps.NanGuard()] ends the loop when this happens",
            self.name, loss, step,
        )  # fmt: skip

    def _rejoined(self, new_epoch: bool, loss: Loss) -> None:
        """The session takes part again, under a new incarnation and often in a new run epoch."""
        connection = self._connection
        self._pulls.roll_back()
        self._lookups.roll_back()

        def tell() -> None:
            if new_epoch:
                log.warning(
                    "%s: rolled back to step %d in run epoch %d, %s%s",
                    self.name, connection.restored, connection.epoch, loss,
                    f"; {telemetry.LOSE_LESS}" if loss.steps else "",
                )  # fmt: skip
                self._hooks.call("rolled_back", self, connection.restored, loss.steps)

        self._pushes.roll_back(tell)

    def _hook_failed(self, text: str) -> None:
        """A hook that raises closes the session, also where there is no with-block."""
        if self._opened:
            self._close(text)

    # -- the rest ---------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The task's name, as "worker:0"."""
        return self._server.name

    @property
    def runtime(self) -> Runtime:
        """The clock and the disk that this session stands on, for hooks: real, or the simulator's."""
        return self._server.runtime

    @property
    def global_step(self) -> int:
        """The highest global step that this session has heard of. Does not ask."""
        return self._connection.step

    @property
    def version(self) -> Version:
        """What the last whole pull read; for `pull(if_newer_than=...)`."""
        return self._pulls.version

    @property
    def traffic(self) -> Traffic | None:
        """Bytes of gradients and values that this session has moved, and what they would be uncompressed.

        None for a session without compressors. A copy; does not ask.
        """
        return None if self._compression is None else self._compression.traffic.copy()

    @property
    def checkpoint_dir(self) -> str | None:
        """The run's folder for checkpoints; None when it has none."""
        return str(self._connection.settings.get("checkpoint_dir") or "") or None

    @property
    @one_at_a_time
    def is_chief(self) -> bool:
        """Whether this is the session of the lowest living worker. Asks the chief; blocks up to 5 s."""
        return self._connection.asks_leads(min(FAREWELL_S, self._timeout))

    def should_stop(self) -> bool:
        """Whether the loop is to end: a hook, Ctrl-C or the chief asked for it, or the run has ended."""
        server = self._server
        return self._stop or config.stop_requested.is_set() or server.stop_requested or server.exit_code is not None

    def request_stop(self) -> None:
        """Make `should_stop` true."""
        self._stop = True

    def summary(self, name: str, value: Any) -> None:
        """Report a number, such as an accuracy, to the hooks that write summaries and logs; the newest value counts.

        Raises ValueError for what is no number, and for a name that every row has (step, loss and so on).
        """
        self.scalars.put(name, value)

    @one_at_a_time
    def save(self, timeout: float | None = None) -> str:
        """Write a checkpoint now; returns its name. Nothing is written when the step is saved already. Blocks."""
        self._waiter.check_open()
        connection = self._connection
        answer = self._waiter.retrying(
            lambda deadline: connection.ask(Save(connection.number), deadline, "the checkpoint"), timeout
        )
        assert isinstance(answer, Saved)
        return answer.name

    @one_at_a_time
    def restore(self, name: str = "", timeout: float | None = None) -> int:
        """Roll the run back to a checkpoint, by default the newest whole one; returns the step. Blocks.

        All sessions are rolled back, as after the loss of a ps. Raises CheckpointError when it cannot be used.
        """
        self._waiter.check_open()
        connection, deadline = self._connection, self._waiter.deadline(timeout)
        connection.ask(Restore(connection.number, connection.epoch, name), deadline, "the chief")
        self._waiter.recover(deadline)
        return connection.step

    @one_at_a_time
    def stats(self) -> dict[str, Any]:
        """Counters of every ps and of the chief, by task name, for people. Blocks."""
        self._waiter.check_open()
        return self._connection.stats(self._waiter.deadline(None))

    @one_at_a_time
    def close(self) -> None:
        """Wait for the pushes on their way, call the hooks' `end`, tell the chief, close. Blocks.

        A second call does nothing. What a with-block does at its end, when there was no error.
        """
        if self._closed:
            return
        try:
            self._pushes.drain()
            self._hooks.call("end", self)
        except StopIteration:
            pass  # a hook has no more data: as good an end
        except BaseException as error:
            self._close(f"{type(error).__name__}: {error}")
            raise
        self._close("")

    def _close(self, error: str) -> None:
        """Leave the run; `error`: why, "" for a good end. A second call does nothing."""
        if self._closed:
            return
        self._turns.take("close", FAREWELL_S)
        try:
            self._closed = self._waiter.closed = True
            self._connection.close(error, min(FAREWELL_S, self._timeout))
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Ends the session; running out of data (StopIteration) counts as a good end and is swallowed."""
        if kind is not None and not issubclass(kind, StopIteration):
            self._close(f"{type(error).__name__}: {error}")
            return False
        self.close()
        return True
