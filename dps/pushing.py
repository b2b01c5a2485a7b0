"""A session's pushes: one transfer per ps, each under its own dense number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dps.actors.caller import Caller
from dps.actors.requests import Request
from dps.connection import Connection
from dps.protocol import APPLIED, EMPTY, REFUSED, WINDOW
from dps.protocol import Push as PushMessage
from dps.reply import Push
from dps.transport.wire import Array
from dps.variables.layout import Gradient, fill_run, is_whole, parts_of_shard
from dps.variables.plan import Plan
from dps.variables.transfers import PushTransfer, parts_message, run_pieces
from dps.variables.tree import Rows


class PushOp:
    """One push. In sync the step ps's answer is the result; else every shard's."""

    WINDOW = WINDOW

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sync, self._step_ps = connection.sync, connection.step_ps
        self.transfers: dict[int, PushTransfer] = {}
        self.rolled_back = False
        self._restored_step = 0

    def start(self) -> None:
        """Pushes are sent when they are made."""

    @property
    def complete(self) -> bool:
        if self.rolled_back:
            return True
        if self._sync:
            return self.transfers[self._step_ps].complete
        return all(t.complete for t in self.transfers.values())

    @property
    def accepted(self) -> bool | None:
        """Whether it counts; None while that is not known."""
        if self.rolled_back:
            return False
        answers = (
            [self.transfers[self._step_ps].accepted] if self._sync else [t.accepted for t in self.transfers.values()]
        )
        return None if None in answers else all(answers)

    @property
    def refusal(self) -> str:
        """Why the gradient was refused; "" when it was not."""
        if self.rolled_back:
            return ""
        results = [t.result for t in self.transfers.values() if t.result is not None]
        return next((r.reason or "refused" for r in results if r.status == REFUSED), "")

    def requests(self) -> list[Request]:
        return [t.request for t in self.transfers.values()]

    def waits_for(self) -> list[str]:
        return [t.waits_for for t in self.transfers.values() if not t.complete]

    def raise_error(self) -> None:
        if not self.rolled_back:
            for transfer in self.transfers.values():
                if transfer.error is not None:
                    raise transfer.error

    def roll_back(self, caller: Caller) -> None:
        """The run epoch is over before the session took note of the result: the push is no part of the new one."""
        self.rolled_back = True
        self._restored_step = self._connection.step
        for transfer in self.transfers.values():
            caller.drop(transfer.request)

    def result(self, step: int) -> Push:
        """The result; complete operations only."""
        if self.rolled_back:
            return Push(self._restored_step, False)
        for transfer in self.transfers.values():
            self._connection.caller.drop(transfer.request)
        answers = {ps: t.result for ps, t in self.transfers.items() if t.result is not None}
        leading = answers.get(self._step_ps)
        deciding = [leading] if self._sync and leading is not None else list(answers.values())
        accepted = all(a.status == APPLIED for a in deciding)
        return Push(
            step if leading is None else leading.step, accepted, max((a.staleness for a in deciding), default=0)
        )


def push_shards(
    connection: Connection,
    gradients: Mapping[int, Gradient],
    numbers: dict[int, int],
    counters: Mapping[int, int],
    buffers: list[dict[int, Array]],
    make_room: Callable[[], None],
) -> PushOp:
    """Send gradients to the ps that have their variables; in sync every ps gets at least an empty part."""
    if not connection.sync and len(connection.plan.ps) > 1 and connection.settings.get("check_finite", True):
        _check_finite(connection.plan, gradients)
    make_room()
    operation = PushOp(connection)
    step = connection.local_step if connection.sync else connection.step
    for ps in connection.plan.ps:
        pieces = _pieces(connection, gradients, ps, numbers[ps] + 1, step, counters[ps], buffers)
        if pieces[0].form == EMPTY and not connection.sync and ps != connection.step_ps:
            continue
        numbers[ps] += 1
        only_held = connection.sync and ps != connection.step_ps
        operation.transfers[ps] = PushTransfer(
            connection.caller, connection.refs[ps], ps, pieces, _nothing if only_held else None, connection.aborter()
        )
    return operation


def _nothing() -> None:
    return None


def _pieces(
    connection: Connection, gradients: Mapping[int, Gradient], ps: int, number: int, step: int, counter: int,
    buffers: list[dict[int, Array]],
) -> list[PushMessage]:  # fmt: skip
    plan, layout = connection.plan, connection.plan.layouts[ps]
    if layout.gradient_nbytes and is_whole(plan, layout, gradients):
        run = _own_run(plan, ps, gradients, buffers)
        if run is None:
            run = np.empty(layout.nbytes, np.uint8)
        fill_run(plan, layout, gradients, run)
        return run_pieces(layout, run, connection.runtime.piece_nbytes, connection.epoch, number, step, counter)
    parts = parts_of_shard(plan, layout, gradients)
    if not parts:
        return [PushMessage(connection.epoch, number, step, counter, EMPTY, 0, [], [])]
    return [parts_message(parts, connection.epoch, number, step, counter)]


def _own_run(plan: Plan, ps: int, gradients: Mapping[int, Gradient], buffers: list[dict[int, Array]]) -> Array | None:
    """The buffer of `session.gradients()` in which these gradients already lie, if any."""
    for runs in buffers:
        views = plan.layouts[ps].views(runs[ps])
        for index, view in views.items():
            gradient = gradients.get(plan.parts[index].variable)
            if isinstance(gradient, np.ndarray) and gradient.base is not None and np.shares_memory(gradient, view):
                return runs[ps]
            break
    return None


def _check_finite(plan: Plan, gradients: Mapping[int, Gradient]) -> None:
    for index, gradient in gradients.items():
        values = gradient.values if isinstance(gradient, Rows) else gradient
        with np.errstate(all="ignore"):
            suspect = values.dtype.kind == "f" and not np.isfinite(np.sum(values))
        if suspect and not np.isfinite(values).all():
            raise ValueError(f"the gradient of {plan.variables[index].name} has NaN or infinite values")


def gradient_buffers(plan: Plan) -> tuple[dict[int, Array], dict[int, Any]]:
    """Empty runs for all shards, and the parts in them by index."""
    runs = {ps: np.zeros(layout.nbytes, np.uint8) for ps, layout in plan.layouts.items()}
    views: dict[int, Any] = {}
    for ps, layout in plan.layouts.items():
        views |= layout.views(runs[ps])
    return runs, views
