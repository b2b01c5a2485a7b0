"""Pulls and pushes on their way: pieces in any order and doubled, credit, and what a resend says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from dps.actors.answers import Done, Failed, Waiting
from dps.client.cargo import About, CargoMemory, RunCargo
from dps.client.transfers import PullTransfer, PushTransfer
from dps.errors import Aborted, ProtocolError, Unavailable
from dps.messages.sessions import (
    APPLIED,
    DROPPED,
    RUN,
    SHARED,
    Credit,
    NotNewer,
    Pull,
    Push,
    Pushed,
    PushHeld,
    PushMissing,
    PushStatus,
    Values,
)
from dps.variables.plan import Plan, VariableSpec, make_plan
from tests.client.peers import Memory, Wire, peer, take
from tests.variables.models import SGD, plans, values_of


def small() -> Plan:
    return make_plan([VariableSpec("a", (8,), "<f4", SGD)], (0,), lambda *_: 0, None)


# -- pulls --------------------------------------------------------------------------------------------------------


def pull(plan: Plan, ps: int, whole: bool = False) -> tuple[Wire, PullTransfer]:
    wire = Wire()
    message = Pull(1, 0, 0, 0, -1, [], keeps_memory=whole)
    made = PullTransfer(peer(wire, plan.layouts[ps], ps=ps), message, take)
    made.begin()
    return wire, made


def values_in(transfer: PullTransfer) -> Any:
    """The run of a transfer, also of values that stay where they were received."""
    layout = transfer.peer.layout
    if isinstance(transfer.values, np.ndarray):
        return transfer.values[: layout.nbytes]
    run = np.zeros(layout.nbytes, np.uint8)
    for (start, stop, _, _), part in zip(layout.spans, transfer.values or (), strict=True):
        run[start:stop] = part.reshape(-1).view(np.uint8)
    return run


def pieces_of(plan: Plan, ps: int, run: Any, counter: int, size: int, whole: bool = False) -> list[Values]:
    layout = plan.layouts[ps]
    return [
        Values(
            1,
            counter,
            3,
            layout.data_nbytes,
            [o for o, _ in piece],
            1,
            arrays=tuple(run[o : o + n].copy() for o, n in piece),
        )
        for piece in (layout.whole_pieces(size) if whole else layout.pieces(size))
    ]


def run_of(plan: Plan, ps: int, add: int = 0) -> Any:
    run = np.zeros(plan.layouts[ps].nbytes, np.uint8)
    for index, view in plan.layouts[ps].views(run).items():
        part = plan.parts[index]
        value = values_of(plan)[plan.variables[part.variable].name] + add
        view[...] = value if not part.shape else value[part.row0 : part.row0 + part.shape[0]]
    return run


@settings(max_examples=50)
@given(plans(), st.integers(8, 64), st.data())
def test_pieces_in_any_order_and_doubled_make_the_run(plan: Plan, size: int, data: st.DataObject) -> None:
    for ps in plan.ps:
        wire, transfer = pull(plan, ps)
        pieces = pieces_of(plan, ps, run_of(plan, ps), 5, size)
        order = data.draw(st.permutations(pieces))
        doubled = [*data.draw(st.lists(st.sampled_from(order[:-1]), max_size=3)), *order] if len(order) > 1 else order
        wire.answer(*doubled[:-1])
        assert not transfer.complete
        wire.answer(doubled[-1])
        assert transfer.complete and (transfer.counter, transfer.step, transfer.newer) == (5, 3, True)
        layout = plan.layouts[ps]
        got, wanted = layout.views(values_in(transfer)), layout.views(run_of(plan, ps))
        for index, value in wanted.items():
            np.testing.assert_array_equal(got[index], value)


def test_the_rate_of_a_connection_is_that_of_the_values_that_came_in_pieces() -> None:
    plan = small()
    wire, transfer = pull(plan, 0)
    first, second = pieces_of(plan, 0, run_of(plan, 0), 5, 16)
    wire.answer(first)
    wire.time = 0.5
    wire.answer(first, second)
    assert transfer.peer.lane.rate == 16 / 0.5
    wire, transfer = pull(plan, 0)
    wire.answer(*pieces_of(plan, 0, run_of(plan, 0), 5, 32))
    assert transfer.peer.lane.rate == float("inf"), "one message tells nothing"


def test_pieces_of_two_versions_are_never_mixed() -> None:
    plan = small()
    old, new = (pieces_of(plan, 0, run_of(plan, 0, add), counter, 16) for counter, add in ((5, 0), (6, 100)))
    wire, transfer = pull(plan, 0)
    wire.answer(old[0], new[1], old[1])  # the older version is complete, but a newer one has begun
    assert not transfer.complete
    wire.answer(new[0])
    assert transfer.complete and transfer.counter == 6
    np.testing.assert_array_equal(values_in(transfer)[:32], run_of(plan, 0, 100)[:32])


def test_nothing_newer_is_an_answer_without_values() -> None:
    wire, transfer = pull(small(), 0)
    wire.answer(NotNewer(1, 9, 4))
    assert transfer.complete and transfer.values is None
    assert (transfer.newer, transfer.counter, transfer.step) == (False, 9, 4)


def test_a_piece_that_lies_beside_the_run_is_refused() -> None:
    wire, _ = pull(small(), 0)
    with pytest.raises(ProtocolError):
        wire.answer(Values(1, 1, 0, 32, [24], 1, arrays=(np.zeros(16, np.uint8),)))


def test_waiting_says_for_whom_and_an_error_ends_the_transfer() -> None:
    wire, transfer = pull(small(), 0)
    wire.answer(Waiting("waits for worker:1"))
    assert not transfer.complete and transfer.waits_for == "waits for worker:1"
    wire.answer(Failed.of(ValueError("no such part"), "ps:0"))
    assert transfer.complete and str(transfer.error) == "no such part" and wire.aborted == 0


def test_an_epoch_that_is_over_is_told_and_does_not_end_the_transfer() -> None:
    wire, transfer = pull(small(), 0)
    wire.answer(Failed.of(Aborted("over"), "ps:0"))
    assert not transfer.complete and transfer.error is None and wire.aborted == 1


# -- pushes -------------------------------------------------------------------------------------------------------


def push(size: int, held: bool = False, credit: bool = False) -> tuple[Wire, PushTransfer, list[Push]]:
    """A push of 32 bytes in pieces of `size`, as number 4 of epoch 1."""
    plan, wire = small(), Wire(size)
    to = peer(wire, plan.layouts[0])
    run = CargoMemory(wire.runtime, to.lane, 32)  # type: ignore[arg-type]
    run.bytes[:] = run_of(plan, 0)[:32]
    cargo = RunCargo(to, About(1, 4, 2, 7), run)
    transfer = PushTransfer(cargo, held, credit)
    transfer.begin()
    assert run.in_use
    return wire, transfer, transfer._pieces


def pushed(status: str) -> Pushed:
    return Pushed(4, status, 3, 0, 8, "")


def test_a_short_push_goes_at_once_and_a_resend_only_asks_what_became_of_it() -> None:
    wire, transfer, pieces = push(64)
    assert wire.sent == pieces and len(pieces) == 1
    assert transfer.resend_message() == PushStatus(1, 4)
    wire.answer(pushed(APPLIED))
    assert transfer.complete and transfer.accepted is True and transfer.result == pushed(APPLIED)


def test_a_long_push_asks_for_credit_and_then_sends_all_pieces() -> None:
    wire, transfer, pieces = push(8)
    assert wire.sent == [Credit(1, 4)] and transfer.resend_message() == Credit(1, 4)
    wire.answer(Waiting("takes 2 large pushes at a time"))
    assert len(wire.sent) == 1
    wire.answer(Done(), Done())
    assert wire.sent == [Credit(1, 4), *pieces] and len(pieces) == 4  # a second leave is none
    assert transfer.resend_message() == PushStatus(1, 4)


def test_a_long_push_that_has_credit_goes_at_once_and_asks_for_more_where_the_ps_has_lost_sight_of_it() -> None:
    wire, transfer, pieces = push(8, credit=True)
    assert wire.sent == pieces and len(pieces) == 4 and transfer.resend_message() == PushStatus(1, 4)
    wire.answer(PushMissing(4), Done())
    assert wire.sent == [*pieces, Credit(1, 4), *pieces]


def test_a_ps_may_say_twice_that_it_cannot_read_the_memory_of_a_push() -> None:
    plan, wire = small(), Wire(64)
    to = peer(wire, plan.layouts[0], Memory())
    run = CargoMemory(wire.runtime, Memory(on=False), 32)  # type: ignore[arg-type]
    run.memory = SimpleNamespace(name=[1, 2], array=run.bytes)  # type: ignore[assignment]
    transfer = PushTransfer(RunCargo(to, About(1, 4, 2, 7), run))
    transfer.begin()
    assert [message.form for message in wire.sent] == [SHARED]
    wire.answer(*[Failed.of(Unavailable("no file can be opened"), "ps:0")] * 2)  # to a message that arrived twice
    assert wire.sent[1:] == [Credit(1, 4)] and not transfer.complete and transfer.error is None
    wire.answer(Done(), Failed.of(Unavailable("no file can be opened"), "ps:0"))
    assert wire.sent[2:] == transfer._pieces and not transfer.complete
    wire.answer(pushed(APPLIED))
    assert transfer.complete and transfer.error is None


def test_a_push_that_the_ps_does_not_have_is_sent_again_under_its_number() -> None:
    wire, _, (piece,) = push(64)
    wire.answer(PushMissing(4))
    assert wire.sent == [piece, piece]
    wire, _, pieces = push(16)
    wire.answer(Done(), PushMissing(4), Done())
    assert wire.sent == [Credit(1, 4), *pieces, Credit(1, 4), *pieces]


def test_whether_a_push_counts_is_known_from_the_decision_and_final_with_the_result() -> None:
    wire, transfer, _ = push(64)
    wire.answer(PushHeld(4, False, "step 3 waits for worker:1"))
    assert transfer.accepted is None and transfer.waits_for == "step 3 waits for worker:1"
    wire.answer(PushHeld(4, True, "waits for its token"))
    assert transfer.accepted is True and not transfer.complete
    wire.answer(pushed(APPLIED))
    assert transfer.complete
    wire, transfer, _ = push(64)
    wire.answer(pushed(DROPPED))
    assert transfer.complete and transfer.accepted is False


def test_beside_the_step_ps_it_is_enough_that_a_push_is_held() -> None:
    wire, transfer, _ = push(64, held=True)
    wire.answer(PushHeld(4, False, ""))
    assert transfer.complete and transfer.result is None


def test_a_dense_push_says_what_it_was_computed_from() -> None:
    _, _, pieces = push(16)
    assert [(p.epoch, p.number, p.step, p.counter, p.form, p.nbytes, p.offsets) for p in pieces] == [
        (1, 4, 2, 7, RUN, 32, [0]), (1, 4, 2, 7, RUN, 32, [16]),
    ]  # fmt: skip
