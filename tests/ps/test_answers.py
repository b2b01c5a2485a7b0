"""Memory from which looked-up rows are read: kept while it may be read, then used again."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from dps.errors import Unavailable
from dps.messages.sessions import SharedRows
from dps.ps.serving.lookups import LookupMemory
from dps.transport.current import runtime
from dps.transport.tuning import ORDINARY

KEPT = ORDINARY.serving.answers


def give(answers: LookupMemory, number: int, nbytes: int = 100) -> SharedRows | None:
    memory = answers.take_memory(nbytes)
    if memory is None:
        return None
    assert len(memory.array) >= nbytes
    answer = SharedRows(1, number, memory.name)
    answers.record_answer(number, answer, memory)
    return answer


def test_a_request_that_comes_again_is_told_what_it_was_told_before_until_it_is_over() -> None:
    answers = LookupMemory(runtime())
    first = give(answers, 5)
    assert answers.answer_of(5) is first and not answers.is_over(5)
    answers.release_below(6)
    assert answers.answer_of(5) is None and answers.is_over(5) and answers.is_over(4) and not answers.is_over(6)
    answers.release_below(4)  # came late
    assert answers.is_over(5)


def test_memory_is_used_again_when_it_is_read_and_not_before() -> None:
    answers = LookupMemory(runtime())
    first, second = give(answers, 1), give(answers, 2)
    assert first is not None and second is not None and first.memory != second.memory
    answers.release_below(2)
    third = give(answers, 3)
    assert third is not None and third.memory == first.memory


def test_memory_that_is_too_small_is_replaced_and_what_a_session_gets_is_bounded() -> None:
    answers = LookupMemory(runtime())
    first = give(answers, 1)
    answers.release_below(2)
    larger = give(answers, 2, 1 << 20)
    assert first is not None and larger is not None and larger.memory != first.memory
    assert [give(answers, number) is None for number in range(3, 4 + KEPT)] == [False] * (KEPT - 1) + [True] * 2
    assert LookupMemory(runtime()).take_memory(ORDINARY.serving.answers_nbytes + 1) is None


def test_where_nothing_can_be_shared_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(self: object, nbytes: int) -> object:
        raise Unavailable("not to be had")

    monkeypatch.setattr(type(runtime()), "share", none_left)
    assert LookupMemory(runtime()).take_memory(1) is None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from([10, 70_000, 300_000])), max_size=20))
def test_two_answers_that_may_be_read_never_share_memory(asked: list[tuple[int, int]]) -> None:
    answers, open_ = LookupMemory(runtime()), dict[int, list[int]]()
    for number, (lag, nbytes) in enumerate(asked, 1):
        answers.release_below(number - lag + 1)
        open_ = {n: memory for n, memory in open_.items() if n > number - lag}
        answer = give(answers, number, nbytes)
        if answer is not None:
            assert answer.memory not in open_.values()
            open_[number] = answer.memory
    assert all(answers.answer_of(number) is not None for number in open_)
