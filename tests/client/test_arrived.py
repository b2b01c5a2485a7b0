"""Values that are used where they were received: pieces in any order and doubled, and never half of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from dps.client.transfers import arrived
from dps.errors import ProtocolError
from dps.messages.sessions import Pull, Values
from dps.transport.message import changed
from dps.variables.plan import Plan, VariableSpec, make_plan
from tests.client.test_transfers import pieces_of, pull, run_of, values_in
from tests.variables.models import SGD, plans


def three() -> Plan:
    """Variables of 8, 16 and 8 bytes on one ps."""
    names = {"a": (2,), "b": (4,), "c": (2,)}
    return make_plan([VariableSpec(name, shape, "<f4", SGD) for name, shape in names.items()], (0,), lambda *_: 0, None)


def arrived_from(pieces: Sequence[tuple[int, int]]) -> list[Any]:
    run = run_of(three(), 0)
    return arrived(three().layouts[0], {start: run[start:stop].copy() for start, stop in pieces})


@given(plans(), st.integers(8, 64))
def test_whole_pieces_are_the_run_and_no_part_lies_in_two(plan: Plan, size: int) -> None:
    for layout in plan.layouts.values():
        pieces = layout.whole_pieces(size)
        ranges = [(at, at + nbytes) for piece in pieces for at, nbytes in piece]
        seen = np.zeros(layout.nbytes, np.uint8)
        for start, stop in ranges:
            seen[start:stop] += 1
        for start, stop, _, _ in layout.spans:
            assert seen[start:stop].all() or start == stop
            assert start == stop or any(at <= start and stop <= end for at, end in ranges)
        assert int(seen.sum()) == layout.data_nbytes
        for piece in pieces:
            alone = len(piece) == 1 and (piece[0][0], sum(piece[0])) in [(at, end) for at, end, _, _ in layout.spans]
            assert alone or sum(nbytes for _, nbytes in piece) <= size


@settings(max_examples=50)
@given(plans(), st.integers(8, 64), st.data())
def test_pieces_in_any_order_and_doubled_make_the_values(plan: Plan, size: int, data: st.DataObject) -> None:
    for ps in plan.ps:
        wire, transfer = pull(plan, ps, whole=True)
        pieces = pieces_of(plan, ps, run_of(plan, ps), 5, size, whole=True)
        order = data.draw(st.permutations(pieces))
        doubled = [*data.draw(st.lists(st.sampled_from(order[:-1]), max_size=3)), *order] if len(order) > 1 else order
        wire.answer(*doubled[:-1])
        assert not transfer.complete and transfer.values is None
        wire.answer(doubled[-1])
        assert transfer.complete and transfer.counter == 5 and isinstance(transfer.values, list)
        layout, run = plan.layouts[ps], run_of(plan, ps)
        for got, wanted in zip(transfer.values, layout.listed(layout.memories(run)), strict=True):
            assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape) and got.flags.writeable
            np.testing.assert_array_equal(got, wanted)
        for start, stop, _, _ in layout.spans:
            np.testing.assert_array_equal(values_in(transfer)[start:stop], run[start:stop])


def test_parts_lie_where_they_came_and_are_copied_where_that_may_not_be_written_to() -> None:
    run = run_of(three(), 0)
    own, others = run[:24].copy(), run[24:32].copy()
    others = np.frombuffer(others.tobytes(), np.uint8)
    a, b, c = arrived(three().layouts[0], {0: own, 24: others})
    assert np.shares_memory(a, own) and np.shares_memory(b, own) and not np.shares_memory(c, others)
    c[:] = 7
    assert c.flags.writeable and a.flags.writeable


def test_what_is_received_read_only_may_be_written_to_by_who_has_it_alone() -> None:
    memory = bytearray(run_of(three(), 0)[:32].tobytes())
    received = np.frombuffer(memory, np.uint8)
    received.flags.writeable = False
    for part in arrived(three().layouts[0], {0: received.view()}):
        part[:] = 3
    assert np.frombuffer(memory, np.float32).tolist() == [3.0] * 8


@pytest.mark.parametrize(
    "pieces", [[], [(0, 8)], [(0, 8), (24, 32)], [(8, 32)], [(0, 24), (8, 32)], [(0, 24), (16, 24), (24, 32)]]
)
def test_pieces_that_are_not_the_run_are_refused(pieces: list[tuple[int, int]]) -> None:
    with pytest.raises(ProtocolError, match="have not arrived|overlap others"):
        arrived_from(pieces)


def test_pieces_of_two_versions_are_never_mixed() -> None:
    plan = three()
    old, new = (pieces_of(plan, 0, run_of(plan, 0, add), counter, 16, True) for counter, add in ((5, 0), (6, 100)))
    assert len(old) == 3
    wire, transfer = pull(plan, 0, whole=True)
    wire.answer(*old[:2], new[1], old[2])  # the older version is complete, but a newer one has begun
    assert not transfer.complete
    wire.answer(new[0], new[2])
    assert transfer.complete and transfer.counter == 6
    np.testing.assert_array_equal(values_in(transfer), run_of(plan, 0, 100))


def test_a_ps_that_sends_other_bytes_than_it_says_ends_nothing() -> None:
    wire, transfer = pull(three(), 0, whole=True)
    with pytest.raises(ProtocolError):
        wire.answer(Values(1, 1, 0, 8, [0], 1, arrays=(np.zeros(8, np.uint8),)))
    assert not transfer.complete and transfer.values is None


def test_an_answer_that_is_cut_otherwise_is_copied() -> None:
    plan, run = three(), run_of(three(), 0)
    for size in (8, 16, 24):
        wire, transfer = pull(plan, 0, whole=True)
        wire.answer(*pieces_of(plan, 0, run, 5, size))
        assert transfer.complete
        np.testing.assert_array_equal(values_in(transfer)[:32], run[:32])
        assert isinstance(transfer.values, np.ndarray) == (size != 24), "24 bytes are the first two variables"


@settings(max_examples=50)
@given(st.data())
def test_two_answers_of_one_version_that_are_cut_differently_are_never_mixed(data: st.DataObject) -> None:
    plan, run = three(), run_of(three(), 0)
    sizes = data.draw(st.permutations([8, 16, 24, 32]))[:2]
    wholes = [data.draw(st.booleans()) for _ in sizes]
    first, second = (
        [changed(piece, answer=number) for piece in pieces_of(plan, 0, run, 5, size, whole)]
        for number, (size, whole) in enumerate(zip(sizes, wholes, strict=True))
    )
    lost = data.draw(st.integers(0, len(first) - 1))
    order = data.draw(st.permutations([*first[:lost], *first[lost + 1 :], *second]))
    wire, transfer = pull(plan, 0, whole=data.draw(st.booleans()))
    for count, piece in enumerate(order):
        here = all(any(piece is got for got in order[:count]) for piece in second)
        assert transfer.complete == here
        wire.answer(piece)
    assert transfer.complete
    np.testing.assert_array_equal(values_in(transfer)[:32], run[:32])


def test_a_pull_that_is_sent_again_asks_for_small_pieces() -> None:
    """A connection that has become slow would break in the middle of a long one, again and again."""
    wire, transfer = pull(three(), 0, whole=True)
    (asked,) = wire.sent
    assert isinstance(asked, Pull) and asked.keeps_memory
    assert transfer.resend_message() == changed(asked, keeps_memory=False)
    _, other = pull(three(), 0)
    assert other.resend_message() == changed(asked, keeps_memory=False)


def test_pieces_of_a_pull_that_was_dropped_are_let_go() -> None:
    wire, transfer = pull(three(), 0, whole=True)
    wire.answer(*pieces_of(three(), 0, run_of(three(), 0), 5, 8, True)[:2])
    assert transfer.received
    transfer.drop()
    assert not transfer.received
