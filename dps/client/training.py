"""The calls of a session's loop that read and change values, with the values on the ps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from dps.client.assembly import Whole
from dps.client.at_once import AtOnce
from dps.client.connection import Connection
from dps.client.lanes import LentVersion
from dps.client.loading import checked, is_empty
from dps.client.lookup import Lookups
from dps.client.pulling import PullOp, Pulls, check_apart, fill
from dps.client.pushing import Pushes, PushOp
from dps.client.reports import Reports
from dps.client.waiting import Operation, ThreadGuard, Waiter
from dps.hooks.hook import Chain
from dps.hooks.scalars import as_number
from dps.messages.replies import Push, Reply, Version
from dps.variables.layout import Gradient

if TYPE_CHECKING:
    from dps.hooks.hook import Loop

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
    lookups: Lookups
    train: Callable[[], PsTraining]
    """Makes the session's calls those of its update mode, and returns them."""


class Viewed(Protocol):
    """The newest values, read-only, for the block of a view."""

    def take(self) -> Any:
        """The values, in the nesting of params. Blocks; raises as `Session.pull`."""

    def end_view(self, turns: ThreadGuard) -> None:
        """The block has ended. Other values are released, as a call of the session."""


class Held:
    """The newest values, read-only, from `take` to `release`. Belongs to one call or block of a session. Those of a ps
    on this machine stay in its memory."""

    __slots__ = ("_at_once", "_held", "_pulls", "_pushes", "_timeout")

    def __init__(self, at_once: AtOnce, pushes: Pushes, pulls: Pulls, timeout: float | None) -> None:
        self._at_once, self._pushes, self._pulls, self._timeout = at_once, pushes, pulls, timeout
        self._held: Sequence[LentVersion | PullOp] = ()

    def take(self) -> Any:
        """The values, in the nesting of params. Blocks; raises as `Session.pull`."""
        holds = self._at_once.held()
        if holds:
            self._held = holds
            self._at_once.hand_over()
            return self._pushes.assembly.still([memory for hold in holds for memory in hold.memories])
        operation = self._pulls.start(None, None, after=False, hold=True)
        self._held = (operation,)
        return self._pulls.finish(operation, self._timeout)

    def release(self) -> None:
        """The values are not read any more. Does nothing if there are none."""
        for held in self._held:
            held.release()

    def end_view(self, turns: ThreadGuard) -> None:
        """As of `Viewed`."""
        turns.run("view", self.release)


class PsTraining:
    """These calls, as `dps.Session` documents them. A call belongs to the thread that has the session's turn."""

    def __init__(self, parts: SessionParts) -> None:
        self._session, self._connection, self._waiter, self._turns = parts[:4]
        self._hooks, self._reports, self._pushes, self._pulls, self._lookups, self._train = parts[4:]
        self._at_once = AtOnce(self._connection, self._pushes, self._pulls)
        self._is_out_apart = False
        """Whether an `out` was given before, and no two variables share memory in it."""

    # -- changing -----------------------------------------------------------------------------------------------

    def push(self, grads: Any, loss: Any, timeout: float | None) -> Push:
        """As Session.push."""
        gradients = self._gradients(grads, loss)
        made = self._at_once.push(gradients, loss, reads=False)
        if made is None or isinstance(made, PushOp):
            return self._pushes.finish(made or self._pushes.start(gradients, loss, timeout), timeout)
        self._reports.report_push(made.result, loss)
        return made.result

    def push_async(self, grads: Any, loss: Any) -> Reply[Push]:
        """As Session.push_async."""
        operation = self._pushes.start(self._gradients(grads, loss), loss, None)
        self._connection.caller.flush()
        return self._reply(operation, lambda t: self._pushes.finish(operation, t), lambda: operation.accepted)

    def step(self, grads: Any, loss: Any, timeout: float | None, out: Any) -> Any:
        """As Session.step."""
        write = None if out is None else self._writer(out, None)
        gradients = self._gradients(grads, loss)
        pushing = self._at_once.push(gradients, loss, reads=True, write=write)
        if pushing is not None and not isinstance(pushing, PushOp):
            peers = self._connection.peers
            self._reports.report_push(pushing.result, loss)
            if self._connection.peers is not peers or pushing.holds is None:  # a hook may have rolled back
                return self.pull(None, out, None, timeout)
            self._at_once.note(pushing.holds)
            return self._reports.saw(pushing.values)
        pulling: PullOp | None = None
        try:
            if pushing is None:
                pushing = self._pushes.prepare(gradients, loss, timeout, self._pulls.may_come_with_a_push)
                if pushing.streams:  # gradients take a while to leave, and values may come meanwhile
                    pulling = self._pulls.start(None, None, after=True, hold=out is not None, leads=True)
                    pulling.start()
                self._pushes.send(pushing)
            if pulling is None and self._pulls.may_follow_a_push:
                pulling = self._pulls.start(None, None, after=True, hold=out is not None, behind=pushing)
                pulling.start()
            self._pushes.finish(pushing, timeout)
            if pulling is None or pushing.rolled_back:
                return self.pull(None, out, None, timeout)
            values = self._pulls.finish(pulling, timeout)
            return self._reports.saw(values if write is None else write(values))
        finally:
            if pulling is not None:
                pulling.drop()

    def assign(self, values: Any, timeout: float | None) -> None:
        """As Session.assign."""
        self._waiter.check_open()
        agreed = self._connection.agreed
        self._reports.replaced = None
        if found := checked(agreed.plan, values, agreed.settings.get("check_finite", True)):
            self._pushes.assign(found, timeout)

    def finish_pushes(self) -> None:
        """The session is closed: wait for its pushes."""
        self._pushes.drain()

    def _gradients(self, grads: Any, loss: Any) -> Mapping[int, Gradient]:
        """A step of the loop begins: its gradients by variable index, checked, as its loss is."""
        self._waiter.check_open()
        if loss is not None:
            as_number(loss, "loss")  # before anything is sent
        gradients, reports = self._pushes.assembly.gradients(grads), self._reports
        if reports.watch is not None and reports.watch.pushed(self._connection.agreed.plan, gradients):
            reports.watch = None
        if not isinstance(gradients, Whole) and is_empty(gradients):
            reports.empty()
        self._hooks.call_hooks("before_run", self._session)
        if computed_s := self._connection.home.runtime.compute():
            self._turns.times.count_computed(computed_s)
        return gradients

    # -- reading ------------------------------------------------------------------------------------------------

    def pull(
        self, names: Sequence[str] | None, out: Any, if_newer_than: Version | None, timeout: float | None
    ) -> Any:  # fmt: skip
        """As Session.pull."""
        self._waiter.check_open()
        write = None if out is None else self._writer(out, names)
        if names is None and if_newer_than is None:
            if write is not None:
                held = Held(self._at_once, self._pushes, self._pulls, timeout)
                try:
                    return self._reports.saw(write(held.take()))
                finally:
                    held.release()
            if (values := self._at_once.pull()) is not None:
                return self._reports.saw(values)
        values = self._pulls.finish(self._pulls.start(names, if_newer_than, after=False), timeout)
        if write is not None and values is not None:
            values = write(values)
        return self._reports.saw(values)

    def pull_async(self, names: Sequence[str] | None) -> Reply[Any]:
        """As Session.pull_async."""
        operation = self._pulls.start(names, None, after=False)
        operation.start()
        self._connection.caller.flush()
        return self._reply(operation, lambda t: self._reports.saw(self._pulls.finish(operation, t)), lambda: None)

    def viewed(self) -> Viewed:
        """The newest values in place, which are not taken yet."""
        return Held(self._at_once, self._pushes, self._pulls, None)

    def lookup(self, name: Any, rows: Any, timeout: float | None, out: Any) -> Any:
        """As Session.lookup."""
        operation = self._lookups.start(name, rows, out)
        try:
            return self._lookups.finish(operation, timeout)
        finally:
            operation.drop()

    def lookup_async(self, name: Any, rows: Any, out: Any) -> Reply[Any]:
        """As Session.lookup_async."""
        operation = self._lookups.start(name, rows, out)
        return self._reply(operation, partial(self._lookups.finish, operation), lambda: None)

    def _writer(self, out: Any, names: Sequence[str] | None) -> Callable[[Any], Any]:
        """A function that copies the values of a pull of these names to the caller's arrays, which fit, and returns
        them. Raises as Session.pull."""
        plan, reports = self._connection.agreed.plan, self._reports
        if not self._is_out_apart:
            check_apart(plan, out)
            self._is_out_apart = True
        places = self._pulls.places(out, names)

        def write(values: Any) -> Any:
            if reports.replaced is None:
                fill(places, values)
            else:
                fill(places, values, partial(reports.replaced.replaces, plan))
                if reports.replaced.filled():
                    reports.replaced = None
            return out

        return write

    def _reply(
        self, operation: Operation, finish: Callable[[float | None], T], accepted: Callable[[], bool | None]
    ) -> Reply[T]:
        """A reply whose calls are the session's."""
        of = self._turns.of
        return Reply(of("result", finish), of("done", lambda: self._waiter.poll(operation)), accepted)
