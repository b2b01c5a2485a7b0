"""Halves as float32 and back: every half by its definition, and every kind of rounding by hand."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numba import njit

from dps.kernels import halves, widening

DTYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
NAMES = pytest.mark.parametrize("name", list(DTYPES))
EVERY = np.arange(1 << 16, dtype=np.uint16)
INF, NAN = np.inf, np.nan


def widen(name: str, bits: Any) -> Any:
    out = np.empty(len(bits), np.float32)
    halves.WIDEN[name](out, bits)
    return out


def narrow(name: str, *numbers: float) -> list[int]:
    a = np.array(numbers, np.float32)
    bits = np.empty(len(a), np.uint16)
    halves.NARROW[name](bits, a)
    return [int(b) for b in bits]


def by_definition(bits: int, exponent_bits: int, mantissa_bits: int) -> float:
    """IEEE 754: sign, biased exponent, mantissa with a hidden one unless the exponent is 0."""
    bias, top = (1 << (exponent_bits - 1)) - 1, (1 << exponent_bits) - 1
    sign = -1.0 if bits >> 15 else 1.0
    exponent, mantissa = bits >> mantissa_bits & top, bits & ((1 << mantissa_bits) - 1)
    if exponent == top:
        return sign * NAN if mantissa else sign * INF
    if exponent == 0:
        return float(sign * mantissa * 2.0 ** (1 - bias - mantissa_bits))
    return float(sign * (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias))


@NAMES
def test_every_half_is_the_number_of_its_definition(name: str) -> None:
    widths = (5, 10) if name == "float16" else (8, 7)
    wanted = np.array([by_definition(int(bits), *widths) for bits in EVERY[::7]], np.float32)
    np.testing.assert_array_equal(widen(name, EVERY[::7].copy()), wanted)
    assert np.signbit(widen(name, np.array([0x8000], np.uint16))[0])


@NAMES
def test_every_half_comes_back_with_its_bits(name: str) -> None:
    wide = widen(name, EVERY)
    numbers = ~np.isnan(wide)
    assert narrow(name, *wide[numbers]) == EVERY[numbers].tolist()
    assert np.isnan(np.array(narrow(name, *wide[~numbers]), np.uint16).view(DTYPES[name]).astype(np.float32)).all()


def test_float16_is_rounded_to_nearest_and_ties_to_even() -> None:
    one, step = 0x3C00, 2.0**-10
    assert narrow("float16", 1, 1 + step / 2, 1 + step * 0.501, 1 + 1.5 * step, -1 - 1.5 * step) == [
        one, one, one + 1, one + 2, 0x8000 | one + 2,
    ]  # fmt: skip
    least = 2.0**-24
    assert narrow("float16", least / 2, least * 0.6, 1.5 * least, 2.5 * least, 1e-30, -0.0) == [0, 1, 2, 2, 0, 0x8000]
    assert narrow("float16", 65504, 65519, 65520, 1e30, -70000, INF) == [
        0x7BFF, 0x7BFF, 0x7C00, 0x7C00, 0xFC00, 0x7C00,
    ]  # fmt: skip


def test_bfloat16_is_rounded_to_nearest_and_ties_to_even() -> None:
    one, step = 0x3F80, 2.0**-7
    assert narrow("bfloat16", 1, 1 + step / 2, 1 + step * 0.501, 1 + 1.5 * step, -1 - 1.5 * step) == [
        one, one, one + 1, one + 2, 0x8000 | one + 2,
    ]  # fmt: skip
    assert narrow("bfloat16", 3.3895314e38, 3.4028235e38, -INF, -0.0) == [0x7F7F, 0x7F80, 0xFF80, 0x8000]


@NAMES
def test_numbers_between_halves_go_where_numpy_puts_them(name: str) -> None:
    draw = np.random.default_rng(3)
    a = draw.integers(0, 1 << 32, 20_000, dtype=np.uint32).view(np.float32)
    a = np.concatenate([a[~np.isnan(a)], draw.normal(size=20_000).astype(np.float32) * np.float32(2.0**-14)])
    with np.errstate(over="ignore", under="ignore"):
        assert narrow(name, *a) == a.astype(DTYPES[name]).view(np.uint16).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("converts", [True, False])
def test_processors_without_halves_of_their_own_give_the_same_bits(
    converts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if converts and not widening.converts_float16():
        pytest.skip("this processor has none")
    monkeypatch.setattr(widening, "converts_float16", lambda: converts)
    widen, narrow = njit(halves._widen.py_func), njit(halves._narrow.py_func)  # not those in the cache
    numbers, back = np.empty(len(EVERY), np.float32), np.empty(len(EVERY), np.int16)
    with np.errstate(invalid="ignore"):
        wanted = EVERY.view(np.float16).astype(np.float32)
    finite = ~np.isnan(wanted)
    for lanes in (slice(None), slice(0, 65521)):  # with and without elements that no vector has
        widen(numbers[lanes], EVERY.view(np.int16)[lanes])
        assert numbers[lanes][finite[lanes]].tobytes() == wanted[lanes][finite[lanes]].tobytes()
        assert np.isnan(numbers[lanes][~finite[lanes]]).all()
    draw = np.random.default_rng(4)
    a = draw.integers(0, 1 << 32, len(EVERY), dtype=np.uint32).view(np.float32)
    a[::2] = draw.normal(size=len(a[::2])) * 2.0**-14
    narrow(back, a)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        wanted_bits = a.astype(np.float16).view(np.int16)
    nan = np.isnan(a)
    wanted_bits[nan] = np.where(np.signbit(a[nan]), 0xFE00, 0x7E00).astype(np.uint16).view(np.int16)
    assert back.tobytes() == wanted_bits.tobytes()


@NAMES
def test_one_bad_number_among_many_is_found(name: str) -> None:
    a = np.ones(1000, DTYPES[name])
    a[7], a[8] = np.finfo(np.float16).max if name == "float16" else 3.3895314e38, -1e-7
    assert halves.all_finite(a)
    assert halves.all_finite(a[:0])
    for bad in (INF, -INF, NAN):
        a[999] = bad
        assert not halves.all_finite(a)


def test_other_dtypes_are_not_widened() -> None:
    a = np.ones(3)
    assert halves.widened(a) is a
    assert halves.widened(np.ones((2, 3), np.float16)).dtype == np.float32
    read_only = np.frombuffer(bytes([0x80, 0x3F] * 4), ml_dtypes.bfloat16).reshape(2, 2)
    assert halves.widened(read_only).tolist() == [[1, 1], [1, 1]]
