"""One push of a session: what each ps gets of it, and what they answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dps.actors.caller import Caller
from dps.client.cargo import Cargo
from dps.client.connection import Connection
from dps.client.transfers import PushTransfer
from dps.client.waiting import Operation
from dps.protocol import APPLIED, REFUSED, WINDOW
from dps.reply import Push
from dps.transport.wire import Array


class PushOp(Operation):
    """One push. In sync the step ps's answer is the result, and the others are done with the session's memory; else
    every shard's is."""

    WINDOW = WINDOW

    values: Mapping[int, Array] = {}
    """What it sets, beside its gradients or without any, by variable index."""
    assigns = False
    """Whether it has values and no gradients: nothing was learned, so the worker's clock and hooks do not count it."""

    def __init__(self, connection: Connection, cargo: dict[int, Cargo], loss: Any = None) -> None:
        """`cargo`: what each ps gets, prepared."""
        self._connection, self.cargo, self.loss = connection, cargo, loss
        self._sync, self._step_ps = connection.agreed.sync, connection.agreed.step_ps
        self.transfers: dict[int, PushTransfer] = {}
        self._deciding: list[PushTransfer] = []
        self.rolled_back = False
        self.outcome: Push | None = None
        """The result, once the session has taken note of it."""
        self.refusal = ""
        """With the result: why the gradient was refused, "" when it was not."""
        self._restored_step = 0

    def send(self, ps: int, credit: bool) -> None:
        """Send a ps its cargo, with the next flush. `credit`: the ps has given some for this push already."""
        decides = not self._sync or ps == self._step_ps
        self.transfers[ps] = transfer = PushTransfer(self.cargo[ps], not decides, credit)
        if decides:
            self._deciding.append(transfer)

    @property
    def streams(self) -> bool:
        """Whether all ps get it over their sockets, in pieces that they may apply one by one."""
        connection = self._connection
        layouts, tuning = connection.agreed.plan.layouts, connection.home.runtime.tuning
        least = tuning.client.streamed_pieces * tuning.piece_nbytes
        return (
            not (connection.agreed.sync or connection.agreed.bounded)
            and max(layout.gradient_nbytes for layout in layouts.values()) >= least
            and self.cargo.keys() == layouts.keys()
            and all(cargo.in_pieces for cargo in self.cargo.values())
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
        """Whether it counts; None while that is not known."""
        if self.rolled_back:
            return False
        answers = [transfer.accepted for transfer in self._deciding]
        return None if None in answers else all(answers)

    def requests(self) -> Iterable[PushTransfer]:
        return self.transfers.values()

    @property
    def error(self) -> Exception | None:
        """What a ps answered instead of a result."""
        if self.rolled_back:
            return None
        return next((t.error for t in self.transfers.values() if t.error is not None), None)

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    @property
    def released(self) -> tuple[int, int] | None:
        """In sync, of a complete operation: its number on the step ps, and the value of the token that released it."""
        leading = self.transfers.get(self._step_ps)
        if not self._sync or self.rolled_back or leading is None or leading.result is None:
            return None
        return leading.result.number, leading.result.step

    def applied(self, ps: int) -> bool:
        """Whether a ps counts it; complete operations only."""
        if self._sync or ps not in self.transfers:
            return bool(self.accepted)
        return bool(self.transfers[ps].accepted)

    def roll_back(self, caller: Caller) -> None:
        """The run epoch is over before the session took note of the result: the push is no part of the new one."""
        self.rolled_back = True
        self._restored_step = self._connection.steps.step
        for transfer in self.transfers.values():
            caller.drop(transfer)

    @property
    def credit(self) -> dict[int, int]:
        """The push, by its number, that a ps takes without being asked, by ps; of a complete operation."""
        results = [(t.ps, t.result) for t in self._deciding if t.result is not None and t.result.credit]
        return {} if self.rolled_back else {ps: result.number + 1 for ps, result in results}

    def settle(self, step: int) -> Push:
        """Note the result of a complete operation; `step`: the session's, for one without a part on the step ps."""
        if self.rolled_back:
            self.outcome = Push(self._restored_step, False)
            return self.outcome
        accepted, staleness = True, 0
        for transfer in self._deciding:
            result = transfer.result
            if result is not None:
                accepted = accepted and result.status == APPLIED
                staleness = max(staleness, result.staleness)
                if result.status == REFUSED:
                    self.refusal = self.refusal or result.reason or "refused"
        leading = self.transfers.get(self._step_ps)
        if leading is not None and leading.result is not None:
            step = leading.result.step
        self.outcome = Push(step, accepted, staleness)
        return self.outcome
