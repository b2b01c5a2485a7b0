"""Threads that share a pass: every piece once, errors, and an end."""

from __future__ import annotations

import threading

import pytest

from dps.ps.crew import Crew


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("pieces", [0, 1, 2, 50])
def test_every_piece_is_worked_on_once(threads: int, pieces: int) -> None:
    crew, done = Crew(threads), set[int]()
    assert crew.share(pieces, lambda k: k not in done and not done.add(k))  # type: ignore[func-returns-value]
    assert sorted(done) == list(range(pieces))
    crew.close()


def test_two_threads_work_at_the_same_time() -> None:
    crew, both = Crew(2), threading.Barrier(2)
    assert crew.share(2, lambda k: both.wait(timeout=10) >= 0)
    crew.close()


def test_one_piece_that_is_not_good_spoils_the_pass_and_the_rest_is_worked_on() -> None:
    crew, done = Crew(2), list[int]()
    assert not crew.share(9, lambda k: done.append(k) is None and k != 4)  # type: ignore[func-returns-value]
    assert len(done) == 9
    assert crew.share(3, lambda k: True)
    crew.close()


def test_what_a_piece_raises_comes_out_when_all_have_ended() -> None:
    crew, done = Crew(2), list[int]()

    def work(k: int) -> bool:
        done.append(k)
        if k == 1:
            raise ValueError("piece 1")
        return True

    with pytest.raises(ValueError, match="piece 1"):
        crew.share(6, work)
    assert sorted(done) == list(range(6))
    crew.close()


def test_work_beside_is_done_by_a_helper_and_nobody_waits_for_it() -> None:
    crew, asked, ended = Crew(2, waits=False), threading.Event(), threading.Event()

    def work() -> None:
        asked.wait(timeout=10)
        ended.set()

    crew.beside(work)
    assert not ended.is_set()
    asked.set()
    assert ended.wait(timeout=10)
    crew.close()


def test_a_helper_that_is_behind_is_not_given_more_and_more() -> None:
    crew, begun, asked, done = Crew(2, waits=False), threading.Event(), threading.Event(), list[int]()
    crew.beside(lambda: (begun.set(), asked.wait(timeout=10)))
    assert begun.wait(timeout=10)
    for number in range(5):
        crew.beside(lambda number=number: done.append(number))  # type: ignore[misc]
    asked.set()
    (helper,) = crew._helpers
    crew.close()
    helper.join(timeout=10)
    assert done == [0]


def test_helpers_go_when_the_crew_closes() -> None:
    crew = Crew(3)
    crew.share(8, lambda k: True)
    helpers = list(crew._helpers)
    assert len(helpers) == 2
    crew.close()
    for helper in helpers:
        helper.join(timeout=10)
        assert not helper.is_alive()
