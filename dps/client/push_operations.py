"""The operations of a session's pushes: an ordinary one with its requests, and a small one that was posted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dps.actors.caller import Answer, Caller, Heard, Posted
from dps.client.cargo import About, Cargo, CargoMemory, RunCargo
from dps.client.connection import Connection
from dps.client.lanes import PsPeer
from dps.client.transfers import PushTransfer
from dps.client.waiting import Operation
from dps.messages.replies import Push
from dps.messages.sessions import APPLIED, REFUSED, Pushed
from dps.transport.wire import Array


class PushOp(Operation):
    """One push. An atomic one has the step ps's answer as its result; the other ps only tell when they no longer read
    the session's memory. Else the answers of all shards make the result.

    More than 12 attributes: what is sent, what has come of it, and what was told."""

    values: Mapping[int, Array] = {}
    """The assigned values that it carries, by variable index."""
    assigns = False
    """Whether it has values and no gradients: nothing was learned, so the worker's clock and hooks do not count it."""

    is_awaited = _started = rolled_back = False
    """`is_awaited`: whether somebody waits for the result."""
    outcome: Push | None = None
    """The result, once it is accounted for."""
    refusal = ""
    """Why the gradient was refused; "" if it was not. Set with `outcome`."""
    _restored_step = 0
    _kept: list[int] = []  # noqa: RUF012
    """Once it is given up: the ps whose values have it all the same."""

    def __init__(self, connection: Connection, cargo: dict[int, Cargo], loss: Any = None) -> None:
        """`cargo`: what each ps gets, prepared."""
        self._connection, self.cargo, self.loss = connection, cargo, loss
        self._is_atomic, self._step_ps = connection.agreed.mode.is_atomic, connection.agreed.step_ps
        self._membership = connection.membership
        self.credit: Sequence[int] = ()
        """The ps that have granted credit for it already."""
        self.transfers: dict[int, PushTransfer] = {}
        self.deciding: list[PushTransfer] = []
        """The transfers whose answers are the result."""

    def start(self) -> None:
        """Send each ps its cargo, at the next flush, where that has not been done. Sends nothing once the session has
        to join again: then it waits for `roll_back`."""
        if not (self._started or self.rolled_back) and self._is_current:
            for ps in self.cargo:
                if ps not in self.transfers:
                    self._add_transfer(ps)
                self.transfers[ps].begin()
            self._started = True

    @property
    def _is_current(self) -> bool:
        return self._connection.membership is self._membership and not self._membership.over

    def _add_transfer(self, ps: int, posted: Posted | None = None) -> None:
        """Prepare to send a ps its cargo. It is known before it begins, so that after Ctrl-C no request is left that
        nobody ends. `posted`: as of PushTransfer."""
        decides = not self._is_atomic or ps == self._step_ps
        transfer = PushTransfer(self.cargo[ps], not decides, ps in self.credit, posted)
        deciding = [*self.deciding, transfer] if decides else self.deciding
        self.transfers, self.deciding = {**self.transfers, ps: transfer}, deciding

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
            if len(self.transfers) < len(self.cargo):
                return False
            for transfer in self.transfers.values():
                if not transfer.complete:
                    return False
        return True

    @property
    def accepted(self) -> bool | None:
        """Whether the push was accepted; None while that is not known."""
        if self.rolled_back:
            deciding = [ps for ps in self.cargo if not self._is_atomic or ps == self._step_ps]
            return deciding != [] and all(ps in self._kept for ps in deciding)
        answers = [transfer.accepted for transfer in self.deciding]
        return None if None in answers or len(self.transfers) < len(self.cargo) else all(answers)

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

    def unanswered(self) -> list[tuple[int, int]]:
        """Each ps whose answer is not here, and the number under which it has the push."""
        waited = [ps for ps in self.cargo if ps not in self.transfers or not self.transfers[ps].complete]
        return [(ps, self.cargo[ps].about.number) for ps in waited]

    def roll_back(self, caller: Caller) -> None:
        """The run epoch ended before the result was accounted for: the push is given up. May be called again."""
        self._give_up({ps: transfer.push for ps, transfer in self.transfers.items()})
        for transfer in self.transfers.values():
            caller.drop(transfer)

    def _give_up(self, numbers: Mapping[int, int]) -> None:
        """Note which of the ps that were sent the push, under these numbers, have it all the same."""
        self.rolled_back = True
        self._restored_step = self._connection.steps.step
        self._kept = [ps for ps, number in numbers.items() if self._connection.membership.keeps(ps, number)]

    def read_result(self, step: int, apart: bool = False) -> Push:
        """The result of a complete operation, for `outcome`; `refusal` is set. `step`: the highest that the session
        knows; `apart`: the step ps may not know of all its pushes."""
        if self.rolled_back:
            return _push(self._restored_step, bool(self.accepted), 0, self._kept)
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
        return _push(step, accepted, staleness, applied)


Sent = tuple[PsPeer, tuple[int, ...], CargoMemory]
"""What one ps was sent of a posted push: the integers of the message, from the request number on, and the memory that
they name."""
Told = tuple[int, int, int, bool]
"""What the ps have told of a push that all have applied: its number at the step ps and the step of that one, the
largest staleness, and whether a ps leaves."""


class PostedPush(PushOp):
    """A push of all gradients that was posted, as one message to each ps, by requests that are not kept.

    After another answer than the usual one, or none in time, it goes on as an ordinary push under its number: nothing
    is sent again needlessly, and late answers count.
    """

    told: Told | None = None
    """Set once all ps have applied it, and it has not gone on as an ordinary one."""
    _late_at = 0.0
    """When the answers are late; 0: nobody has asked for them yet."""

    def __init__(self, connection: Connection, sent: dict[int, Sent], loss: Any) -> None:
        """`sent`: by request number, to the step ps first."""
        super().__init__(connection, {}, loss)
        self.sent = sent
        """What was posted; empty once the push goes on as an ordinary one."""
        self.heard: Heard = {}
        """The answers, as of `Caller.listen`."""

    @property
    def complete(self) -> bool:
        if self.told is not None or self.rolled_back:
            return True
        if self.sent:
            if len(self.heard) < len(self.sent):
                return False
            self.told = self._read()
            if self.told is not None:
                return True
            if not self.go_on():
                return False
        return super().complete

    def _read(self) -> Told | None:
        """What the ps have told; None if one did not apply the push."""
        number, step, staleness, flags = 0, -1, 0, 0
        for request in self.sent:
            answer = self.heard[request]
            told: Sequence[Any] = answer if answer.__class__ is tuple else integers_of_applied(answer)
            if not told:
                return None
            if step < 0:
                number, step = told[1], told[2]
            if told[3] > staleness:
                staleness = told[3]
            flags |= told[5]
        return number, step, staleness, flags & SETTLES > 0

    @property
    def accepted(self) -> bool | None:
        if not self.sent:
            return super().accepted
        if self.rolled_back:
            return len(self._kept) == len(self.sent)
        is_read = self.told is not None or (len(self.heard) == len(self.sent) and self._read() is not None)
        return True if is_read else None

    def start(self) -> None:
        """Handle what has arrived. If answers are still not here some time after this was called first, go on as an
        ordinary push. Does not block."""
        if len(self.heard) < len(self.sent) and not self.rolled_back:
            caller = self._connection.caller
            caller.hear_arrived(self.sent, self.heard)
            if len(self.heard) < len(self.sent):
                now = caller.now()
                self._late_at = self._late_at or now + self._patience_s
                if now >= self._late_at:
                    self.go_on()

    @property
    def _patience_s(self) -> float:
        return self._connection.home.runtime.tuning.client.step_patience_s

    def unanswered(self) -> list[tuple[int, int]]:
        if self.sent and self.told is None:
            return list(self.numbers().items())
        return super().unanswered()

    def numbers(self) -> dict[int, int]:
        """The number under which each ps was sent it."""
        return {peer.ps: integers[2] for peer, integers, _ in self.sent.values()}

    def hear(self, timeout: float) -> None:
        """Wait a moment for the answers, then go on as an ordinary push. Blocks."""
        self._connection.caller.hear_all(self.sent, self.heard, min(self._patience_s, timeout))
        if not self.complete:
            self.go_on()

    def go_on(self) -> bool:
        """Go on as an ordinary push, which gets the answers that are here, and those to come. False if the session has
        joined again since it was sent: it waits for `roll_back`."""
        if not self.sent:
            return True
        if self.rolled_back or self._connection.membership is not self._membership:
            return False
        self.transfers, self.deciding = {}, []  # after Ctrl-C it begins anew
        for number, (peer, integers, run) in self.sent.items():
            _, epoch, push, step, counter, _, clock, lend, released = integers[:9]
            self.cargo[peer.ps] = RunCargo(peer, About(epoch, push, step, counter, clock, bool(lend), released), run)
            answer = self.heard.get(number)
            made = Pushed.expanded(*answer[1:]) if isinstance(answer, tuple) else answer
            self._add_transfer(peer.ps, (number, made))
            self.transfers[peer.ps].begin()
        self.sent, self._started = {}, True
        return True

    def roll_back(self, caller: Caller) -> None:
        if not self.sent:
            super().roll_back(caller)
            return
        caller.ignore(self.sent)
        for transfer in self.transfers.values():  # Ctrl-C has come while it went on
            caller.drop(transfer)
        self._give_up(self.numbers())

    @property
    def own_step(self) -> int:
        """The step that was made by this push alone."""
        _, integers, _ = next(iter(self.sent.values()))
        return integers[3] + 1


SETTLES = 2
"""The bit of `Pushed.settles` in the flags of its compact form."""


def integers_of_applied(answer: Answer | None) -> Sequence[Any]:
    """The message of a push that was applied as the integers of the usual answer, but as a list that ends with the
    names of all memories. [] for another message."""
    if not isinstance(answer, Pushed) or answer.status != APPLIED:
        return []
    flags, (counter, step, names) = answer.credit | answer.settles << 1, answer.lent or (0, 0, [0])
    return [0, answer.number, answer.step, answer.staleness, answer.counter, flags, counter, step, *names]


def step_of(told: int, known: int, made: int, apart: bool) -> int:
    """The step of a push for which the ps that counts it has told one. Where that ps may not know yet what others have
    counted (`apart`), it is not below the highest step that the session knows, and that of which the session itself
    knows that it was made."""
    return max(told, known, made) if apart else told


def _push(step: int, accepted: bool, staleness: int, applied: list[int]) -> Push:
    """`applied`: the ps that have applied it."""
    return Push(step, accepted, staleness, () if accepted else tuple(f"ps:{ps}" for ps in sorted(applied)))
