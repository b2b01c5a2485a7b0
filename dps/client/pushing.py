"""One push of a session: gathered, written to each ps that has a part of it, and what they answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from dps.actors.caller import Caller
from dps.client.connection import Connection
from dps.client.dense import Whole, are_many, gather, gather_pieces, is_whole
from dps.client.lanes import ShardRun, ShardRuns
from dps.client.partial import PartRuns, PartsPush
from dps.client.pieces import own_pieces
from dps.client.transfers import About, PushTransfer, run_pieces, shared_message
from dps.protocol import APPLIED, REFUSED, WINDOW
from dps.protocol import Push as PushMessage
from dps.reply import Push
from dps.transport.dtypes import is_float
from dps.transport.wire import Array
from dps.variables.layout import Gradient, fill_run
from dps.variables.packed import PackedGradient
from dps.variables.plan import Plan, ShardLayout, piece_size
from dps.variables.tree import Rows

PIECES = 3
"""Runs of at least so many pieces are gathered piece by piece."""
GATHERED, AT_ONCE = 8, 16
"""So many times, or so many pieces at once where these are too few: each costs both ends 0.1 ms, and the sooner the ps
has its first, the more of its work is done meanwhile."""

NONE_FILLED: Mapping[int, ShardRun | None] = MappingProxyType({})
Buffers = list[dict[int, ShardRun]]
"""Of `session.gradients()`: for each that was given out its runs, by ps."""


class Given(Whole):
    """Gradients of all variables, which lie in the runs of one `session.gradients()`: nobody looks at each again."""

    def __init__(self, plan: Plan, runs: dict[int, ShardRun], arrays: list[Array]) -> None:
        """Of a plan in which each variable has one part; `arrays`: of all variables, in the runs."""
        super().__init__(arrays)
        self.plan, self.runs = plan, runs


class PushOp:
    """One push. In sync the step ps's answer is the result, and the others are done with the session's memory; else
    every shard's is."""

    WINDOW = WINDOW

    def __init__(self, connection: Connection, loss: Any = None) -> None:
        self._connection, self.loss = connection, loss
        self._sync, self._step_ps = connection.sync, connection.step_ps
        self.transfers: dict[int, PushTransfer] = {}
        self._deciding: list[PushTransfer] = []
        self.rolled_back = False
        self.outcome: Push | None = None
        """The result, once the session has taken note of it."""
        self.refusal = ""
        """With the result: why the gradient was refused, "" when it was not."""
        self._restored_step = 0

    def start(self) -> None:
        """Pushes are sent when they are made."""

    def sent(self, ps: int, transfer: PushTransfer) -> None:
        """One shard's part of it is on its way."""
        self.transfers[ps] = transfer
        if not self._sync or ps == self._step_ps:
            self._deciding.append(transfer)

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
        self._restored_step = self._connection.step
        for transfer in self.transfers.values():
            caller.drop(transfer)

    def settle(self, step: int) -> Push:
        """Note the result of a complete operation; `step`: the session's, for one without a part on the step ps."""
        if self.rolled_back:
            self.outcome = Push(self._restored_step, False)
            return self.outcome
        accepted, staleness = True, 0
        for transfer in self._deciding:
            result = transfer.result
            if result is not None:
                if result.credit:
                    self._connection.credit[transfer.ps] = result.number + 1
                accepted = accepted and result.status == APPLIED
                staleness = max(staleness, result.staleness)
                if result.status == REFUSED:
                    self.refusal = self.refusal or result.reason or "refused"
        leading = self.transfers.get(self._step_ps)
        if leading is not None and leading.result is not None:
            step = leading.result.step
        self.outcome = Push(step, accepted, staleness)
        return self.outcome


def push_shards(
    connection: Connection,
    gradients: Mapping[int, Gradient],
    numbers: dict[int, int],
    counters: Mapping[int, int],
    runs: ShardRuns,
    part_runs: PartRuns,
    buffers: Buffers,
    make_room: Callable[[], int],
    loss: Any = None,
    lend: bool = False,
    filled: Mapping[int, ShardRun | None] = NONE_FILLED,
    first: Callable[[], None] | None = None,
) -> PushOp:
    """Write gradients to the ps that have their variables; in sync every ps gets at least an empty part.

    They leave at the next flush or wait. `lend`: ps whose memory can be read may send values with the result. `filled`:
    runs that gradients lie in already, by ps. `first` is called when nothing but to send them is left."""
    check = not connection.sync and len(connection.plan.ps) > 1 and connection.settings.get("check_finite", True)
    together = check and connection.compression is None and are_many(gradients)
    if check and not together:
        _check_finite(connection.plan, gradients)
    clock = make_room()
    if together:
        filled = {ps: filled_run(connection, gradients, ps, runs, buffers) for ps in connection.plan.ps}
        if not all(_is_finite(connection.plan.layouts[ps], run) for ps, run in filled.items()):
            _check_finite(connection.plan, gradients)
    operation = PushOp(connection, loss)
    if connection.compression is not None:
        gradients = connection.compression.pack(connection.plan, gradients, operation)
    step = connection.local_step if connection.sync else connection.step
    before = dict(numbers)
    if first is not None:
        first()
    try:
        for ps in connection.plan.ps:
            leads, lane = ps == connection.step_ps, connection.lanes[ps]
            about = About(
                connection.epoch, numbers[ps] + 1, step, counters[ps], clock if leads else 0,
                lend and lane.on, lane.all_released_below(),
            )  # fmt: skip
            run = filled.get(ps) or _given_run(connection, gradients, ps)
            layout = connection.plan.layouts[ps]
            if run is not None:
                numbers[ps] += 1
                operation.sent(ps, _sent(connection, ps, _pieces(connection, ps, run, about), run, about))
                continue
            if layout.trained and is_whole(layout, gradients):
                numbers[ps] += 1
                operation.sent(ps, _sent_dense(connection, gradients, ps, about, runs, buffers))
                continue
            parts = PartsPush(connection, gradients, ps, about, part_runs)
            if parts.empty and not connection.sync and ps != connection.step_ps:
                continue
            numbers[ps] += 1
            operation.sent(ps, _sent_parts(connection, ps, parts))
    except BaseException:  # Ctrl-C: nobody knows what the ps have of this push, and later ones would wait for it
        connection.aborted = connection.aborted or numbers != before
        raise
    return operation


def streams(connection: Connection, gradients: Mapping[int, Gradient]) -> bool:
    """Whether a push goes to all ps over their sockets, in pieces that a ps may apply one by one."""
    if connection.sync or connection.bounded or connection.compression is not None:
        return False
    layouts, smallest = connection.plan.layouts, connection.runtime.piece_nbytes
    return (
        not any(connection.lanes[ps].on for ps in layouts)
        and max(layout.gradient_nbytes for layout in layouts.values()) >= PIECES * smallest
        and all(layout.trained and is_whole(layout, gradients) for layout in layouts.values())
    )


def _sent(
    connection: Connection, ps: int, pieces: list[PushMessage], run: ShardRun | None, about: About,
    first: PushMessage | None = None,
) -> PushTransfer:  # fmt: skip
    """One shard's part of a push, on its way; its run is in use until that is over."""
    otherwise = None
    if run is not None and run.memory is not None:
        otherwise = partial(_over_the_socket, connection, ps, run, about)
    transfer = PushTransfer(
        connection.caller, connection.refs[ps], ps, pieces, connection.sync and ps != connection.step_ps,
        connection.abort, otherwise, first=first, credit=connection.credit.pop(ps, 0) == about.number,
    )  # fmt: skip
    if run is not None:
        run.reader = transfer
    return transfer


def _sent_parts(connection: Connection, ps: int, parts: PartsPush) -> PushTransfer:
    """One shard's part of a push of some variables, on its way: large ones at once, while the next is gathered."""
    shared = parts.run is not None and parts.run.memory is not None
    transfer = PushTransfer(
        connection.caller, connection.refs[ps], ps, parts.messages(), connection.sync and ps != connection.step_ps,
        connection.abort, parts.over_the_socket if shared else None, parts.in_full,
    )  # fmt: skip
    if parts.run is not None:
        parts.run.reader = transfer
        connection.caller.flush()
    return transfer


def _over_the_socket(
    connection: Connection, ps: int, run: ShardRun, about: About, error: Exception
) -> list[PushMessage]:
    connection.lanes[ps].give_up(error)
    run.memory = None
    return _pieces(connection, ps, run, about)


def _sent_dense(
    connection: Connection, gradients: Mapping[int, Gradient], ps: int, about: About, runs: ShardRuns, buffers: Buffers
) -> PushTransfer:
    """A shard's part of a push that has a gradient for all of it: out of the user's own arrays, or out of a run."""
    plan, layout = connection.plan, connection.plan.layouts[ps]
    smallest, own = connection.runtime.piece_nbytes, _own_run(layout, ps, gradients, buffers)
    if own is None and connection.lanes[ps].on and layout.gradient_nbytes >= PIECES * smallest:
        run = runs.take(ps, layout)
        if run.memory is not None:
            return _sent_while_gathered(connection, gradients, ps, about, run)
    elif own is None and not connection.lanes[ps].on:
        pieces = own_pieces(plan, layout, gradients, smallest, about)
        if pieces is not None:
            return _sent(connection, ps, pieces, None, about)
    run = _filled(connection, gradients, ps, runs, own)
    return _sent(connection, ps, _pieces(connection, ps, run, about), run, about)


def _sent_while_gathered(
    connection: Connection, gradients: Mapping[int, Gradient], ps: int, about: About, run: ShardRun
) -> PushTransfer:
    """A shard's part of a push in shared memory: the ps works on the first pieces while the next are gathered."""
    plan, layout, caller = connection.plan, connection.plan.layouts[ps], connection.caller
    assert run.memory is not None, "only a run that is shared is told of"
    whole = shared_message(layout, run.memory.name, about)
    transfer: PushTransfer | None = None
    smallest = connection.runtime.piece_nbytes
    size = max(smallest, min(AT_ONCE * smallest, layout.gradient_nbytes // GATHERED // 64 * 64))
    try:
        for offset, nbytes in gather_pieces(plan, layout, gradients, run.bytes, size):
            (ready,) = shared_message(layout, run.memory.name, about, (offset, nbytes))
            if transfer is None:
                transfer = _sent(connection, ps, whole, run, about, ready)
            else:
                caller.send(transfer, ready)
            caller.flush()
    except BaseException:  # Ctrl-C: what has begun cannot be taken back, and half of it must not count
        fill_run(plan, layout, gradients, run.views, run.bytes)
        if transfer is None:
            _sent(connection, ps, whole, run, about)
        else:
            caller.send(transfer, whole[0])
        raise
    assert transfer is not None, "a push in pieces has some"
    return transfer


def filled_run(
    connection: Connection, gradients: Mapping[int, Gradient], ps: int, runs: ShardRuns, buffers: Buffers
) -> ShardRun | None:
    """A run with a shard's gradients in it, the user's own where they lie there already; None when some are missing."""
    layout = connection.plan.layouts[ps]
    given = _given_run(connection, gradients, ps)
    if given is not None or not layout.trained or not is_whole(layout, gradients):
        return given
    return _filled(connection, gradients, ps, runs, _own_run(layout, ps, gradients, buffers))


def _given_run(connection: Connection, gradients: Mapping[int, Gradient], ps: int) -> ShardRun | None:
    """The run in which all gradients are known to lie, if any."""
    plan = connection.plan
    if not isinstance(gradients, Given) or gradients.plan is not plan or not plan.layouts[ps].trained:
        return None
    return None if gradients.runs[ps].in_use else gradients.runs[ps]


def _filled(
    connection: Connection, gradients: Mapping[int, Gradient], ps: int, runs: ShardRuns, run: ShardRun | None
) -> ShardRun:
    """A run with a shard's gradients in it; `run`: the user's own, in which some lie already."""
    plan, layout = connection.plan, connection.plan.layouts[ps]
    if run is None or run.in_use:
        run = runs.take(ps, layout)
        gather(plan, layout, gradients, run.bytes)
        return run
    fill_run(plan, layout, gradients, run.views, run.bytes)
    return run


def _pieces(connection: Connection, ps: int, run: ShardRun, about: About) -> list[PushMessage]:
    """The messages for a dense push: its place in shared memory, or all of its bytes."""
    layout = connection.plan.layouts[ps]
    if run.memory is not None and connection.lanes[ps].on:
        return shared_message(layout, run.memory.name, about)
    size = piece_size(layout.gradient_nbytes, connection.runtime.piece_nbytes)
    return run_pieces(layout, run.bytes, size, about)


def _own_run(layout: ShardLayout, ps: int, gradients: Mapping[int, Gradient], buffers: Buffers) -> ShardRun | None:
    """The buffer of `session.gradients()` in which these gradients already lie, if any."""
    first = layout.trained[0]
    gradient = gradients[first.variable]
    for runs in buffers:
        run = runs[ps]
        view = run.views[first.index]
        if gradient is view or (gradient.base is not None and np.may_share_memory(gradient, view)):  # type: ignore[union-attr]
            return run
    return None


def _is_finite(layout: ShardLayout, run: ShardRun | None) -> bool:
    """Whether a run has no NaN and no infinity. False, too, where that is not known: without a run, or by overflow."""
    if run is None:
        return not layout.trained
    for arena in layout.arenas:
        if arena.optimizer is not None:
            values = run.bytes[arena.offset : arena.offset + arena.nbytes].view(arena.dtype)
            with np.errstate(all="ignore"):
                if not np.isfinite(np.sum(values)):
                    return False
    return True


def _check_finite(plan: Plan, gradients: Mapping[int, Gradient]) -> None:
    for index, gradient in gradients.items():
        assert not isinstance(gradient, PackedGradient), "gradients are looked at before they are packed"
        values = gradient.values if isinstance(gradient, Rows) else gradient
        with np.errstate(all="ignore"):
            suspect = is_float(values.dtype) and not np.isfinite(np.sum(values))
        if suspect and not np.isfinite(values).all():
            raise ValueError(f"the gradient of {plan.variables[index].name} has NaN or infinite values")
