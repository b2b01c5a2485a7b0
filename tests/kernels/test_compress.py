"""Casts, eight bits, the largest few and a random few: values by hand, and rules for any numbers."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as arrays

from dps.kernels import compress as kernels

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def flats(dtype: Any = np.float32, most: int = 40) -> st.SearchStrategy[Any]:
    elements = FLOATS if dtype == np.float32 else st.floats(-1e30, 1e30)
    return arrays.arrays(dtype, st.integers(1, most), elements=elements)


def halved(a: Any, form: str) -> Any:
    bits = np.empty(len(a), np.uint16)
    (kernels.to_float16 if form == "float16" else kernels.to_bfloat16)(bits, a)
    return bits


def restored(bits: Any, form: str) -> Any:
    out = np.empty(len(bits), np.float32)
    (kernels.from_float16 if form == "float16" else kernels.from_bfloat16)(out, bits)
    return out


# -- casts ----------------------------------------------------------------------------------------------------


def test_halves_by_hand() -> None:
    numbers = np.array([0, -0.0, 1, -2, 1 + 2**-11, 1 + 3 * 2**-11, 65504, 65519, 1e9, -1e9, 2**-24, 2**-25, 3e-8])
    wanted = [0, 0x8000, 0x3C00, 0xC000, 0x3C00, 0x3C02, 0x7BFF, 0x7BFF, 0x7BFF, 0xFBFF, 1, 0, 1]
    assert halved(numbers.astype(np.float32), "float16").tolist() == wanted


def test_upper_halves_by_hand() -> None:
    numbers = np.array([0, -0.0, 1, -2, 1 + 2**-8, 1 + 3 * 2**-8, np.finfo(np.float32).max, 2.0**-149], np.float32)
    assert halved(numbers, "bfloat16").tolist() == [0, 0x8000, 0x3F80, 0xC000, 0x3F80, 0x3F82, 0x7F7F, 0]


@pytest.mark.parametrize("form", ["float16", "bfloat16"])
def test_what_is_no_number_stays_so_and_every_half_comes_back_as_it_went(form: str) -> None:
    odd = restored(halved(np.array([np.inf, -np.inf, np.nan], np.float32), form), form)
    assert odd[0] == np.inf and odd[1] == -np.inf and np.isnan(odd[2])
    every = np.arange(1 << 16).astype(np.uint16)
    numbers = restored(every, form)
    dtype = np.float16 if form == "float16" else ml_dtypes.bfloat16
    np.testing.assert_array_equal(numbers, every.view(dtype).astype(np.float32))
    finite = np.isfinite(numbers)
    np.testing.assert_array_equal(halved(numbers, form)[finite], every[finite])


@pytest.mark.parametrize(("form", "most"), [("float16", 65504.0), ("bfloat16", float(2**127 * (2 - 2**-7)))])
def test_float64_beyond_float32_becomes_the_largest_half_and_what_is_infinite_stays_so(form: str, most: float) -> None:
    """It became infinite."""
    large = np.array([3.5e38, -1e39, 1.7e308, np.inf, -np.inf, np.nan, 1.0])
    assert str(restored(halved(large, form), form).tolist()) == str([most, -most, most, np.inf, -np.inf, np.nan, 1.0])


@settings(max_examples=200)
@given(st.one_of(flats(), arrays.arrays(np.float64, st.integers(1, 40), elements=st.floats())))
def test_casts_of_finite_numbers_are_finite_and_no_others(a: Any) -> None:
    for form in ("float16", "bfloat16"):
        assert np.isfinite(restored(halved(a, form), form)).tolist() == np.isfinite(a).tolist()


@settings(max_examples=200)
@given(flats())
def test_casts_round_to_nearest_as_others_do_and_finite_stays_finite(a: Any) -> None:
    with np.errstate(over="ignore"):
        half, upper = a.astype(np.float16), a.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(
        halved(a, "float16"), np.clip(np.nan_to_num(half, posinf=65504, neginf=-65504), -65504, 65504).view(np.uint16)
    )
    inside = np.isfinite(upper.astype(np.float32))
    np.testing.assert_array_equal(halved(a, "bfloat16")[inside], upper.view(np.uint16)[inside])
    assert np.isfinite(restored(halved(a, "bfloat16"), "bfloat16")).all()


# -- eight bits -----------------------------------------------------------------------------------------------


def words(a: Any) -> Any:
    return a.view(np.uint32 if a.itemsize == 4 else np.uint64)


def quantised(a: Any, rest: bool = False) -> tuple[Any, Any]:
    q, scales = np.empty(len(a), np.int8), np.empty(-(-len(a) // kernels.BLOCK), a.dtype)
    assert kernels.quantise(q, scales, a, words(a), rest)
    return q, scales


def test_eight_bits_by_hand() -> None:
    a = np.array([127, -127, 63.5, 64.5, 0.25, -0.75, 0], np.float32)  # the scale is 1; ties go to even
    q, scales = quantised(a.copy())
    assert scales.tolist() == [1] and q.tolist() == [127, -127, 64, 64, 0, -1, 0]
    quantised(a, rest=True)
    assert a.tolist() == [0, 0, -0.5, 0.5, 0.25, 0.25, 0]


def test_a_block_has_a_scale_of_its_own_and_a_part_may_begin_inside_one() -> None:
    a = np.concatenate([np.full(1024, 254.0), np.full(1024, -12.7), np.zeros(5)])
    q, scales = quantised(a)
    np.testing.assert_allclose(scales, [2, 0.1, 0])
    assert q.tolist() == [127] * 1024 + [-127] * 1024 + [0] * 5
    out = np.empty(30)
    kernels.dequantise(out, q[1010:1040], scales, 1010)
    np.testing.assert_allclose(out, [254] * 14 + [-12.7] * 16)


@settings(max_examples=150)
@given(st.one_of(flats(), flats(np.float64)))
def test_eight_bits_are_off_by_half_a_step_at_most_and_the_rest_is_just_that(a: Any) -> None:
    rest, out = a.copy(), np.empty_like(a)
    q, scales = np.empty(len(a), np.int8), np.empty(1, a.dtype)
    with np.errstate(over="ignore"):
        largest = np.abs(a).max() / 127 * 127
    if not kernels.quantise(q, scales, rest, words(rest), True):
        assert not np.isfinite(largest * (1 + 1e-6)) or largest > 3.4e38
        return
    kernels.dequantise(out, q, scales, 0)
    tiny = 64 * np.finfo(a.dtype).smallest_subnormal
    assert (np.abs(a - out) <= scales[0] * a.dtype.type(0.5001) + tiny).all()
    np.testing.assert_array_equal(rest, a - out)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_eight_bits_of_what_is_no_number_are_refused(bad: float) -> None:
    a = np.array([1, bad, 2], np.float32)
    assert not kernels.quantise(np.empty(3, np.int8), np.empty(1, np.float32), a, words(a), False)


# -- a few elements -------------------------------------------------------------------------------------------


def test_positions_follow_from_the_key_alone_by_hand() -> None:
    """SplitMix64's first outputs for the seed 0, as published with it; each drawn modulo its stretch."""
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    stretches = [(0, 4), (4, 3), (7, 3)]  # 10 elements in 3
    wanted = [start + number % size for number, (start, size) in zip(published, stretches, strict=True)]
    assert kernels.random_positions(0, 10, 3, 0, 10).tolist() == wanted


@settings(max_examples=200)
@given(st.integers(0, 2**63 - 1), st.integers(1, 60), st.data())
def test_random_positions_are_distinct_rise_and_are_the_same_from_any_range(key: int, n: int, data: Any) -> None:
    k = data.draw(st.integers(1, n))
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=3)))
    whole = kernels.random_positions(key, n, k, 0, n).tolist()
    assert len(whole) == k and whole == sorted(set(whole)) and whole[-1] < n
    edges = [0, *cuts, n]
    pieces = [[start + p for p in kernels.random_positions(key, n, k, start, stop)] for start, stop in
              itertools.pairwise(edges)]  # fmt: skip
    assert [p for piece in pieces for p in piece] == whole


def test_over_many_keys_every_element_has_its_chance() -> None:
    counts = np.zeros(10)
    for key in range(3000):
        counts[kernels.random_positions(key, 10, 3, 0, 10)] += 1
    np.testing.assert_allclose(counts / 3000, [1 / 4] * 4 + [1 / 3] * 6, atol=0.04)


@pytest.mark.parametrize(
    ("positions", "fits"), [([], True), ([0, 3, 9], True), ([0, 3, 10], False), ([3, 3], False), ([4, 3], False)]
)
def test_positions_have_to_rise_and_to_be_inside(positions: list[int], fits: bool) -> None:
    assert kernels.rise_below(np.array(positions, np.uint32), 10) == fits
