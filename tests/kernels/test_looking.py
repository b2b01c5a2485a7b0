"""The check for NaN and infinity: one bad number is found anywhere."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dps.kernels import halves, looking

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
SIZE = (1 << 12) + 41


def given(dtype: Any, bad: dict[int, float] | None = None) -> Any:
    a = np.ones(SIZE, dtype)
    for position, number in (bad or {}).items():
        a[position] = number
    return halves.bits_in(a)


@DTYPES
@pytest.mark.parametrize("position", [0, 1, 63, SIZE // 4, SIZE // 2 + 1, SIZE - 42, SIZE - 1])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_number_is_found(dtype: Any, position: int, bad: float) -> None:
    assert not looking.all_finite(given(dtype, {position: bad}))


@DTYPES
def test_finite_numbers_are_finite(dtype: Any) -> None:
    a = given(dtype, {5: 60000.0, 6: -1e-7})
    assert looking.all_finite(a) and looking.all_finite(a[:0])
