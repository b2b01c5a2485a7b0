"""Kernels on CPU: bits against numpy where one rounding decides, the same bits in place and out of place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dps.kernels import cpu
from dps.training.optimizers import SGD, Adagrad

F = np.float32
sgd, adagrad = cpu.passes(SGD.rule).dense, cpu.passes(Adagrad.rule).dense
DTYPES = [np.float32, np.float64]


def numbers(n, seed, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(n).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 5, 1000])
def test_sgd_has_the_bits_of_numpy(n, dtype):
    w, g, lr = numbers(n, 1, dtype), numbers(n, 2, dtype), dtype(0.1)
    expected = w - lr * g
    sgd(w, w, g, lr, dtype(0))
    assert w.dtype == dtype
    assert w.tobytes() == expected.tobytes()


def test_sgd_with_weight_decay_has_the_bits_of_numpy():
    w, g = numbers(777, 1), numbers(777, 2)
    expected = w - F(0.1) * (g + F(0.01) * w)
    sgd(w, w, g, F(0.1), F(0.01))
    assert w.tobytes() == expected.tobytes()


def test_sgd_without_weight_decay_keeps_an_infinite_weight_infinite():
    w = np.array([np.inf], F)
    sgd(w, w, np.ones(1, F), F(0.1), F(0))
    assert w[0] == np.inf


def test_adagrad_has_the_bits_of_numpy():
    w, g, a = numbers(777, 1), numbers(777, 2), np.full(777, 0.1, F)
    after = a + g * g
    expected = w - F(0.1) * g / (np.sqrt(after) + F(1e-10))
    adagrad(w, w, a, g, F(0.1), F(1e-10))
    assert w.tobytes() == expected.tobytes()
    assert a.tobytes() == after.tobytes()


def test_arrays_at_unaligned_addresses_give_the_same_bits():
    raw = bytearray(4 * 101)
    w, g = np.frombuffer(raw, F, 100, offset=1), numbers(100, 2)
    w[:] = numbers(100, 1)
    sgd(w, w, g, F(0.1), F(0))
    assert w.tobytes() == (numbers(100, 1) - F(0.1) * g).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("kernel", "rule"),
    [
        (lambda out, a, b: cpu.add(out, a, b), lambda a, b: a + b),
        (lambda out, a, b: cpu.add_divide(out, a, b, a.dtype.type(3)), lambda a, b: (a + b) / a.dtype.type(3)),
    ],
    ids=["add", "add_divide"],
)
def test_an_elementwise_kernel_has_the_bits_of_numpy_in_place_and_not(kernel, rule, dtype):
    a, b = numbers(1001, 1, dtype), numbers(1001, 2, dtype)
    expected, before, out = rule(a, b), a.copy(), np.full(1001, np.nan, dtype)
    kernel(out, a, b)
    assert out.tobytes() == expected.tobytes()
    assert a.tobytes() == before.tobytes()
    kernel(a, a, b)
    assert a.tobytes() == expected.tobytes()


def test_a_running_sum_divided_is_the_mean():
    total = np.zeros(4, F)
    for worker in range(3):
        cpu.add(total, total, np.full(4, worker, F))
    cpu.add_divide(total, total, np.full(4, 3, F), F(4))
    assert total.tolist() == [1.5] * 4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_one_bad_number_anywhere_is_found(bad, dtype):
    for n in (1, 15, 16, 17, 1000):
        for position in {0, n // 2, n - 1}:
            values = numbers(n, n, dtype)
            assert cpu.all_finite(values)
            values[position] = bad
            assert not cpu.all_finite(values)


def test_the_largest_and_smallest_numbers_are_finite_and_so_is_nothing():
    limits = np.finfo(F)
    assert cpu.all_finite(np.array([limits.max, limits.min, limits.tiny, limits.smallest_subnormal, 0, -0.0], F))
    assert cpu.all_finite(np.empty(0, F))


def test_rows_out_of_range_are_found_at_either_end():
    assert cpu.rows_in_range(np.array([0, 9, 3]), 10)
    assert not cpu.rows_in_range(np.array([0, 10, 3]), 10)
    assert not cpu.rows_in_range(np.array([0, 3, -1]), 10)
    assert not cpu.rows_in_range(np.array([np.iinfo(np.int64).min]), 10)
    assert not cpu.rows_in_range(np.array([0]), 0)
    assert cpu.rows_in_range(np.empty(0, np.int64), 0)


def test_gather_reads_the_named_rows_in_their_order():
    table = np.arange(400, dtype=F).reshape(100, 4)
    rows = np.array([99, 0, 7, 7, 42, 3, 1, 98])
    out = np.empty((8, 4), F)
    cpu.gather(table, rows, out)
    assert out.tobytes() == table[rows].tobytes()


def test_gather_reads_rows_wider_than_what_is_prefetched():
    table = np.arange(9000, dtype=np.float64).reshape(9, 1000)
    rows = np.array([8, 0, 1, 2, 3, 4, 5, 6, 7])
    out = np.empty((9, 1000))
    cpu.gather(table, rows, out)
    assert out.tobytes() == table[rows].tobytes()


def test_values_of_one_row_are_summed_in_order_of_occurrence():
    # 1e8 + 1 - 1e8 is 0 in float32 and 1e8 - 1e8 + 1 is 1: the order shows.
    rows, sums, counts = cpu.sum_duplicate_rows(
        np.array([5, 2, 5, 2, 5, 2]), np.array([[1e8], [1e8], [1], [-1e8], [-1e8], [1]], F)
    )
    assert rows.tolist() == [2, 5]
    assert sums.tolist() == [[1.0], [0.0]]
    assert counts.tolist() == [3, 3]
    assert (rows.dtype, sums.dtype, counts.dtype) == (np.int64, np.float32, np.int64)


def test_rows_that_rise_already_come_back_uncopied():
    indices, values = np.array([1, 4, 9]), numbers(6, 1).reshape(3, 2)
    rows, sums, counts = cpu.sum_duplicate_rows(indices, values)
    assert rows is indices
    assert sums is values
    assert counts.tolist() == [1, 1, 1]


def test_no_rows_sum_to_no_rows():
    rows, sums, counts = cpu.sum_duplicate_rows(np.empty(0, np.int64), np.empty((0, 3), F))
    assert (rows.size, sums.shape, counts.size) == (0, (0, 3), 0)


@pytest.mark.parametrize("offset", [0, 2**62, -50], ids=["small", "too large to pack", "negative"])
@settings(max_examples=60, deadline=None)
@given(indices=st.lists(st.integers(0, 30), max_size=60))
def test_duplicates_are_summed_as_a_dictionary_would(offset, indices):
    values = numbers(2 * len(indices), 3).reshape(-1, 2)
    expected: dict[int, list[np.ndarray]] = {}
    for index, value in zip(indices, values, strict=True):
        expected.setdefault(index + offset, []).append(value)
    rows, sums, counts = cpu.sum_duplicate_rows(np.array(indices, np.int64) + offset, values)
    assert rows.tolist() == sorted(expected)
    assert counts.tolist() == [len(expected[row]) for row in sorted(expected)]
    for row, total in zip(rows.tolist(), sums, strict=True):
        by_hand = expected[row][0].copy()
        for value in expected[row][1:]:
            by_hand += value
        assert total.tobytes() == by_hand.tobytes()
