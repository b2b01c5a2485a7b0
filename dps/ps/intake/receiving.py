"""Handles one message of a push: gives it to the push's intake, and stages a push that is complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dps.errors import ProtocolError
from dps.messages.sessions import EMPTY, PARTS, RUN, SHARED, Push
from dps.ps.intake.borrowed import place_of
from dps.ps.intake.intake import Intake, IntakeState, PushOf, Staged, push_of
from dps.ps.intake.ledger import Ledger
from dps.ps.intake.parts import Parts
from dps.ps.store.gradients import Gradient
from dps.ps.store.table import KeyedTable
from dps.variables.plan import ShardLayout


def receive(
    message: Push, ledger: Ledger, layout: ShardLayout, check: bool, open_intake: Callable[[PushOf], Intake],
    tables: Mapping[int, KeyedTable],
) -> Intake | Staged:  # fmt: skip
    """Take a message of a push that is not complete yet. Returns the push if it is staged, else its intake, which
    `open_intake` opens. `tables`: the shard's keyed tables, which are not changed.

    Raises ProtocolError for a message that does not belong to the push, Unavailable for memory that cannot be reached,
    and Aborted for a number outside of the window."""
    number, form = message.number, message.form
    ledger.check_reach(number)
    if form in (RUN, SHARED) and message.nbytes != layout.gradient_nbytes:
        raise ProtocolError(f"a dense push to this shard has {layout.gradient_nbytes} bytes, got {message.nbytes}")
    push = push_of(message, ledger)
    if form == RUN:
        intake = ledger.arriving.get(number)
        if intake is None:
            intake = ledger.arriving[number] = open_intake(push)
        state = intake.take_pieces(message)
        if state is IntakeState.ARRIVING:
            return intake
        del ledger.arriving[number]
        return intake if state is IntakeState.LOST else ledger.stage_push(intake.staged(), message.nbytes)
    if form == SHARED:
        run = ledger.memory.flats(place_of(message.parts), layout)
        gradient = Gradient(run, {}, borrowed=True, checked=not check)
        return ledger.stage_push(Staged(push, gradient), message.nbytes)
    if form == PARTS:
        parts = Parts(message, layout, tables, ledger.memory, check)
        whole = None if parts.problem else Gradient(None, parts.gradients, parts.borrowed, values=parts.values)
        return ledger.stage_push(Staged(push, whole, parts.problem, assigns=parts.assigns), message.nbytes)
    if form != EMPTY or message.arrays or message.parts:
        forms = "0 (nothing), 1 (run), 2 (parts) or 3 (memory)"
        raise ProtocolError(f"push {number} has form {form}; wanted {forms}")
    return ledger.stage_push(Staged(push, Gradient(None, {})), 0)
