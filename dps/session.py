"""The session: what a training loop holds. The same text for every update mode."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np

from dps import config, telemetry
from dps import update as update_modes
from dps.cluster.placement import describe, warning
from dps.connection import SLICE_S, Connection
from dps.errors import Aborted, ConfigError, DeadlineExceeded
from dps.hooks import CheckpointSaver, Hook
from dps.optim import Optimizer
from dps.protocol import Restore, Save, Saved
from dps.pulling import PullOp, Shards, lookup_rows, pull_shards
from dps.pushing import PushOp, gradient_buffers, push_shards
from dps.reply import Push, Reply, Version
from dps.server import Server
from dps.transport.wire import Array
from dps.variables.layout import assemble, check_gradients
from dps.variables.plan import Plan
from dps.variables.planning import plan_of
from dps.variables.tree import builder, leaves, nested
from dps.viewing import local_leases

log = logging.getLogger("dps")

WARN_NBYTES = 1 << 20
"""Models smaller than this may lie as unevenly as they like."""
FOREVER = float("inf")
"""A timeout for waits that may take as long as they like; who is waited for is logged every 10 s."""


class Session:
    """Pull, push, step: one client of the ps. Belongs to the thread that made it.

    `server` is this process's `dps.Server`, or the address of any node (`server.target`). With `params` None the
    session reads the layout that is there. `timeout` (seconds) bounds every wait; a call's own goes first. Opening
    blocks until the chief has restored or initialised the run. Raises ConfigError when update mode, optimizer or
    layout differ from those of the run, DeadlineExceeded naming who is waited for, TaskLost when the run is gone.
    """

    def __init__(
        self,
        server: Server | str,
        params: Any = None,
        *,
        optimizer: Optimizer | None = None,
        update: update_modes.Update | None = None,
        durability: str = "none",
        placement: Any = None,
        partitioner: Any = None,
        checkpoint_dir: str | None = None,
        hooks: Sequence[Hook] = (),
        check_finite: bool = True,
        keep_checkpoints: int = 5,
        timeout: float = 60.0,
    ) -> None:
        """`check_finite` False lets gradients with NaN pass; `keep_checkpoints` newest ones are kept."""
        if durability != "none":
            raise ConfigError(f"durability {durability!r} is not there yet; wanted 'none'")
        self._own_server = isinstance(server, str)
        self._server = Server.client(server) if isinstance(server, str) else server
        self._timeout = timeout
        self._stop = False
        self._closed = False
        self._pushes: list[PushOp] = []
        self._cache: dict[int, Array] = {}
        self._buffers: list[Any] = []
        self._last_at = self._server.runtime.now()
        self._hooks = list(hooks)
        if checkpoint_dir and not any(isinstance(h, CheckpointSaver) for h in self._hooks):
            self._hooks.append(CheckpointSaver())
        deadline = self._deadline(None)
        try:
            self._server.wait_joined(deadline)
            self._connection = Connection(*self._server.session_arguments())
            self._open(
                params,
                optimizer,
                update,
                placement,
                partitioner,
                checkpoint_dir,
                check_finite,
                keep_checkpoints,
                deadline,
            )
        except BaseException:
            self._abandon()
            raise

    def _open(
        self, params: Any, optimizer: Optimizer | None, update: update_modes.Update | None, placement: Any,
        partitioner: Any, checkpoint_dir: str | None, check_finite: bool, keep: int, deadline: float,
    ) -> None:  # fmt: skip
        connection = self._connection
        plan: Plan | None = None
        values: dict[str, Array] = {}
        settings: dict[str, Any] = {}
        if update is not None:
            settings["update"] = update_modes.to_wire(update)
        if checkpoint_dir:
            settings["checkpoint_dir"] = str(checkpoint_dir)
        if params is not None:
            settings |= {"check_finite": check_finite, "keep": keep}
            plan, values = plan_of(params, optimizer, connection.ps_tasks(deadline), placement, partitioner)
            log.info("%s: the plan\n%s", self.name, describe(plan.bytes_per_ps()))
            if plan.nbytes > WARN_NBYTES and (advice := warning(plan.bytes_per_ps())) is not None:
                log.warning("%s: %s", self.name, advice)
        for hook in self._hooks:
            hook.begin()
        connection.open(plan, values, settings, deadline)
        tree = params if params is not None else nested([v.name for v in connection.plan.variables])
        self._build = builder(tree)
        self._pulled_counters = dict.fromkeys(connection.plan.ps, -1)
        self._numbers = dict.fromkeys(connection.plan.ps, 0)
        self.version = Version(connection.epoch, ())
        self._acknowledged = 0
        for hook in self._hooks:
            hook.after_create_session(self)

    # -- reading ----------------------------------------------------------------------------------------------

    def pull(
        self, names: Sequence[str] | None = None, out: Any = None, if_newer_than: Version | None = None,
        timeout: float | None = None,
    ) -> Any:  # fmt: skip
        """The values, in the nesting of params; the arrays are the caller's. Blocks.

        `names`: only these variables, as nested dicts. `out`: the same nesting of arrays to fill and return.
        `if_newer_than`: a `session.version`; None comes back when nothing changed since. In sync the values are at
        least of the session's local step; in bounded mode the call waits while this worker is too far ahead.
        """
        operation = self._start_pull(names, if_newer_than, after=False)
        return self._finish_pull(operation, out, timeout)

    def pull_async(self, names: Sequence[str] | None = None) -> Reply[Any]:
        """As `pull`, but returns at once with a Reply."""
        operation = self._start_pull(names, None, after=False)
        return Reply(lambda t: self._finish_pull(operation, None, t), lambda: self._poll(operation), lambda: None)

    @contextmanager
    def view(self) -> Iterator[Any]:
        """The values read-only, in place where all ps are in this process, else pulled. Valid inside the block.

        One version of each shard, never torn: a lease keeps the memory still. Blocks as `pull` does.
        """
        self._check_open()
        leases = local_leases(self._connection)
        if leases is None:
            tree = self.pull()
            for _, array in leaves(tree):
                array.flags.writeable = False
            yield tree
            return
        try:
            yield self._tree({i: v for lease in leases.values() for i, v in lease.items()}, None)
        finally:
            leases.release()

    def lookup(self, name: str, rows: Any, timeout: float | None = None) -> Array:
        """Rows of a variable, shape (len(rows), ...); rows are integers (n,). Blocks."""
        self._check_open()
        found: Array = self._retrying(lambda deadline: lookup_rows(self._connection, name, rows, deadline), timeout)
        return found

    def _start_pull(self, names: Sequence[str] | None, newer_than: Version | None, after: bool) -> PullOp:
        self._check_open()
        known = None if names is None else self._indices(names)
        return PullOp(known, newer_than is not None, lambda: self._launch_pull(known, newer_than, after))

    def _launch_pull(self, names: list[int] | None, newer_than: Version | None, after: bool) -> Shards:
        """Ask the ps, with what holds in the run epoch of now: a pull that outlives a rollback is launched again."""
        connection = self._connection
        counters = dict(newer_than.counters) if newer_than and newer_than.epoch == connection.epoch else {}
        behind = after and bool(self._pushes)
        clock = self._acknowledged + (1 if behind else 0)
        return pull_shards(connection, names, counters, self._numbers if behind else {}, clock)

    def _indices(self, names: Sequence[str]) -> list[int]:
        by_name = self._connection.plan.by_name
        unknown = [n for n in names if n not in by_name]
        if unknown:
            raise ValueError(f"no variables {unknown}; there are {list(by_name)[:10]}")
        return [by_name[n] for n in names]

    def _finish_pull(self, operation: PullOp, out: Any, timeout: float | None) -> Any:
        self._wait(operation, timeout, "a pull")
        connection = self._connection
        if not operation.conditional:
            views = operation.views()
        else:
            if not any(t.newer for t in operation.transfers.values()):
                return None
            missing = [ps for ps, t in operation.transfers.items() if not t.newer and ps not in self._cache]
            if missing:
                return self._finish_pull(self._start_pull(None, None, after=False), out, timeout)
            views = operation.views(self._cache)
        self._cache = operation.kept_runs(self._cache) if operation.conditional else self._cache
        if operation.names is None:
            counters = {ps: t.counter for ps, t in operation.transfers.items()}
            self._pulled_counters |= counters
            self.version = Version(connection.epoch, tuple(sorted(counters.items())))
        connection.step = max(connection.step, *(t.step for t in operation.transfers.values()))
        tree = self._tree(views, operation.names)
        return tree if out is None else _filled(out, tree)

    def _tree(self, views: dict[int, Array], names: list[int] | None) -> Any:
        plan = self._connection.plan
        leaf = assemble(plan, views, plan.by_name)
        if names is None:
            return self._build(leaf)
        return builder(nested([plan.variables[i].name for i in names]))(leaf)

    # -- writing ----------------------------------------------------------------------------------------------

    def push(self, grads: Any, loss: Any = None, timeout: float | None = None) -> Push:
        """Send gradients and wait for the result; in sync that is the token for the next step. Blocks.

        Gradients have the nesting of params; missing keys and None mean none. `dps.Rows` for sparse ones. Raises
        ValueError naming the variable for a wrong name, shape, dtype or NaN; nothing is applied then.
        """
        operation = self._start_push(grads, timeout)
        return self._finish_push(operation, loss, timeout)

    def push_async(self, grads: Any, loss: Any = None) -> Reply[Push]:
        """As `push`, but returns at once with a Reply; the arrays must not change until its result is there."""
        operation = self._start_push(grads, None)
        return Reply(
            lambda t: self._finish_push(operation, loss, t), lambda: self._poll(operation), lambda: operation.accepted
        )

    def step(self, grads: Any, loss: Any = None, timeout: float | None = None) -> Any:
        """Push and pull in one round trip; returns the values after the update. Blocks."""
        pushing = self._start_push(grads, timeout)
        pulling = self._start_pull(None, None, after=True) if self._one_round_trip() else None
        if pulling is not None:
            pulling.start()
        self._finish_push(pushing, loss, timeout)
        if pulling is None or pushing.rolled_back:
            return self.pull(timeout=timeout)
        return self._finish_pull(pulling, None, timeout)

    def _one_round_trip(self) -> bool:
        """Whether a pull may follow its push at once: not where a token can come before the push is applied."""
        update = self._connection.settings["update"]
        if update["mode"] == "sync":
            return update["replicas_to_aggregate"] is None and not update["initial_tokens"]
        return not (self._connection.bounded and len(self._connection.plan.ps) > 1)

    def gradients(self) -> Any:
        """Arrays to fill, in the nesting of params, that are pushed without being gathered first.

        Yours until pushed, again yours when the push is acknowledged. Contents are undefined.
        """
        self._check_open()
        runs, tree_views = gradient_buffers(self._connection.plan)
        self._buffers.append(runs)
        del self._buffers[:-4]
        plan = self._connection.plan
        return self._build(
            lambda name: (
                tree_views[plan.parts_of[plan.by_name[name]][0].index]
                if len(plan.parts_of[plan.by_name[name]]) == 1
                else np.empty(plan.variables[plan.by_name[name]].shape, plan.variables[plan.by_name[name]].dtype)
            )
        )

    def _start_push(self, grads: Any, timeout: float | None) -> PushOp:
        self._check_open()
        connection = self._connection
        gradients = check_gradients(connection.plan, list(leaves(grads)))
        for hook in self._hooks:
            hook.before_run(self)
        connection.runtime.compute()
        operation = push_shards(
            connection, gradients, self._numbers, self._pulled_counters, self._buffers,
            lambda: self._make_room(timeout),
        )  # fmt: skip
        self._pushes.append(operation)
        return operation

    def _make_room(self, timeout: float | None) -> None:
        """Wait until the send window has room for one more push."""
        self._account()
        while len(self._pushes) >= PushOp.WINDOW:
            self._wait(self._pushes[0], timeout, "an earlier push")
            self._account()

    def _account(self) -> None:
        """Take note of the pushes that are complete, once each and in the run epoch that they belong to."""
        connection = self._connection
        for operation in [p for p in self._pushes if p.complete and not p.rolled_back]:
            result = operation.result(connection.step)
            self._acknowledged += 1
            connection.step = max(connection.step, result.step)
            if connection.sync:
                connection.local_step = max(connection.local_step, result.step)
        self._pushes = [p for p in self._pushes if not p.complete]

    def _finish_push(self, operation: PushOp, loss: Any, timeout: float | None) -> Push:
        self._wait(operation, timeout, "a push")
        self._account()
        connection = self._connection
        result = operation.result(connection.step)
        if operation.refusal:
            raise ValueError(operation.refusal)
        now = connection.runtime.now()
        telemetry.progress(
            {
                "worker": self.name, "step": result.step, "loss": None if loss is None else float(loss),
                "accepted": result.accepted, "staleness": result.staleness, "seconds": now - self._last_at,
            }
        )  # fmt: skip
        self._last_at = now
        for hook in self._hooks:
            hook.after_run(self, result, loss)
        return result

    # -- waiting ----------------------------------------------------------------------------------------------

    def _deadline(self, timeout: float | None) -> float:
        return self._server.runtime.now() + (self._timeout if timeout is None else timeout)

    def _poll(self, operation: PullOp | PushOp) -> bool:
        operation.start()
        self._connection.caller.poll()
        return operation.complete

    def _wait(self, operation: PullOp | PushOp, timeout: float | None, what: str) -> None:
        """Pump until an operation is complete, through rollbacks and lost ps. Raises at the deadline."""
        self._check_open()
        connection, deadline = self._connection, self._deadline(timeout)
        started = reported = connection.runtime.now()
        operation.start()
        while not operation.complete:
            if connection.aborted:
                self._recover(deadline)
                operation.start()
                continue
            connection.check_node()
            now = connection.runtime.now()
            if now >= deadline:
                raise DeadlineExceeded(self._late(operation, what, now - started), operation)
            if now - reported >= 10.0:
                reported = now
                log.warning("%s", self._late(operation, what, now - started))
            if now - started >= SLICE_S:
                connection.look_at_chief()
            connection.caller.wait(
                operation.requests(), min(deadline - now, SLICE_S), lambda: connection.aborted or operation.complete
            )
        operation.raise_error()

    def _late(self, operation: PullOp | PushOp, what: str, waited_s: float) -> str:
        reasons = [text for text in (*operation.waits_for(), self._connection.silent()) if text]
        why = "; ".join(dict.fromkeys(reasons)) or "the ps did not answer"
        return f"{self.name}: {what} took more than {waited_s:.1f} s at step {self.global_step}: {why}"

    def _retrying(self, call: Callable[[float], Any], timeout: float | None) -> Any:
        deadline = self._deadline(timeout)
        while True:
            try:
                return call(deadline)
            except Aborted:
                self._recover(deadline)

    def _recover(self, deadline: float) -> None:
        """Join the run's new epoch; pushes on their way are given up, and say so."""
        connection = self._connection
        before, epoch = connection.step, connection.epoch
        connection.reopen(deadline)
        for operation in self._pushes:
            operation.roll_back(connection.caller)
        self._pushes = []
        self._cache = {}
        self._acknowledged = 0
        self._pulled_counters = dict.fromkeys(connection.plan.ps, -1)
        self._numbers = dict.fromkeys(connection.plan.ps, 0)
        lost = max(0, before - connection.step) if connection.epoch != epoch else 0
        connection.runtime.record("rejoined", epoch=connection.epoch, step=connection.step, lost=lost)
        if connection.epoch != epoch:
            log.warning(
                "%s: rolled back to step %d in run epoch %d, %d steps lost",
                self.name,
                connection.step,
                connection.epoch,
                lost,
            )
            for hook in self._hooks:
                hook.rolled_back(self, connection.step, lost)

    # -- the rest ---------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The task's name, as "worker:0"."""
        return self._server.name

    @property
    def global_step(self) -> int:
        """The highest global step that this session has heard of. Does not ask."""
        return self._connection.step

    @property
    def is_chief(self) -> bool:
        """Whether this is the session of the lowest living worker. Asks the chief; blocks up to 5 s."""
        return self._connection.asks_leads(min(5.0, self._timeout))

    def should_stop(self) -> bool:
        """Whether the loop is to end: a hook or Ctrl-C asked for it, or the run has ended."""
        return self._stop or config.stop_requested.is_set() or self._server.exit_code is not None

    def request_stop(self) -> None:
        """Make `should_stop` true."""
        self._stop = True

    def save(self, timeout: float | None = None) -> str:
        """Write a checkpoint now; returns its name. Nothing is written when the step is saved already. Blocks."""
        self._check_open()
        connection = self._connection
        answer = self._retrying(
            lambda deadline: connection.ask(Save(connection.number), deadline, "the checkpoint"), timeout
        )
        assert isinstance(answer, Saved)
        return answer.name

    def restore(self, name: str = "", timeout: float | None = None) -> int:
        """Roll the run back to a checkpoint, by default the newest whole one; returns the step. Blocks.

        All sessions are rolled back, as after the loss of a ps. Raises CheckpointError when it cannot be used.
        """
        self._check_open()
        connection, deadline = self._connection, self._deadline(timeout)
        connection.ask(Restore(connection.number, connection.epoch, name), deadline, "the chief")
        self._recover(deadline)
        return connection.step

    def stats(self) -> dict[str, Any]:
        """Counters of every ps and of the chief, by task name, for people. Blocks."""
        self._check_open()
        return self._connection.stats(self._deadline(None))

    def close(self) -> None:
        """Wait for the pushes on their way, tell the chief, close. A second call does nothing. Blocks."""
        self._close("")

    def _close(self, error: str) -> None:
        if self._closed:
            return
        try:
            if not error:
                for operation in list(self._pushes):
                    self._wait(operation, None, "a push")
        finally:
            self._closed = True
            self._connection.close(error, min(5.0, self._timeout))
            self._abandon()

    def _abandon(self) -> None:
        if self._own_server:
            self._server.stop()
            self._server.join(2.0)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the session is closed")

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Ends the session; running out of data (StopIteration) counts as a good end and is swallowed."""
        good = kind is None or issubclass(kind, StopIteration)
        if not good:
            self._close(f"{type(error).__name__}: {error}")
            return False
        try:
            for hook in self._hooks:
                hook.end(self)
        except BaseException as problem:
            self._close(f"{type(problem).__name__}: {problem}")
            raise
        self._close("")
        return True


def _filled(out: Any, tree: Any) -> Any:
    """Copy values into the caller's arrays; ValueError where one does not fit."""
    targets = dict(leaves(out))
    for name, array in leaves(tree):
        target = targets.get(name)
        if not isinstance(target, np.ndarray) or target.shape != array.shape or target.dtype != array.dtype:
            got = (
                "nothing"
                if target is None
                else f"{getattr(target, 'dtype', type(target))} {getattr(target, 'shape', '')}"
            )
            raise ValueError(f"out has {got} for {name}; wanted an array of {array.dtype} {array.shape}")
        target[...] = array
    return out
