"""Threads that share a pass: every element once, who helps when, errors, and an end."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from dps.process.config import AUTO
from dps.ps.store import thread_pool as pools
from dps.ps.store.thread_pool import ThreadPool, pool_of
from dps.transport.tuning import StoreTuning

COME_S = 10
ONE = StoreTuning(pool_grain=1)
"""Elements are pieces."""


def nobody() -> int:
    return 0


@pytest.mark.parametrize("free", [None, nobody, lambda: 1, lambda: -3, lambda: 100])
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("size", [0, 1, 2, 50, 1001])
def test_every_element_is_in_one_piece(threads: int, size: int, free: Callable[[], int] | None) -> None:
    pool, done = ThreadPool(threads, free=free, tuning=ONE), list[int]()
    for least in (1, 3, 7):
        done.clear()
        assert pool.share_pass(size, least, lambda start, stop: done.extend(range(start, stop)) is None)
        assert sorted(done) == list(range(size))
    pool.close()


def test_pieces_begin_where_cache_lines_do() -> None:
    pool, starts = ThreadPool(3, tuning=StoreTuning(pool_grain=16)), list[int]()
    assert pool.share_pass(1000, 5, lambda start, stop: starts.append(start) is None)
    assert len(starts) > 3 and all(start % 16 == 0 for start in starts)
    pool.close()


@pytest.mark.parametrize("free", [None, lambda: 1])
def test_two_threads_work_at_the_same_time(free: Callable[[], int] | None) -> None:
    pool, both = ThreadPool(2, free=free, tuning=ONE), threading.Barrier(2)
    pieces = itertools.count()
    assert pool.share_pass(8, 1, lambda start, stop: next(pieces) > 1 or both.wait(COME_S) >= 0)
    pool.close()


def test_pieces_get_smaller_while_somebody_helps_and_larger_while_nobody_does() -> None:
    pool, sizes = ThreadPool(2, free=nobody, tuning=ONE), list[int]()
    assert pool.share_pass(100, 1, lambda start, stop: sizes.append(stop - start) is None)
    assert sizes == [4, 12, 32, 32, 20]  # 4 of the smallest, then three times what is done, but at most 32
    sizes.clear()
    helped = ThreadPool(2, free=lambda: 1, tuning=ONE)
    helped._start = lambda: None  # type: ignore[method-assign]  # it is called and does not come
    assert helped.share_pass(100, 8, lambda start, stop: sizes.append(stop - start) is None)
    assert sizes == [25, 18, 14, 10, 8, 8, 8, 8, 1]  # a quarter of what is left, but at least 8


def test_a_pass_is_not_held_up_by_a_helper_that_never_gets_to_run() -> None:
    pool, mine = ThreadPool(2, free=lambda: 1, tuning=ONE), set[int]()
    pool._start = lambda: None  # type: ignore[method-assign]
    for _ in range(3):
        assert pool.share_pass(100, 1, lambda start, stop: mine.add(threading.get_ident()) is None)
    assert mine == {threading.get_ident()}
    assert pool._orders.qsize() == 1  # nobody is called again who has not come yet


def test_no_helper_is_woken_where_no_core_is_free() -> None:
    pool = ThreadPool(4, free=nobody, tuning=ONE)
    assert pool.share_pass(10_000, 1, lambda start, stop: True)
    assert pool.share_pass(16, 1, lambda start, stop: (start, stop) == (0, 16))  # in one piece
    assert pool._helpers == [] and pool._orders.empty()


def test_a_helper_comes_as_soon_as_a_core_is_free() -> None:
    asked = itertools.count()
    pool, both = ThreadPool(2, free=lambda: int(next(asked) >= 2)), threading.Barrier(2)
    pieces = itertools.count()
    assert pool.share_pass(1000, 1, lambda start, stop: next(pieces) not in (2, 3) or both.wait(COME_S) >= 0)
    pool.close()


def test_a_helper_goes_when_others_wait_for_a_core() -> None:
    caller, said = threading.get_ident(), {"free": 1}
    worked: dict[bool, int] = {True: 0, False: 0}
    came = threading.Event()

    def work(start: int, stop: int) -> bool:
        mine = threading.get_ident() == caller
        worked[mine] += 1
        if mine:
            assert came.wait(COME_S)
        else:
            said["free"] = -1  # somebody else wants to run
            came.set()
        return True

    pool = ThreadPool(2, free=lambda: said["free"], tuning=ONE)
    assert pool.share_pass(1000, 1, work)
    assert worked[False] == 2 and worked[True] >= 2
    pool.close()


def test_as_many_are_called_as_cores_are_free() -> None:
    pool, meeting = ThreadPool(4, free=lambda: 2, tuning=ONE), threading.Barrier(3)
    pieces = itertools.count()
    assert pool.share_pass(1000, 100, lambda start, stop: next(pieces) > 2 or meeting.wait(COME_S) >= 0)
    pool.close()


@pytest.mark.parametrize("free", [None, nobody, lambda: 1])
def test_a_piece_that_is_not_good_spoils_the_pass_and_the_rest_is_worked_on(free: Callable[[], int] | None) -> None:
    pool, done = ThreadPool(2, free=free, tuning=ONE), list[int]()

    def work(start: int, stop: int) -> bool:
        done.extend(range(start, stop))
        return not start <= 40 < stop

    assert not pool.share_pass(90, 1, work)
    assert sorted(done) == list(range(90))
    assert pool.share_pass(3, 1, lambda start, stop: True)
    pool.close()


@pytest.mark.parametrize("free", [None, nobody, lambda: 1])
def test_what_a_piece_raises_comes_out_when_all_have_ended(free: Callable[[], int] | None) -> None:
    pool, done = ThreadPool(2, free=free, tuning=ONE), list[int]()

    def work(start: int, stop: int) -> bool:
        done.extend(range(start, stop))
        if start <= 40 < stop:
            raise ValueError("element 40")
        return True

    with pytest.raises(ValueError, match="element 40"):
        pool.share_pass(90, 1, work)
    assert sorted(done) == list(range(90))
    pool.close()


def test_helpers_go_when_the_pool_closes() -> None:
    pool = ThreadPool(3, tuning=ONE)
    pool.share_pass(8, 1, lambda start, stop: True)
    helpers = list(pool._helpers)
    assert len(helpers) == 2
    pool.close()
    for helper in helpers:
        helper.join(timeout=COME_S)
        assert not helper.is_alive()


@pytest.mark.parametrize(("cores", "count", "threads"), [(2, nobody, 2), (64, nobody, 4), (64, None, 1)])
def test_auto_takes_a_few_cores_and_none_if_free_cores_cannot_be_counted(
    cores: int, count: Callable[[], int] | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "cores", lambda: cores)
    monkeypatch.setattr(pools, "free_cores", lambda: count)
    pool = pool_of(AUTO)
    assert (1 if pool is None else pool.threads) == threads


def test_one_thread_and_auto_on_one_core_have_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "cores", lambda: 1)
    assert pool_of(1) is None and pool_of(AUTO) is None
