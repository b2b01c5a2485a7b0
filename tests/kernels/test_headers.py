"""What arrays say of themselves, read all at once, beside what they say when they are asked."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dps.kernels import headers
from dps.kernels.headers import Headers, are_like, described, lay

F4 = np.dtype(np.float32)


def some(count: int = 3) -> list[Any]:
    return [np.full((2, 3), i, F4) for i in range(count)]


def like(arrays: list[Any], shape: tuple[int, ...] = (2, 3), dtype: np.dtype[Any] = F4) -> bool:
    return are_like(arrays, described([dtype] * 3, [shape] * 3))


def test_arrays_of_this_python_and_this_numpy_can_be_read() -> None:
    assert headers.readable()


def test_arrays_are_known_by_dtype_and_shape() -> None:
    assert like(some())
    assert not like(some(2)), "one is missing"
    assert not like(some(), (3, 2)) and not like(some(), (6,)) and not like(some(), (2, 3, 1))
    assert not like(some(), dtype=np.dtype(np.int32))
    shapes = [(), (0,), (1, 2, 3, 4, 5)]
    assert are_like([np.zeros(shape) for shape in shapes], described([np.dtype(float)] * 3, shapes))


class Own(np.ndarray[Any, Any]):
    """An array that does as it likes."""


@pytest.mark.parametrize(
    "other",
    [
        np.zeros((3, 2), F4).T, np.zeros((2, 6), F4)[:, ::2], np.zeros((2, 3), F4).view(Own), None, 1.0, [[0.0] * 3],
        np.zeros((2, 3), ">f4"), np.zeros(25, np.uint8)[1:].view(F4).reshape(2, 3),
    ],
)  # fmt: skip
def test_what_is_not_a_plain_array_is_like_none(other: Any) -> None:
    assert not like([*some(2), other])


def test_of_more_dimensions_than_are_read_nothing_is_said() -> None:
    shape = (1,) * (headers.DIMS + 1)
    assert not are_like([np.zeros(shape, F4)], described([F4], [shape]))
    assert not Headers([np.zeros(shape, F4)]).known
    assert not lay([np.zeros(shape, F4)], np.zeros(1, F4))


HOLDS: list[Callable[[Any], Any]] = [
    lambda a: a, lambda a: [a], lambda a: a.view(), memoryview, lambda a: a[1:], lambda a: a.T, lambda a: a.flat,
    np.ascontiguousarray, weakref.ref, lambda a: weakref.finalize(a, print),
]  # fmt: skip


@pytest.mark.parametrize("hold", HOLDS)
def test_whoever_has_an_array_is_seen(hold: Callable[[Any], Any]) -> None:
    arrays = some()
    told = Headers(arrays)
    assert told.unchanged()
    held = hold(arrays[1])
    assert not told.unchanged()
    if isinstance(held, weakref.finalize):
        held.detach()
    del held
    assert told.unchanged()


def reshaped(array: Any) -> None:
    array.shape = (3, 2)


def retyped(array: Any) -> None:
    array.dtype = np.int32


def frozen(array: Any) -> None:
    array.flags.writeable = False


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("change", [reshaped, retyped, frozen])
def test_an_array_that_was_made_another_is_seen(change: Callable[[Any], None]) -> None:
    arrays = some()
    told = Headers(arrays)
    change(arrays[2])
    assert not told.unchanged()


def test_arrays_are_laid_one_after_the_other() -> None:
    arrays, out = [*some(), np.array(7, F4), np.zeros(0, F4), np.arange(3, dtype=F4)], np.full(22, -1, F4)
    assert lay(arrays, out)
    np.testing.assert_array_equal(out, np.concatenate([array.reshape(-1) for array in arrays]))


@pytest.mark.parametrize("arrays", [some(), some(5), [*some(3), np.zeros((6, 2), F4)[:, 0]], [*some(3), None]])
def test_what_does_not_fit_is_not_laid(arrays: list[Any]) -> None:
    memory = np.full(30, -1, F4)
    assert not lay(arrays, memory[:24])
    assert (memory[24:] == -1).all(), "nothing was written beyond the end"


def test_where_arrays_cannot_be_read_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "readable", lambda: False)
    assert not like(some()) and not lay(some(), np.zeros(18, F4))
    assert not Headers(some()).known and not Headers(some()).unchanged()


def test_other_pythons_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "byteorder", "big")
    headers.readable.cache_clear()
    assert not headers.readable()
    monkeypatch.undo()
    headers.readable.cache_clear()
    assert headers.readable()
