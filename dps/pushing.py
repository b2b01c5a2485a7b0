"""A session's pushes: one transfer per ps, each under its own dense number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dps.actors.caller import Caller
from dps.actors.requests import Request
from dps.connection import Connection
from dps.lanes import Run, Runs, nobody
from dps.protocol import APPLIED, EMPTY, REFUSED, WINDOW
from dps.protocol import Push as PushMessage
from dps.reply import Push
from dps.transport.wire import Array
from dps.variables.layout import Gradient, fill_run, is_whole, parts_of_shard
from dps.variables.plan import Plan
from dps.variables.transfers import PushTransfer, parts_message, run_pieces, shared_message
from dps.variables.tree import Rows
from dps.waiting import Waiter


class PushOp:
    """One push. In sync the step ps's answer is the result; else every shard's."""

    WINDOW = WINDOW

    def __init__(self, connection: Connection, loss: Any = None) -> None:
        self._connection, self.loss = connection, loss
        self._sync, self._step_ps = connection.sync, connection.step_ps
        self.transfers: dict[int, PushTransfer] = {}
        self.rolled_back = False
        self.outcome: Push | None = None
        """The result, once the session has taken note of it."""
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

    @property
    def error(self) -> Exception | None:
        """What a ps answered instead of a result."""
        if self.rolled_back:
            return None
        return next((t.error for t in self.transfers.values() if t.error is not None), None)

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error

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


class Pushes:
    """The pushes of a session: their numbers, those on their way, and what the session knows from their results.

    `settled` is called once for each push that has a result and was not refused, in their order.
    """

    def __init__(self, connection: Connection, waiter: Waiter, settled: Callable[[Push, Any], None]) -> None:
        self._connection, self._waiter, self._settled = connection, waiter, settled
        self._under_way: list[PushOp] = []
        self._runs = Runs(connection.runtime, connection.lanes)
        self._buffers: list[dict[int, Run]] = []
        """Of `gradients`: the user's to fill."""
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.acknowledged = 0
        self.numbers = dict.fromkeys(self._connection.plan.ps, 0)
        self.pulled = dict.fromkeys(self._connection.plan.ps, -1)
        """The version of each shard that the last pull gave: what the next push was computed from."""

    @property
    def under_way(self) -> bool:
        return bool(self._under_way)

    def start(self, gradients: Mapping[int, Gradient], loss: Any, timeout: float | None) -> PushOp:
        """Send a push; blocks while the send window is full."""
        operation = push_shards(
            self._connection, gradients, self.numbers, self.pulled, self._runs, self._buffers,
            lambda: self._make_room(timeout), loss,
        )  # fmt: skip
        self._under_way.append(operation)
        return operation

    def _make_room(self, timeout: float | None) -> int:
        """Wait until the send window has room for one more push; how many are acknowledged."""
        self.account()
        while len(self._under_way) >= PushOp.WINDOW:
            self._waiter.wait(self._under_way[0], timeout, "an earlier push")
            self.account()
        return self.acknowledged

    def account(self) -> None:
        """Take note of the pushes that are complete, once each and in the run epoch that they belong to."""
        connection = self._connection
        while (operation := next((p for p in self._under_way if p.complete), None)) is not None:
            self._under_way.remove(operation)
            result = operation.result(connection.step)
            self.acknowledged += 1
            connection.step = max(connection.step, result.step)
            if connection.sync:
                connection.local_step = max(connection.local_step, result.step)
            self._settle(operation)

    def _settle(self, operation: PushOp) -> None:
        """Last of all, for `settled` runs hooks, and these may push, wait and roll back."""
        operation.outcome = operation.result(self._connection.step)
        if not operation.refusal and operation.error is None:
            self._settled(operation.outcome, operation.loss)

    def finish(self, operation: PushOp, timeout: float | None) -> Push:
        """Wait for a push; its result, or ValueError with the reason why it was refused."""
        if operation.outcome is None:
            self._waiter.wait(operation, timeout, "a push")
            self.account()
        operation.raise_error()
        assert operation.outcome is not None
        if operation.refusal:
            raise ValueError(operation.refusal)
        return operation.outcome

    def drain(self) -> None:
        """Wait for all that is on its way."""
        while self._under_way:
            self._waiter.wait(self._under_way[0], None, "a push")
            self.account()

    def roll_back(self, told: Callable[[], None]) -> None:
        """A new run epoch has begun, or a new incarnation: pushes on their way are given up, and say so.

        `told` is called when this session's books are in order, before the pushes are settled.
        """
        given_up, self._under_way = self._under_way, []
        for operation in given_up:
            operation.roll_back(self._connection.caller)
        self._begin_epoch()
        self._runs.forget()
        for runs in self._buffers:
            for run in runs.values():
                run.in_use = nobody  # every ps has forgotten the incarnation that lent it
        told()
        for operation in given_up:
            self._settle(operation)

    def gradients(self, build: Callable[[Callable[[str], Any]], Any]) -> Any:
        """Arrays to fill, in the nesting that `build` makes, which are pushed without being gathered first."""
        plan = self._connection.plan
        runs = {
            ps: Run(self._connection.runtime, self._connection.lanes[ps], layout.nbytes)
            for ps, layout in plan.layouts.items()
        }
        views: dict[int, Array] = {}
        for ps, layout in plan.layouts.items():
            runs[ps].views = layout.views(runs[ps].bytes)
            views |= runs[ps].views or {}
        self._buffers.append(runs)
        del self._buffers[:-4]

        def leaf(name: str) -> Any:
            spec, parts = plan.variables[plan.by_name[name]], plan.parts_of[plan.by_name[name]]
            return views[parts[0].index] if len(parts) == 1 else np.empty(spec.shape, spec.dtype)

        return build(leaf)


def push_shards(
    connection: Connection,
    gradients: Mapping[int, Gradient],
    numbers: dict[int, int],
    counters: Mapping[int, int],
    runs: Runs,
    buffers: list[dict[int, Run]],
    make_room: Callable[[], int],
    loss: Any = None,
) -> PushOp:
    """Send gradients to the ps that have their variables; in sync every ps gets at least an empty part."""
    if not connection.sync and len(connection.plan.ps) > 1 and connection.settings.get("check_finite", True):
        _check_finite(connection.plan, gradients)
    clock = make_room()
    operation = PushOp(connection, loss)
    step = connection.local_step if connection.sync else connection.step
    for ps in connection.plan.ps:
        about = connection.epoch, numbers[ps] + 1, step, counters[ps]
        run = _filled_run(connection, gradients, ps, runs, buffers)
        pieces = _parts(connection.plan, gradients, ps, about) if run is None else _pieces(connection, ps, run, about)
        if connection.bounded and ps == connection.step_ps:
            pieces = [replace(piece, clock=clock) for piece in pieces]
        if pieces[0].form == EMPTY and not connection.sync and ps != connection.step_ps:
            continue
        numbers[ps] += 1
        operation.transfers[ps] = _sent(connection, ps, pieces, run, about)
    return operation


def _sent(
    connection: Connection, ps: int, pieces: list[PushMessage], run: Run | None, about: tuple[int, int, int, int]
) -> PushTransfer:
    """One shard's part of a push, on its way; its run is in use until that is over."""

    def over_the_socket(error: Exception) -> list[PushMessage]:
        assert run is not None
        connection.lanes[ps].give_up(error)
        run.memory = None
        return _pieces(connection, ps, run, about)

    only_held = connection.sync and ps != connection.step_ps
    transfer = PushTransfer(
        connection.caller, connection.refs[ps], ps, pieces, _nothing if only_held else None, connection.aborter(),
        over_the_socket if run is not None and run.memory is not None else None,
    )  # fmt: skip
    if run is not None:
        run.in_use = lambda: not transfer.complete
    return transfer


def _nothing() -> None:
    return None


def _filled_run(
    connection: Connection, gradients: Mapping[int, Gradient], ps: int, runs: Runs, buffers: list[dict[int, Run]]
) -> Run | None:
    """A run with a shard's gradients in it, the user's own where they lie there already; None when some are missing."""
    plan, layout = connection.plan, connection.plan.layouts[ps]
    if not layout.gradient_nbytes or not is_whole(plan, layout, gradients):
        return None
    run = _own_run(plan, ps, gradients, buffers)
    if run is None or run.in_use():
        run = runs.take(ps, layout.nbytes)
    fill_run(plan, layout, gradients, run.bytes, run.views)
    return run


def _pieces(connection: Connection, ps: int, run: Run, about: tuple[int, int, int, int]) -> list[PushMessage]:
    """The messages for a dense push: its place in shared memory, or all of its bytes."""
    layout = connection.plan.layouts[ps]
    if run.memory is not None and connection.lanes[ps].on:
        return shared_message(layout, run.memory.name, *about)
    return run_pieces(layout, run.bytes, connection.runtime.piece_nbytes, *about)


def _parts(
    plan: Plan, gradients: Mapping[int, Gradient], ps: int, about: tuple[int, int, int, int]
) -> list[PushMessage]:
    """The message for a push of some variables, or of none."""
    parts = parts_of_shard(plan, plan.layouts[ps], gradients)
    if not parts:
        return [PushMessage(*about, EMPTY, 0, [], [])]
    return [parts_message(parts, *about)]


def _own_run(plan: Plan, ps: int, gradients: Mapping[int, Gradient], buffers: list[dict[int, Run]]) -> Run | None:
    """The buffer of `session.gradients()` in which these gradients already lie, if any."""
    for runs in buffers:
        for index, view in (runs[ps].views or {}).items():
            gradient = gradients.get(plan.parts[index].variable)
            if gradient is view:
                return runs[ps]
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
