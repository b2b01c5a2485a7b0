"""Counts of pushes that the step ps does not get: told one number at a time, taken once."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dps.errors import ProtocolError
from dps.ps.modes.counting import StepCounts


def test_a_ps_tells_one_number_at_a_time_and_the_next_one_where_more_have_come() -> None:
    counts = StepCounts()
    assert [counts.count_push() for _ in range(3)] == [True, False, False]
    assert not counts.record_told(3, 10) and counts.heard == 10
    assert counts.count_push() and not counts.count_push()
    assert counts.record_told(4, 12)  # the fifth came meanwhile
    assert not counts.record_told(5, 11) and counts.heard == 12


def test_a_number_that_comes_twice_or_late_is_taken_once() -> None:
    step_ps = StepCounts()
    assert [step_ps.take_counted(1, n) for n in (2, 2, 5, 3, 5)] == [2, 0, 3, 0, 0]
    assert step_ps.take_counted(2, 1) == 1 and step_ps.taken == 6
    with pytest.raises(ProtocolError, match="ps:1 counts -1 pushes; wanted a number from 0 on"):
        step_ps.take_counted(1, -1)
    assert step_ps.taken == 6


@given(st.lists(st.sampled_from(["push", "send", "answer", "again"]), max_size=60))
def test_however_messages_are_lost_and_doubled_the_step_ps_has_no_more_than_was_counted_and_all_in_the_end(
    events: list[str],
) -> None:
    ps, step_ps, due, sent = StepCounts(), StepCounts(), False, list[int]()
    for event in events:
        if event == "push":
            due |= ps.count_push()
        elif event == "send" and due:
            sent.append(ps.counted)
        elif event == "again" and sent:
            step_ps.take_counted(1, sent[0])
        elif event == "answer" and due and sent:
            step_ps.take_counted(1, sent[-1])
            due = ps.record_told(sent[-1], step_ps.taken)
            sent.clear()
        assert step_ps.taken <= ps.counted
        assert due or step_ps.taken == ps.counted
