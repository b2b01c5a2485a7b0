"""The calls of a session's loop that read and change values, with the values on the ps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from dps.client.ahead import Ahead, PostedValues
from dps.client.assembly import Whole
from dps.client.at_once import AtOnce
from dps.client.connection import Connection
from dps.client.lanes import Releasable
from dps.client.loading import checked, is_empty
from dps.client.lookup import Lookups
from dps.client.pulling import PullOp, Pulls
from dps.client.push_operations import PushOp
from dps.client.pushing import Pushes
from dps.client.reports import Reports
from dps.client.waiting import Operation, ThreadGuard, Waiter
from dps.hooks.hook import Chain, Loop
from dps.hooks.scalars import as_number
from dps.messages.replies import Push, Reply, Version
from dps.process.telemetry import log
from dps.variables.layout import Gradient

T = TypeVar("T")


class SessionParts(NamedTuple):
    """What a session consists of."""

    session: Loop
    """The session, as hooks see it."""
    connection: Connection
    waiter: Waiter
    turns: ThreadGuard
    hooks: Chain
    reports: Reports
    pushes: Pushes
    pulls: Pulls
    train: Callable[[], PsTraining]
    """Makes the session's calls those of its update mode, and returns them."""


class Held:
    """Values, read-only, which stay where they are until `release`. Belongs to one call or block of a session."""

    _held: Sequence[Releasable] = ()
    _is_silent = False

    def __init__(self, training: PsTraining) -> None:
        self._training = training

    def keep(self, held: Sequence[Releasable], is_silent: bool = False) -> None:
        """Release these together with the values. `is_silent`: no message is sent then, so that it needs no turn of the
        session."""
        self._held, self._is_silent = held, is_silent

    def release(self) -> None:
        """The values are not read any more. Does nothing if there are none."""
        for each in self._held:
            each.release()
        self._held = ()  # only now: after Ctrl-C `__del__` releases the others

    def leave(self) -> None:
        """As `release`, for any thread: what needs a message is released by the session's next call."""
        if self._held and not self._is_silent:
            self._training.leave(self._held)
            self._held = ()
        self.release()

    def __del__(self) -> None:
        if self._held:
            self.leave()


class LoopValues(Held):
    """The values, read in place, of a turn of a loop that reads ahead; and that there is such a loop, until `end`."""

    def begin(self, in_place: bool) -> None:
        """The loop reads all values, `in_place` or as a copy."""
        self._training.ahead.loops[id(self)] = in_place

    def end(self) -> None:
        """The loop is over. A second call does nothing."""
        self._training.ahead.end_loop(id(self))
        self.leave()

    def __del__(self) -> None:
        self.end()


class ViewBlock(Held, AbstractContextManager[Any]):
    """The block of a view: the values are taken when it begins, and released when it ends. It is entered once."""

    _began = False

    def __enter__(self) -> Any:
        if self._began:
            raise RuntimeError(
                f"{self._training.task}: a block of view() or step_in_place() was entered a second time; "
                "write for each: with session.view() as values"
            )
        self._began = True
        try:
            return self._training.reports.saw(self._take())
        except BaseException:
            self.__exit__()
            raise

    def _take(self) -> Any:
        """Take the values of the block."""
        return self._training.turns.run("view", self._training.take, self, None)

    def __exit__(self, *about: object) -> None:
        if self._is_silent:
            self.release()
        elif self._held:
            try:
                self._training.turns.run("view", self.release)
            finally:
                self.leave()


class StepBlock(ViewBlock):
    """The block of a step in place, which is made when the block begins."""

    _given: Any = None

    def __init__(self, training: PsTraining, grads: Any, loss: Any, timeout: float | None) -> None:
        super().__init__(training)
        self._given = grads, loss, timeout

    def _take(self) -> Any:
        """Make the step, and take the values after it."""
        return self._training.turns.run("step_in_place", self._training.step_held, self, *self._given)

    def __del__(self) -> None:
        if self._began:
            if self._held:
                super().__del__()
        elif self._given is not None:  # else Ctrl-C came before it was made
            log.warning(
                "%s: step_in_place was called without `with`, and nothing was pushed; "
                "write: with session.step_in_place(grads) as values", self._training.task,
            )  # fmt: skip


class PsTraining:
    """These calls, as `dps.Session` documents them. A call belongs to the thread that has the session's turn."""

    def __init__(self, parts: SessionParts) -> None:
        self._session, self._connection, self._waiter, self.turns = parts[:4]
        self._hooks, self.reports, self._pushes, self._pulls, self._train = parts[4:]
        self._lookups = Lookups(self._connection, self._waiter, self._pushes, self._pulls)
        self._compute = self._connection.home.runtime.compute
        self._at_once = AtOnce(self._connection, self._pushes, self._pulls)

    # -- changing -----------------------------------------------------------------------------------------------

    def push(self, grads: Any, loss: Any, timeout: float | None) -> Push:
        """As Session.push."""
        gradients = self._gradients(grads, loss)
        made = self._at_once.push(gradients, loss)
        if not isinstance(made, tuple):
            return self._pushes.finish(made or self._pushes.start(gradients, loss, timeout), timeout)
        self.reports.report_push(made[0], loss)
        return made[0]

    def push_async(self, grads: Any, loss: Any) -> Reply[Push]:
        """As Session.push_async."""
        gradients = self._gradients(grads, loss)
        operation: PushOp | None = self._at_once.push_async(gradients, loss)
        if operation is None:
            operation = self._pushes.start(gradients, loss, None)
            self._connection.caller.flush()
        pushed = operation
        return self._reply(pushed, lambda t: self._pushes.finish(pushed, t), lambda: pushed.accepted)

    def step(self, grads: Any, loss: Any, timeout: float | None, out: Any) -> Any:
        """As Session.step."""
        if out is not None:
            write, held = self._writer(out, None), Held(self)
            try:
                return self.reports.saw(write(self.step_held(held, grads, loss, timeout)))
            finally:
                held.release()
        return self.reports.saw(self.step_held(None, grads, loss, timeout))

    def step_held(self, held: Held | None, grads: Any, loss: Any, timeout: float | None) -> Any:
        """As Session.step, but the values stay where they are until `held` is released. None: they are a copy."""
        gradients = self._gradients(grads, loss)
        made = self._at_once.push(gradients, loss, True, None if held is None else held.keep)
        if not isinstance(made, tuple):
            return self._push_and_pull(made, gradients, loss, timeout, held)
        result, values, holds = made
        peers = self._connection.peers
        self.reports.report_push(result, loss)
        if holds and self._connection.peers is peers:
            self._at_once.note(holds)
            return values
        if held is None:  # a hook may have rolled back
            return self._pull_all(timeout)
        held.release()
        return self.take(held, timeout)

    def step_block(self, grads: Any, loss: Any, timeout: float | None) -> StepBlock:
        """As Session.step_in_place."""
        return StepBlock(self, grads, loss, timeout)

    def view_block(self) -> ViewBlock:
        """As Session.view."""
        return ViewBlock(self)

    def leave(self, held: Sequence[Releasable]) -> None:
        """The session's next call releases this. Any thread may call it."""
        self._pulls.left.append(held)

    @property
    def ahead(self) -> Ahead:
        """What the loops that read ahead have in common."""
        return self._at_once.ahead

    @property
    def task(self) -> str:
        """The name of the session's task."""
        return self._connection.home.name

    def _push_and_pull(
        self, pushing: PushOp | None, gradients: Mapping[int, Gradient], loss: Any, timeout: float | None,
        held: Held | None,
    ) -> Any:  # fmt: skip
        """Push and pull by ordinary requests, of which the pull follows the push at once where it may. `pushing`: the
        push, if it is sent already. `held`: as of `step_held`; None: the values are copied. Blocks."""
        pulling: PullOp | None = None
        try:
            if pushing is None:
                pushing = self._pushes.prepare(gradients, loss, timeout, self._pulls.may_come_with_a_push)
                if pushing.streams:  # gradients take a while to leave, and values may come meanwhile
                    pulling = self._pulls.start(None, None, after=True, hold=held is not None, leads=True)
                    pulling.start()
                self._pushes.send(pushing)
            if pulling is None and self._connection.agreed.mode.pull_follows_push:
                pulling = self._pulls.start(None, None, after=True, hold=held is not None, behind=pushing)
                pulling.start()
            self._pushes.finish(pushing, timeout)
            if pulling is None or pushing.rolled_back:
                return self._pull_all(timeout) if held is None else self.take(held, timeout)
            values = self._pulls.finish(pulling, timeout)
            if held is not None:
                held.keep((pulling,), pulling.is_silent)
                pulling = None
            return values
        finally:
            if pulling is not None:
                pulling.drop()

    def assign(self, values: Any, timeout: float | None) -> None:
        """As Session.assign."""
        self._waiter.check_open()
        agreed = self._connection.agreed
        self.reports.assigned()
        if found := checked(agreed.plan, values, agreed.settings.get("check_finite", True)):
            self._pushes.assign(found, timeout)

    def finish_pushes(self) -> None:
        """The session is closed: wait for its pushes."""
        self._pushes.drain()

    def _gradients(self, grads: Any, loss: Any) -> Mapping[int, Gradient]:
        """A step of the loop begins: its gradients by variable index, checked, as its loss is."""
        if self._waiter.closed:
            self._waiter.check_open()
        if self._pulls.left:
            self._pulls.release_left()
        if loss is not None:
            as_number(loss, "loss")  # before anything is sent
        gradients, reports = self._pushes.assembly.gradients(grads), self.reports
        if reports.watch is not None and reports.watch.pushed(self._connection.agreed.plan, gradients):
            reports.watch = None
        if gradients.__class__ is not Whole and is_empty(gradients):
            reports.empty()
        if self._hooks.hooks or self._hooks.shared:
            self._hooks.call_hooks("before_run", self._session)
        if computed_s := self._compute():
            self.turns.times.count_computed(computed_s)
        return gradients

    # -- reading ------------------------------------------------------------------------------------------------

    def pull(
        self, names: Sequence[str] | None, out: Any, if_newer_than: Version | None, timeout: float | None
    ) -> Any:  # fmt: skip
        """As Session.pull."""
        if self._waiter.closed:
            self._waiter.check_open()
        if self._pulls.left:
            self._pulls.release_left()
        write = None if out is None else self._writer(out, names)
        if names is None and if_newer_than is None:
            if write is None:
                return self.reports.saw(self._pull_all(timeout))
            held = Held(self)
            try:
                return self.reports.saw(write(self.take(held, timeout)))
            finally:
                held.release()
        values = self._pulls.pull(names, if_newer_than, timeout)
        if write is not None and values is not None:
            values = write(values)
        return self.reports.saw(values)

    def _pull_all(self, timeout: float | None) -> Any:
        """All values, the caller's own. Blocks."""
        values = self._at_once.pull()
        return self._pulls.pull(None, None, timeout) if values is None else values

    def take(self, held: Held, timeout: float | None) -> Any:
        """The newest values, which stay where they are until `held` is released. Blocks; raises as `Session.pull`."""
        if self._waiter.closed:
            self._waiter.check_open()
        if self._pulls.left:
            self._pulls.release_left()
        if lent := self._at_once.held():
            return self._at_once.hand_over(lent, held.keep)
        operation = self._pulls.start(None, None, after=False, hold=True)
        held.keep((operation,))
        values = self._pulls.finish(operation, timeout)
        held.keep((operation,), operation.is_silent)
        return values

    def pull_async(self, names: Sequence[str] | None) -> Reply[Any]:
        """As Session.pull_async."""
        operation = self._pulls.start(names, None, after=False)
        operation.start()
        self._connection.caller.flush()
        return self._reply(operation, lambda t: self.reports.saw(self._pulls.finish(operation, t)), lambda: None)

    def prefetched(self, names: Sequence[str] | None, in_place: bool) -> Generator[Any, None, None]:
        """As Session.prefetch: values, each time sent for before those of the time before are handed out. Each turn
        blocks until its values are there."""
        held, ahead = LoopValues(self), self._post_ahead(names, in_place)
        try:
            if names is None:
                held.begin(in_place)
            while not self._session.should_stop():
                if self._waiter.closed:
                    self._waiter.check_open()
                if self._pulls.left:
                    self._pulls.release_left()
                held.release()
                values = self._finish(ahead, held if in_place else None)
                ahead = self._post_ahead(names, in_place)
                yield self.reports.saw(values)
        finally:
            held.end()
            held.keep((ahead,), ahead.is_silent)
            held.leave()

    def _post_ahead(self, names: Sequence[str] | None, in_place: bool) -> PostedValues | PullOp:
        """Values that are on their way. Does not block."""
        self._waiter.check_open()
        posted = self._at_once.post_ahead(in_place) if names is None else None
        if posted is not None:
            return posted
        operation = self._pulls.start(names, None, after=False, hold=in_place)
        operation.start()
        self._connection.caller.flush()
        return operation

    def _finish(self, ahead: PostedValues | PullOp, held: Held | None) -> Any:
        """The values that are on their way. None: a copy; else they stay where they are until `held` is released.
        Blocks."""
        if isinstance(ahead, PullOp):
            values = self._pulls.finish(ahead, None)
            if held is not None:
                held.keep((ahead,), ahead.is_silent)
            return values
        self._waiter.check_open()
        values = self._at_once.finish(ahead, None if held is None else held.keep)
        if values is None:
            self.ahead.forget()
            return self._pulls.pull(None, None, None) if held is None else self.take(held, None)
        return values

    def lookup(self, name: Any, rows: Any, timeout: float | None, out: Any) -> Any:
        """As Session.lookup."""
        operation = self._lookups.prepare(name, rows, out)
        try:
            return self._lookups.finish(operation, timeout)
        finally:  # also after Ctrl-C: a late answer would be written to `out`
            operation.drop()

    def lookup_async(self, name: Any, rows: Any, out: Any) -> Reply[Any]:
        """As Session.lookup_async."""
        operation = self._lookups.prepare(name, rows, out)
        operation.start()
        return self._reply(operation, partial(self._lookups.finish, operation), lambda: None)

    def _writer(self, out: Any, names: Sequence[str] | None) -> Callable[[Any], Any]:
        """A function that copies the values of a pull of these names to the caller's arrays, which fit, and returns
        them. Raises as Session.pull."""
        plan, reports = self._connection.agreed.plan, self.reports
        places = self._pulls.places(out, names)

        def write(values: Any) -> Any:
            if reports.replaced is None:
                self._pulls.fill(places, values)
            else:
                self._pulls.fill(places, values, partial(reports.replaced.replaces, plan))
                if reports.replaced.filled():
                    reports.replaced = None
            return out

        return write

    def _reply(
        self, operation: Operation, finish: Callable[[float | None], T], accepted: Callable[[], bool | None]
    ) -> Reply[T]:
        """A reply whose calls are the session's."""
        of = self.turns.of
        return Reply(of("result", finish), of("done", lambda: self._waiter.poll(operation)), accepted)
