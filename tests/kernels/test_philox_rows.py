"""First values of rows by their keys: their bits, and that nothing but the key decides them."""

from __future__ import annotations

import hashlib
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import dps
from dps.kernels.first_values import FirstValues, key_of
from dps.kernels.philox_rows import fill_block
from tests.kernels.test_philox import philox_words

KEYS = np.array([0, -1, (1 << 63) - 1, -(1 << 63), 5], np.int64)
INITS = [dps.init.Normal(0.5, seed=1), dps.init.TruncatedNormal(2.0, 1.0, seed=2), dps.init.Uniform(-1, 1, seed=3)]
DTYPES = ["float32", "float64", "float16"]
FROZEN = [
    "780c740df9514777", "26cea9745832848c", "91c5642547dfd71c", "2b6e85bb4421b4eb", "439c879dbca25cfc",
    "23cf00ce3839f4b1", "fa16026a6ab74a48", "412089e0f4d82d5d", "854cff64279fe924",
]  # fmt: skip
"""The first bytes of SHA-256 of the rows of `KEYS`, 6 elements each, of a table "t", for each initializer and dtype."""


def rows_of(init: dps.init.Initializer, keys: Any, dim: int = 6, dtype: str = "float32") -> Any:
    out = np.empty((len(keys), dim), dtype)
    FirstValues(init, "t", (1, dim), dtype).fill_rows(out, np.arange(len(keys)), np.asarray(keys, np.int64))
    return out


def test_the_bits_of_first_values_are_part_of_the_promise() -> None:
    found = [rows_of(init, KEYS, dtype=dtype) for init in INITS for dtype in DTYPES]
    assert [hashlib.sha256(rows.tobytes()).hexdigest()[:16] for rows in found] == FROZEN


@pytest.mark.parametrize("key", KEYS.tolist())
def test_the_words_of_a_block_are_those_of_philox_at_the_key(key: int) -> None:
    word0, word1 = key_of(7, "t")
    words = np.zeros(6, np.uint32)
    fill_block(words, 1, np.int64(key), 3, word0, word1)
    unsigned = key % (1 << 64)
    counter = unsigned & 0xFFFFFFFF, unsigned >> 32, 3, 1
    assert tuple(words[1:5].tolist()) == philox_words(counter, (int(word0), int(word1)))


@given(
    keys=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=40, unique=True),
    dim=st.integers(1, 70), dtype=st.sampled_from(DTYPES), init=st.sampled_from([*INITS, dps.init.Constant(2)]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_row_does_not_depend_on_the_others_or_on_its_place(keys: list[int], dim: int, dtype: str, init: Any) -> None:
    together = rows_of(init, keys, dim, dtype)
    for place in {0, len(keys) // 2, len(keys) - 1}:
        assert np.array_equal(rows_of(init, [keys[place]], dim, dtype)[0], together[place])
    shuffled = np.random.default_rng(0).permutation(len(keys))
    out = np.zeros((len(keys) + 3, dim), dtype)
    FirstValues(init, "t", (1, dim), dtype).fill_rows(out, shuffled + 3, np.array(keys, np.int64))
    assert np.array_equal(out[shuffled + 3], together) and not out[:3].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_rows_have_the_mean_and_the_spread_of_their_distribution(dtype: str) -> None:
    rows = rows_of(dps.init.Normal(0.5, mean=1.0), np.arange(-40_000, 40_000), 5, dtype).astype(np.float64)
    assert rows.mean() == pytest.approx(1.0, abs=0.004) and rows.std() == pytest.approx(0.5, abs=0.004)
    assert np.abs(np.corrcoef(rows.T) - np.eye(5)).max() < 0.02
    assert abs(np.corrcoef(rows[1:, 0], rows[:-1, 0])[0, 1]) < 0.02
    if dtype != "float16":
        assert len(np.unique(rows[:, 0])) > 79_000


def test_a_longer_row_begins_as_a_shorter_one_and_other_names_and_seeds_differ() -> None:
    init = INITS[0]
    assert np.array_equal(rows_of(init, KEYS, 6), rows_of(init, KEYS, 9)[:, :6])
    other = np.empty((5, 6), np.float32)
    FirstValues(init, "u", (1, 6), "float32").fill_rows(other, np.arange(5), KEYS)
    assert not np.isin(other, rows_of(init, KEYS)).any()
    assert not np.isin(rows_of(dps.init.Normal(0.5, seed=2), KEYS), rows_of(init, KEYS)).any()
