"""What workers tell of their loops' time: checked, never falling, and cut into the last steps."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from dps.errors import ProtocolError
from dps.ps.intake.borrowed import Borrowed
from dps.ps.intake.ledger import Ledger
from dps.ps.intake.worker_times import LEAST_S, LEAST_STEPS, WorkerTimes
from dps.transport.current import runtime


def test_waiting_is_taken_out_of_the_time_in_calls() -> None:
    times = WorkerTimes()
    times.record_report([1.0, 2.0, 4.0, 60.0], 3, 1.5)
    assert times.sums == (3, 1.0, 2.0, 2.5, 1.5) and times.patience_s == 60.0
    times.record_report([1.0, 3.0, 5.0, 60.0], 4, 1.5)
    assert times.sums == (4, 1.0, 3.0, 3.5, 1.5)


def test_a_push_that_waits_while_its_loop_computes_is_no_waiting_of_the_loop() -> None:
    times = WorkerTimes()
    times.record_report([0.0, 5.0, 1.0, 0.0], 1, 4.0)
    assert times.sums == (1, 0.0, 5.0, 0.0, 1.0)
    times.record_report([0.0, 5.0, 3.0, 0.0], 2, 4.0)  # what was over is not taken out of later calls
    assert times.sums == (2, 0.0, 5.0, 2.0, 1.0)


def test_lower_sums_come_with_a_push_that_was_sent_again_and_change_nothing() -> None:
    times = WorkerTimes()
    times.record_report([1.0, 2.0, 3.0, 0.0], 5, 0.0)
    before = times.as_dict()
    for told in ([0.5, 2.0, 3.0, 0.0], [1.0, 1.0, 3.0, 0.0], [1.0, 2.0, 2.0, 0.0], [1.0, 2.0, 3.0, 0.0]):
        times.record_report(told, 5, 0.0)
        assert times.as_dict() == before


WRONG: list[Any] = [
    [], [1.0], [1.0] * 6, [1.0, 2.0, 3.0, 0.0, -1], [1.0, 2.0, 3.0, 0.0, "1"],
    [-1e-9, 0.0, 0.0, 0.0], [0.0, math.nan, 0.0, 0.0], [0.0, 0.0, math.inf, 0.0],
    [0.0, 0.0, 0.0, -1.0], [True, 0.0, 0.0, 0.0], ["1", 0.0, 0.0, 0.0], [[1.0], 0.0, 0.0, 0.0], [None] * 4,
    [2e9, 0.0, 0.0, 0.0], [1 << 62, 0, 0, 0], {"a": 1}, {1: 2, 3: 4, 5: 6, 7: 8, "x": 1},
]  # fmt: skip


@pytest.mark.parametrize("told", WRONG)
def test_anything_but_four_numbers_of_seconds_is_refused_and_changes_nothing(told: Any) -> None:
    ledger = Ledger(0, 1, "worker:0", Borrowed(runtime(), lambda: True))
    ledger.record_times([1.0, 2.0, 3.0, 0.0])
    before = ledger.counters()
    with pytest.raises(ProtocolError, match="four numbers of seconds"):
        ledger.record_times(told)
    assert ledger.counters() == before


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3)
ANYTHING = st.lists(PLAIN | st.lists(PLAIN, max_size=2) | st.dictionaries(st.integers(), PLAIN, max_size=2), max_size=6)


@given(st.lists(ANYTHING, max_size=20))
@settings(max_examples=200)
def test_whatever_a_peer_sends_the_sums_stay_sound(reports: list[Any]) -> None:
    times = WorkerTimes()
    for step, told in enumerate(reports):
        before = times.sums
        try:
            times.record_report(told, step, 0.1 * step)
        except ProtocolError:
            assert times.sums == before
        assert all(math.isfinite(v) and v >= b for v, b in zip(times.sums, before, strict=True))


GROWTH = st.tuples(st.integers(0, 3), st.floats(0, 2), st.floats(0, 2), st.floats(0, 2), st.floats(0, 2), st.booleans())


@given(st.lists(GROWTH, min_size=1, max_size=120))
@settings(max_examples=100)
def test_sums_never_fall_and_the_last_pieces_are_the_last_steps(growth: list[tuple[Any, ...]]) -> None:
    times, steps, told, waited = WorkerTimes(), 0, [0.0, 0.0, 0.0, 30.0], 0.0
    for more_steps, read, computed, calls, waits, again in growth:
        steps, waited = steps + more_steps, waited + waits
        told = [told[0] + read, told[1] + computed, told[2] + calls, 30.0]
        before = times.sums
        times.record_report(told, steps, waited)
        if again:
            times.record_report(told, steps, waited)
        sums = times.sums
        assert all(now >= then for now, then in zip(sums, before, strict=True))
        assert sums.steps == steps and abs(sums.total_s - sum(told[:3])) < 1e-6
        assert sums.read_s == told[0] and sums.computed_s == told[1]
        pieces = times.as_dict()["recent"]
        assert len(pieces) <= 24 and all(piece[0] > 0 and min(piece) >= 0 for piece in pieces)
        later = pieces[1:]  # one piece less would be too little
        assert sum(p[0] for p in later) < LEAST_STEPS or sum(sum(p[1:]) for p in later) < LEAST_S


def test_fast_steps_come_in_pieces_and_slow_ones_each_on_its_own() -> None:
    fast, slow = WorkerTimes(), WorkerTimes()
    for step in range(1, 1001):
        fast.record_report([0.0, 0.01 * step, 0.0, 0.0], step, 0.0)
        slow.record_report([0.0, 3.0 * step, 0.0, 0.0], step, 0.0)
    found = fast.as_dict()["recent"]
    assert len(found) <= 10 and all(24 <= piece[0] <= 27 for piece in found[:-1])
    assert [piece[0] for piece in slow.as_dict()["recent"]] == [1] * LEAST_STEPS


def test_the_first_step_in_which_programs_compile_is_in_no_piece() -> None:
    times = WorkerTimes()
    times.record_report([0.0, 5.0, 0.0, 0.0], 0, 0.0)
    times.record_report([0.0, 6.0, 9.0, 0.0], 1, 0.0)
    times.record_report([0.0, 7.0, 9.0, 0.0], 2, 0.0)
    assert times.as_dict()["recent"] == [[1, 0.0, 1.0, 0.0, 0.0]]
