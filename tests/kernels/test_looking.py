"""The look for NaN and infinity: one bad number anywhere, seen by one thread, or by either of two that meet."""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dps.kernels import halves, looking

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
SIZE = 3 * looking.BLOCK + 41  # the last block is not whole


def given(dtype: Any, bad: dict[int, float] | None = None) -> Any:
    a = np.ones(SIZE, dtype)
    for position, number in (bad or {}).items():
        a[position] = number
    return halves.bits_in(a)


def looked_by_the_other(a: Any, shared: Any, blocks: int) -> None:
    """As if the other thread had come so far: `finite_from_back` ends where the front has been."""
    shared[looking.FRONT] = -(-SIZE // looking.BLOCK) - blocks
    looking.finite_from_back(a, shared)
    shared[looking.FRONT] = 0


@DTYPES
@pytest.mark.parametrize("position", [0, 1, 63, SIZE // 4, SIZE // 2 + 1, 3 * looking.BLOCK, SIZE - 1])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_number_is_found_whoever_looks_at_it(dtype: Any, position: int, bad: float) -> None:
    a = given(dtype, {position: bad})
    assert not looking.all_finite(a)
    for blocks in range(5):
        shared = looking.meeting(a)
        looked_by_the_other(a, shared, blocks)
        assert shared[looking.BACK] == 4 - blocks
        assert not looking.finite_from_front(a, shared)


@DTYPES
def test_finite_numbers_are_finite_whoever_looks_at_them(dtype: Any) -> None:
    a = given(dtype, {5: 60000.0, 6: -1e-7})
    assert looking.all_finite(a) and looking.all_finite(a[:0])
    for blocks in range(5):
        shared = looking.meeting(a)
        looked_by_the_other(a, shared, blocks)
        assert looking.finite_from_front(a, shared)
        assert shared[looking.FRONT] == 4 - blocks


def test_without_the_other_thread_one_looks_at_all_and_a_late_one_at_nothing() -> None:
    a = given(np.float32)
    shared = looking.meeting(a)
    assert looking.finite_from_front(a, shared)
    a[-1] = np.nan
    looking.finite_from_back(a, shared)
    assert (shared[looking.FRONT], shared[looking.BACK], shared[looking.BAD]) == (4, 4, 0)


def test_two_threads_meet_somewhere_and_agree() -> None:
    for position in (None, 0, SIZE // 2, SIZE - 1):
        a = given(np.float32, {} if position is None else {position: np.nan})
        for _ in range(20):
            shared = looking.meeting(a)
            other = threading.Thread(target=looking.finite_from_back, args=(a, shared))
            other.start()
            assert looking.finite_from_front(a, shared) is (position is None)
            other.join(timeout=10)
            assert shared[looking.BACK] <= shared[looking.FRONT] + 1


def test_no_elements_are_finite() -> None:
    none = np.empty(0, np.float32)
    assert looking.finite_from_front(none, looking.meeting(none))
