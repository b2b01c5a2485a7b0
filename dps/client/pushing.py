"""A session's pushes: their numbers, those in flight, and what their results tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.actors.caller import Caller, Posted
from dps.client.assembly import Assembly
from dps.client.cargo import About, Cargo
from dps.client.connection import Connection
from dps.client.lanes import PsPeer
from dps.client.loading import Loader
from dps.client.transfers import PushTransfer
from dps.client.waiting import Operation, Waiter
from dps.errors import PermissionDenied, advised
from dps.messages.replies import Push
from dps.messages.sessions import APPLIED, REFUSED, STEP_PS, WINDOW
from dps.process.telemetry import LoopTimes
from dps.transport.wire import Array
from dps.variables.layout import Gradient
from dps.variables.tree import Nesting

if TYPE_CHECKING:
    from dps.client.loading import Assigned


NOT_POSTED: Mapping[int, Posted] = MappingProxyType({})


class PushOp(Operation):
    """One push. An atomic one has the step ps's answer as its result; the other ps only tell when they no longer read
    the session's memory. Else the answers of all shards make the result.

    More than 12 attributes: what is sent, what has come of it, and what was told."""

    values: Mapping[int, Array] = {}
    """The assigned values that it carries, by variable index."""
    assigns = False
    """Whether it has values and no gradients: nothing was learned, so the worker's clock and hooks do not count it."""

    def __init__(self, connection: Connection, cargo: dict[int, Cargo], loss: Any = None) -> None:
        """`cargo`: what each ps gets, prepared."""
        self._connection, self.cargo, self.loss = connection, cargo, loss
        self._is_atomic, self._step_ps = connection.agreed.mode.is_atomic, connection.agreed.step_ps
        self.transfers: dict[int, PushTransfer] = {}
        self.deciding: list[PushTransfer] = []
        """The transfers whose answers are the result."""
        self.rolled_back = False
        self.outcome: Push | None = None
        """The result, once it is accounted for."""
        self.refusal = ""
        """Why the gradient was refused; "" if it was not. Set with `outcome`."""
        self._restored_step = 0
        self._kept: list[int] = []
        """Once it is given up: the ps whose values have it all the same."""

    def send(self, ps: int, credit: bool, posted: Posted | None) -> None:
        """Send a ps its cargo, at the next flush. `credit`: the ps has granted it already. `posted`: as of
        PushTransfer."""
        decides = not self._is_atomic or ps == self._step_ps
        self.transfers[ps] = transfer = PushTransfer(self.cargo[ps], not decides, credit, posted)
        if decides:
            self.deciding.append(transfer)

    @property
    def streams(self) -> bool:
        """Whether all ps get it in pieces over their sockets, and may apply them one by one."""
        agreed, least = self._connection.agreed, self._connection.home.runtime.tuning.client.streamed_pieces
        cargos = self.cargo.values()
        return (
            agreed.mode.streams
            and self.cargo.keys() == agreed.plan.layouts.keys()
            and all(cargo.in_pieces for cargo in cargos)
            and any(cargo.peer.layout.gradient_nbytes >= least * cargo.piece_nbytes for cargo in cargos)
        )

    @property
    def complete(self) -> bool:
        if not self.rolled_back:
            for transfer in self.transfers.values():
                if not transfer.complete:
                    return False
        return True

    @property
    def accepted(self) -> bool | None:
        """Whether the push was accepted; None while that is not known."""
        if self.rolled_back:
            return all(transfer.ps in self._kept for transfer in self.deciding)
        answers = [transfer.accepted for transfer in self.deciding]
        return None if None in answers else all(answers)

    def requests(self) -> Iterable[PushTransfer]:
        return () if self.rolled_back else self.transfers.values()

    @property
    def error(self) -> Exception | None:
        """The error that a ps answered with, if any."""
        return next((t.error for t in self.requests() if t.error is not None), None)

    def applied(self, ps: int) -> bool:
        """Whether a ps has applied it. The operation is complete."""
        if self._is_atomic or ps not in self.transfers:
            return bool(self.accepted)
        return bool(self.transfers[ps].accepted)

    @property
    def _counting(self) -> PushTransfer | None:
        """The transfer to the ps that counts the push as a step; None if no ps does."""
        if self._step_ps in self.transfers:
            return self.transfers[self._step_ps]
        return next((t for ps, t in self.transfers.items() if self.cargo[ps].about.counted_by == ps), None)

    def roll_back(self, caller: Caller) -> None:
        """The run epoch ended before the result was accounted for: the push is given up."""
        self.rolled_back = True
        self._restored_step = self._connection.steps.step
        membership = self._connection.membership
        self._kept = [ps for ps, transfer in self.transfers.items() if membership.keeps(ps, transfer.push)]
        for transfer in self.transfers.values():
            caller.drop(transfer)

    def set_outcome(self, step: int, apart: bool = False) -> Push:
        """Set the result of a complete operation. `step`: the highest that the session knows; `apart`: the step ps may
        not know of all its pushes."""
        if self.rolled_back:
            self.outcome = _push(self._restored_step, bool(self.accepted), 0, self._kept)
            return self.outcome
        accepted, staleness = True, 0
        for transfer in self.deciding:
            result = transfer.result
            if result is not None:
                accepted = accepted and result.status == APPLIED
                staleness = max(staleness, result.staleness)
                if result.status == REFUSED:
                    self.refusal = self.refusal or result.reason or "refused"
        counting = self._counting
        if counting is not None and counting.result is not None:
            step = step_of(counting.result.step, step, self.cargo[counting.ps].about.step + accepted, apart)
        applied = [] if accepted else [transfer.ps for transfer in self.deciding if transfer.accepted]
        self.outcome = _push(step, accepted, staleness, applied)
        return self.outcome


def step_of(told: int, known: int, made: int, apart: bool) -> int:
    """The step of a push for which the ps that counts it has told one. Where that ps may not know yet what others have
    counted (`apart`), it is not below the highest step that the session knows, and that of which the session itself
    knows that it was made."""
    return max(told, known, made) if apart else told


def _push(step: int, accepted: bool, staleness: int, applied: list[int]) -> Push:
    """`applied`: the ps that have applied it."""
    return Push(step, accepted, staleness, () if accepted else tuple(f"ps:{ps}" for ps in sorted(applied)))


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
        self._nesting, self._assembly = nesting, Assembly(connection.agreed.plan, nesting)
        self.under_way: list[PushOp] = []
        """Those in flight. Only this class changes it."""
        self.loader = Loader(connection)
        self.assigned: Assigned | None = None
        """The assigned values of a synchronous session, if it has any."""
        self._begin_epoch()
        connection.home.track(connection.number, lambda: self._sent)

    def _begin_epoch(self) -> None:
        self.acknowledged = 0
        self._connection.steps.begin_numbers()
        self.times.begin_sums()
        self.numbers = dict.fromkeys(self._connection.agreed.plan.ps, 0)
        self._sent = self._connection.caller.incarnation, self.numbers
        """As of `Home.track`. With several ps the numbers are replaced by each push, and never changed."""
        self.pulled = dict.fromkeys(self._connection.agreed.plan.ps, -1)
        """The version of each shard that the last pull read, from which the next push is computed."""
        self._credit: dict[int, int] = {}
        """The number of the push for which a ps has granted credit, by ps."""
        self.counted_apart = False
        """Whether another ps than the step ps has counted a push, of which the step ps may not know yet."""

    @property
    def assembly(self) -> Assembly:
        """The nesting of the current plan."""
        if self._assembly.plan is not self._connection.agreed.plan:
            self._assembly = Assembly(self._connection.agreed.plan, self._nesting)
        return self._assembly

    def made(self, peers: Sequence[PsPeer], number: int, step: int) -> int:
        """The next push to each of these ps, which was announced if they are several, was made in one round trip.
        `number`: of that to the step ps, the first; `step`: the one that it has told. Returns the push's step."""
        steps = self._connection.steps
        if self.counted_apart:
            step = step_of(step, steps.step, steps.local_step + 1, True)
        steps.pushed(number, step)
        self.acknowledged += 1
        if len(peers) == 1:
            self.numbers[peers[0].ps] = number
        else:
            self.numbers = self._sent[1]
        return step

    def announce(self) -> None:
        """Note, before anything of it leaves, that a push to all of several ps has begun (see `Home.track`)."""
        self._sent = self._sent[0], {ps: number + 1 for ps, number in self.numbers.items()}

    def start(
        self, gradients: Mapping[int, Gradient], loss: Any, timeout: float | None, lend: bool = False,
        posted: Mapping[int, Posted] = NOT_POSTED,
    ) -> PushOp:  # fmt: skip
        """Prepare a push and send it at the next flush. Blocks as `prepare`. `posted`: as of `send`."""
        operation = self.prepare(gradients, loss, timeout, lend)
        self.send(operation, posted)
        return operation

    def prepare(
        self, gradients: Mapping[int, Gradient], loss: Any, timeout: float | None, lend: bool,
        values: Mapping[int, Array] = PushOp.values,
    ) -> PushOp:  # fmt: skip
        """Check gradients, and gather what each ps gets of them and of the assigned `values`. Blocks while the send
        window is full. `lend`: a ps on this machine may lend values with its result."""
        connection = self._connection
        self.loader.check(gradients)
        self._wait_for_room(timeout)
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

    def send(self, operation: PushOp, posted: Mapping[int, Posted] = NOT_POSTED) -> None:
        """Send a prepared push. Nothing else may be pushed in between. `posted`: the requests by which ps have been
        sent it already, by ps."""
        try:
            self.numbers = {ps: number + (ps in operation.cargo) for ps, number in self.numbers.items()}
            self._sent = self._sent[0], self.numbers  # before a message leaves
            for ps in operation.cargo:
                operation.send(ps, self._credit.pop(ps, 0) == self.numbers[ps], posted.get(ps))
            self.under_way.append(operation)
            if self.assigned is not None:
                self.assigned.sent()
        except BaseException:  # Ctrl-C: some ps may lack this push, and would wait for it for ever
            self._connection.membership.end()
            raise

    def _wait_for_room(self, timeout: float | None) -> None:
        """Wait until the send window has room for one more push; where a ps leaves, until all earlier ones have their
        results and the run goes on."""
        connection, deadline = self._connection, self._waiter.deadline(timeout)
        self.account()
        while self.under_way and (self._is_full or connection.membership.settles):
            self._waiter.wait(self.under_way[0], max(0.0, deadline - connection.caller.now()), "an earlier push")
            self.account()
        if connection.membership.settles:
            self._waiter.recover(deadline)

    @property
    def _is_full(self) -> bool:
        """Whether so many pushes are in flight, or have followed one that is, that with one more a ps would forget a
        result which is not here."""
        flying = [transfer for operation in self.under_way for transfer in operation.transfers.values()]
        follow = any(self.numbers[t.ps] - t.push >= WINDOW - 1 for t in flying if not t.complete)
        return follow or len(self.under_way) >= WINDOW

    def account(self) -> None:
        """Account for the pushes that are complete, once each, in the run epoch that they belong to."""
        connection = self._connection
        while (operation := next((op for op in self.under_way if op.complete), None)) is not None:
            self.under_way.remove(operation)
            if connection.compression is not None:
                connection.compression.record_outcome(operation, connection.agreed.plan, operation.applied)
            result = operation.set_outcome(connection.steps.step, self.counted_apart)
            done = operation.error is None and result.accepted
            if self.assigned is not None:
                self.assigned.record_outcome(operation.values, done)
            answers = {transfer.ps: transfer.result for transfer in operation.deciding if transfer.result is not None}
            connection.membership.settles |= any(answer.settles for answer in answers.values())
            self._credit |= {ps: answer.number + 1 for ps, answer in answers.items() if answer.credit}
            self.acknowledged += done and not operation.assigns
            if (leading := answers.get(connection.agreed.step_ps)) is not None:
                connection.steps.pushed(leading.number, leading.step)
            if self.counted_apart:
                connection.steps.saw(result.step)
            self._tell(operation)

    def assign(self, values: Mapping[int, Array], timeout: float | None) -> None:
        """Assign values, which nobody changes any more. In sync they go with the next push. Else they are a push of
        their own, repeated in each new run epoch until it has a result, for which the call blocks. Raises ValueError if
        a ps refuses them."""
        if self._connection.agreed.mode.assigns_with_push:
            from dps.client.loading import Assigned

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
        """Call `report`, after all else: it runs hooks, which may push, wait and roll back."""
        told = not (operation.assigns or operation.refusal) and operation.error is None
        if told and operation.outcome is not None:
            self._report(operation.outcome, operation.loss)

    def finish(self, operation: PushOp, timeout: float | None) -> Push:
        """Wait for a push and return its result. Raises ValueError with the reason if it was refused."""
        if operation.outcome is None:
            try:
                self._waiter.wait(operation, timeout, "a push")
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
            self._waiter.wait(self.under_way[0], None, "a push")
            self.account()

    def roll_back(self, told: Callable[[], None]) -> None:
        """A new run epoch or incarnation has begun: give up the pushes in flight.

        `told` is called once numbers and clocks are reset, before the pushes get their results.
        """
        given_up, self.under_way = self.under_way, []
        for operation in given_up:
            operation.roll_back(self._connection.caller)
            if self.assigned is not None:
                self.assigned.record_outcome(operation.values, bool(operation.accepted))
        self._begin_epoch()
        if self._connection.compression is not None:
            self._connection.compression.forget()
        self.loader.forget()
        told()
        for operation in given_up:
            operation.set_outcome(self._connection.steps.step)
            self._tell(operation)

    def gradients(self) -> Any:
        """Arrays to fill, in the user's nesting. A push of them is not gathered first."""
        return self.assembly.values(self.loader.own_parts(), _of_all_parts)


def _of_all_parts(parts: list[Array]) -> Array:
    """An array for the gradient of a variable that has several parts. The push cuts it."""
    return np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
