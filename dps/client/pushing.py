"""A session's pushes: their numbers, those in flight, and what their results tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from dps.client.assembly import Assembly
from dps.client.cargo import About, Cargo, CargoMemory
from dps.client.connection import Connection
from dps.client.lanes import PsPeer
from dps.client.loading import Assigned, Loader
from dps.client.push_operations import PostedPush, PushOp, Told, step_of
from dps.client.waiting import Waiter
from dps.errors import PermissionDenied, advised
from dps.messages.replies import Push
from dps.messages.sessions import STEP_PS, WINDOW
from dps.process.telemetry import LoopTimes, log
from dps.transport.wire import Array
from dps.variables.layout import Gradient
from dps.variables.tree import Nesting

_NOTHING = Assigned()
"""In a session that has assigned no values."""


class Pushes:
    """The pushes of a session: their numbers, those on their way, and what the session knows from their results.

    `report` is called once for each push that has a result and was not refused, in their order.

    More than 12 attributes: a session's parts that a push uses, and numbers, clocks and credit of the pushes.
    """

    def __init__(
        self, connection: Connection, waiter: Waiter, nesting: Nesting, report: Callable[[Push, Any], None],
        times: LoopTimes,
    ) -> None:  # fmt: skip
        """`times`: those of the session's loop, which pushes tell the step ps."""
        self._connection, self._waiter, self._report, self.times = connection, waiter, report, times
        self._nesting, self.assembly = nesting, Assembly(connection.agreed.plan, nesting)
        """`assembly`: the nesting of the plan of this run epoch."""
        self.under_way: list[PushOp] = []
        """Those in flight. Only this class changes it."""
        self.loader = Loader(connection)
        self._told_of_refusal = False
        self.assigned: Assigned | None = None
        """The assigned values of a synchronous session, if it has any."""
        self._begin_epoch()
        connection.home.track(connection.number, lambda: (*self._sent, len(self.under_way)))
        connection.caller.on_resend = self._go_on

    def _begin_epoch(self) -> None:
        if self.assembly.plan is not self._connection.agreed.plan:
            self.assembly = Assembly(self._connection.agreed.plan, self._nesting)
        self.acknowledged = 0
        self._connection.steps.begin_numbers()
        self.times.begin_sums()
        self.numbers = dict.fromkeys(self._connection.agreed.plan.ps, 0)
        self._sent = self._connection.caller.incarnation, self.numbers
        """As of `Home.track`. With several ps the numbers are replaced by each push, and never changed."""
        self.pulled = dict.fromkeys(self._connection.agreed.plan.ps, -1)
        """The version of each shard that the last pull or lookup read, from which the next push is computed."""
        self._credit: dict[int, int] = {}
        """The number of the push for which a ps has granted credit, by ps."""
        self.counted_apart = False
        """Whether another ps than the step ps has counted a push, of which the step ps may not know yet."""

    def note_read(self, counters: Mapping[int, int]) -> None:
        """Some values of shards were read, in these versions."""
        self.pulled = {**self.pulled, **counters}  # `Pulls.read` may have the one before, of all values

    def announce(self) -> None:
        """Count the next push to all of several ps, before anything of it leaves (see `Home.track`)."""
        self.numbers = {ps: number + 1 for ps, number in self.numbers.items()}
        self._sent = self._sent[0], self.numbers

    def step_apart(self, step: int, own: int = 0) -> int:
        """The step of a push for which the step ps has told this one, where other ps have counted pushes, too. `own`:
        the step that the session knows to be made by it; 0: the next."""
        steps = self._connection.steps
        return step_of(step, steps.step, own or steps.local_step + 1, True)

    def start(
        self, gradients: Mapping[int, Gradient], loss: Any, timeout: float | None, lend: bool = False,
    ) -> PushOp:  # fmt: skip
        """Prepare a push and send it at the next flush. Blocks as `prepare`."""
        operation = self.prepare(gradients, loss, timeout, lend)
        self.send(operation)
        return operation

    def prepare(
        self, gradients: Mapping[int, Gradient], loss: Any, timeout: float | None, lend: bool,
        values: Mapping[int, Array] = PushOp.values,
    ) -> PushOp:  # fmt: skip
        """Check gradients, and gather what each ps gets of them and of the assigned `values`. Blocks while the send
        window is full. `lend`: a ps on this machine may lend values with its result.

        A session that was kept from joining again, by Ctrl-C or a deadline, sends nothing until it has joined: a push
        of it is empty, and is given up."""
        connection = self._connection
        self.loader.check(gradients)
        self._wait_for_room(timeout)
        if not connection.membership.entered:
            return PushOp(connection, {}, loss)
        clock = self.acknowledged
        found: dict[int, Cargo] = {}
        operation = PushOp(connection, found, loss)
        if connection.compression is not None:
            gradients = connection.compression.pack(connection.agreed.plan, gradients, operation)
        if self.assigned is not None:
            values = self.assigned.waiting
        operation.values = values
        step_ps = connection.agreed.step_ps
        for ps, peer in connection.peers.items():  # the step ps is the first
            about = self._begin_message(peer, lend and peer.lane.on, clock if ps == step_ps else 0)
            if ps != step_ps and step_ps not in found and not values:
                about = about._replace(counted_by=next(iter(found), ps))
            cargo = self.loader.cargo(peer, gradients, about, values)
            if cargo is not None:
                found[ps] = cargo
        if not found and not values:
            peer = connection.peers[step_ps]
            found[step_ps] = self.loader.empty(peer, self._begin_message(peer, lend and peer.lane.on, clock))
        first = next(iter(found.values()), None)
        if first is not None and first.peer.ps in (step_ps, first.about.counted_by):
            self._count_by(first)
        return operation

    def _begin_message(self, peer: PsPeer, lend: bool, clock: int) -> About:
        """The common fields of the messages of the next push to a ps. `clock`: for the step ps in bounded mode."""
        connection, ps = self._connection, peer.ps
        return About(
            connection.membership.epoch, self.numbers[ps] + 1, connection.steps.local_step, self.pulled[ps], clock,
            lend, peer.lane.all_released_below(),
        )  # fmt: skip

    def _count_by(self, cargo: Cargo) -> None:
        """The ps of this cargo counts the push, and is told what the time of the session's loop goes to."""
        self.counted_apart |= cargo.about.counted_by != STEP_PS
        if self.times.at >= self.times.due_at:
            cargo.about = cargo.about._replace(times=self.take_times())

    def take_times(self) -> list[Any]:
        """What the time of the session's loop goes to, as `Push.times` has it."""
        told = self.times.take_told()
        return [*told, self.acknowledged] if self.counted_apart else told

    def send(self, operation: PushOp) -> None:
        """Send a prepared push. Nothing else may be pushed in between."""
        if not self._connection.membership.entered:  # as of `prepare`
            self._begin(operation, self.numbers)
            return
        numbers = {ps: number + (ps in operation.cargo) for ps, number in self.numbers.items()}
        operation.credit = [ps for ps in operation.cargo if self._credit.get(ps, 0) == numbers[ps]]
        if self.assigned is None:
            self._begin(operation, numbers)
        else:
            self._begin(operation, numbers, self.assigned)
        try:
            operation.start()
        except Exception:  # some ps may lack this push, and would wait for it for ever
            self._connection.membership.end()
            raise

    def _begin(self, operation: PushOp, numbers: dict[int, int], assigned: Assigned = _NOTHING) -> None:
        """A push that carries all assigned values leaves under these numbers. One statement: Ctrl-C comes before it,
        and there is no push, or after it, and `_go_on` sends what has not left."""
        runs = [cargo.run for cargo in operation.cargo.values() if cargo.run is not None]
        try:
            for run in runs:
                run.reader = operation  # or the next push would write to it
            self.numbers, self._sent, self.under_way, assigned.waiting = (
                numbers, (self._sent[0], numbers), [*self.under_way, operation], {},
            )  # fmt: skip
        except BaseException:  # Ctrl-C
            self._let_go(operation, runs)
            raise

    def _let_go(self, operation: PushOp, runs: Iterable[CargoMemory]) -> None:
        """Nobody reads this memory, unless the push is under way."""
        if operation not in self.under_way:
            for run in runs:
                run.reader = None

    def begin_posted(self, operation: PostedPush) -> None:
        """A push to all ps is about to leave by posted requests. Nothing else may be pushed in between."""
        self._connection.caller.note_posted()
        try:
            for _, _, run in operation.sent.values():
                run.reader = operation
            numbers = operation.numbers()
            self.numbers, self._sent, self.under_way = numbers, (self._sent[0], numbers), [*self.under_way, operation]
        except BaseException:  # Ctrl-C
            self._let_go(operation, [run for _, _, run in operation.sent.values()])
            raise

    def _go_on(self) -> None:
        """All pushes that are not answered are on their way as ordinary ones, so that they are sent again if need
        be."""
        for operation in self.under_way:
            if not isinstance(operation, PostedPush):
                operation.start()
            elif not operation.complete:
                operation.go_on()

    def _wait(self, operation: PushOp, timeout: float | None, what: str) -> None:
        """As Waiter.wait. A posted push has a moment to be answered, else it goes on as an ordinary one."""
        if isinstance(operation, PostedPush) and operation.sent:
            self._waiter.check_open()
            deadline, now = self._waiter.deadline(timeout), self._connection.caller.now
            operation.hear(deadline - now())
            timeout = max(0.0, deadline - now())
        if not operation.complete:
            self._go_on()  # one before it may be lost
        self._waiter.wait(operation, timeout, what)

    def _wait_for_room(self, timeout: float | None) -> None:
        """Wait until the send window has room for one more push; where a ps leaves, until all earlier ones have their
        results and the run goes on."""
        connection, deadline = self._connection, self._waiter.deadline(timeout)
        self.account()
        while self.under_way and (self.is_full or connection.membership.settles):
            self._wait(self.under_way[0], max(0.0, deadline - connection.caller.now()), "an earlier push")
            self.account()
        if connection.membership.settles:
            self._waiter.recover(deadline)

    @property
    def is_full(self) -> bool:
        """Whether so many pushes are in flight, or have followed one that is, that with one more a ps would forget a
        result which is not here."""
        flying = [each for operation in self.under_way for each in operation.unanswered()]
        follow = any(self.numbers[ps] - number >= WINDOW - 1 for ps, number in flying)
        return follow or len(self.under_way) >= WINDOW

    def account(self) -> None:
        """Account for the pushes that are complete, once each, in the run epoch that they belong to. After Ctrl-C the
        next call does it again: all that it changes can be repeated, but what one statement changes at the end."""
        if not self._connection.membership.entered:  # those under way are of the one before, and will be given up
            return
        for operation in self.under_way:
            if operation.outcome is not None or not operation.complete:  # a hook may have accounted for it
                continue
            if isinstance(operation, PostedPush) and operation.told is not None:
                result, count = self._account_for_posted(operation, operation.told), 1
            else:
                result, count = self._account_for_ordinary(operation)
            count, rest = self.acknowledged + count, self.under_way[:]
            rest.remove(operation)
            operation.outcome, self.acknowledged, self.under_way = result, count, rest
            self._tell(operation)
            if not self._connection.membership.entered:
                return

    def _account_for_ordinary(self, operation: PushOp) -> tuple[Push, int]:
        """The result of a complete push, and 1 if it counts as one of the session's, else 0."""
        connection = self._connection
        if connection.compression is not None:
            connection.compression.record_outcome(operation, connection.agreed.plan, operation.applied)
        result = operation.read_result(connection.steps.step, self.counted_apart)
        done = operation.error is None and result.accepted
        if self.assigned is not None:
            self.assigned.record_outcome(operation.values, done)
        answers = {transfer.ps: transfer.result for transfer in operation.deciding if transfer.result is not None}
        connection.membership.settles |= any(answer.settles for answer in answers.values())
        self._credit |= {ps: answer.number + 1 for ps, answer in answers.items() if answer.credit}
        if (leading := answers.get(connection.agreed.step_ps)) is not None:
            connection.steps.pushed(leading.number, leading.step)
        if self.counted_apart:
            connection.steps.saw(result.step)
        return result, int(done and not operation.assigns)

    def account_for_arrived(self) -> None:
        """As `account`, and before handle what has arrived for posted pushes. Does not block."""
        if self.under_way:
            for operation in self.under_way:
                if isinstance(operation, PostedPush):
                    operation.start()
            self.account()

    def _account_for_posted(self, operation: PostedPush, told: Told) -> Push:
        """The result of a posted push, which all ps have applied."""
        number, step, staleness, settles = told
        if settles:
            self._connection.membership.settles = True
        if self.counted_apart:
            step = self.step_apart(step, operation.own_step)
        self._connection.steps.pushed(number, step)
        return Push(step, True, staleness)

    def assign(self, values: Mapping[int, Array], timeout: float | None) -> None:
        """Assign values, which nobody changes any more. In sync they go with the next push. Else they are a push of
        their own, repeated in each new run epoch until it has a result, for which the call blocks. Raises ValueError if
        a ps refuses them."""
        if self._connection.agreed.mode.assigns_with_push:
            self.assigned = self.assigned or Assigned()
            self.assigned.keep(values)
            return
        deadline, caller = self._waiter.deadline(timeout), self._connection.caller
        while True:
            operation = self.prepare({}, None, max(0.0, deadline - caller.now()), False, values)
            operation.assigns = True
            self.send(operation)
            self.finish(operation, max(0.0, deadline - caller.now()))
            if not operation.rolled_back or operation.accepted:
                return

    def _tell(self, operation: PushOp) -> None:
        """Call `report`, after all else: it runs hooks, which may push, wait and roll back. A push that was refused is
        told in a line, once, if nobody waits for its result: maybe nobody will ask for it."""
        if operation.refusal and not (operation.is_awaited or self._told_of_refusal):
            self._told_of_refusal = True
            log.warning(
                "%s: a push was refused, and the loop goes on without it: %s; result() of its reply raises this, too; "
                "this is said once",
                self._connection.home.name, advised(operation.refusal),
            )  # fmt: skip
        told = not (operation.assigns or operation.refusal) and (not operation.transfers or operation.error is None)
        if told and operation.outcome is not None:
            self._report(operation.outcome, operation.loss)

    def finish(self, operation: PushOp, timeout: float | None) -> Push:
        """Wait for a push and return its result. Raises ValueError with the reason if it was refused."""
        operation.is_awaited = True
        if operation.outcome is None:
            try:
                self._wait(operation, timeout, "a push")
            except PermissionDenied:  # this session's key is not a worker's, so none of its pushes gets a result
                self.under_way.clear()
                raise
            self.account()
        operation.raise_error()
        assert operation.outcome is not None
        if operation.refusal:
            raise ValueError(advised(operation.refusal))
        return operation.outcome

    def drain(self) -> None:
        """Wait for all pushes in flight."""
        while self.under_way:
            self._wait(self.under_way[0], None, "a push")
            self.account()

    def roll_back(self) -> list[PushOp]:
        """A new run epoch or incarnation has begun: give up the pushes in flight, and count from the beginning. Returns
        them, with their results, for `report_given_up`. After Ctrl-C it is called again, in the next incarnation."""
        connection = self._connection
        for operation in self.under_way:
            operation.roll_back(connection.caller)
            if self.assigned is not None:
                self.assigned.record_outcome(operation.values, bool(operation.accepted))
            operation.outcome = operation.read_result(connection.steps.step)
        self._begin_epoch()
        if connection.compression is not None:
            connection.compression.forget()
        self.loader.forget()
        given_up, self.under_way = self.under_way, []
        return given_up

    def report_given_up(self, given_up: list[PushOp]) -> None:
        """Report the results of pushes that were given up. Runs hooks, which may push, wait and roll back."""
        for operation in given_up:
            self._tell(operation)

    def gradients(self) -> Any:
        """Arrays to fill, in the user's nesting. A push of them is not gathered first."""
        return self.assembly.values(self.loader.own_parts(), _of_all_parts)


def _of_all_parts(parts: list[Array]) -> Array:
    """An array for the gradient of a variable that has several parts. The push cuts it."""
    return np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
