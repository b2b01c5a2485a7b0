"""What changed between two versions: by hand, there and back, and changes that somebody made up."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from dps.errors import ProtocolError
from dps.variables.deltas import difference, patch
from dps.variables.packed import PackedLayout
from dps.variables.plan import VariableSpec, make_plan
from tests.variables.models import SGD

LAYOUT = make_plan(
    [VariableSpec("w", (130,), "<f4", SGD), VariableSpec("h", (5, 13), "<f4", SGD),
     VariableSpec("n", (3,), "<i8", None), VariableSpec("e", (0, 2), "<f8", SGD)],
    (0,), lambda *_: 0, None,
).layouts[0]  # fmt: skip
PACKED = PackedLayout(LAYOUT, [], [["float16", [1]]])
SMALL = PackedLayout(LAYOUT, [0], [])


def test_changes_by_hand() -> None:
    """130 numbers in blocks of 64, 64 and 2: 1 and 63 of the first have changed, and the last of all."""
    before = np.zeros(SMALL.nbytes, np.uint8)
    now = before.copy()
    now[: 130 * 4].view("<f4")[[1, 63, 129]] = [1, 2, 3]
    changes = difference(SMALL, before, now)
    assert changes is not None
    assert bytes(changes).hex() == "05020000000000008002000000000000000000803f0000004000004040"


def test_nothing_changed_is_a_bit_for_each_block() -> None:
    run = np.zeros(SMALL.nbytes, np.uint8)
    assert bytes(difference(SMALL, run, run.copy())) == b"\0"  # type: ignore[arg-type]


def test_where_nearly_all_changed_everything_is_sent() -> None:
    assert difference(SMALL, np.zeros(SMALL.nbytes, np.uint8), np.ones(SMALL.nbytes, np.uint8)) is None


@settings(max_examples=100)
@given(st.integers(0, 2**32 - 1), st.floats(0, 0.4))
def test_one_version_and_its_changes_are_the_next(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    before = rng.integers(0, 256, PACKED.nbytes).astype(np.uint8)
    touched = rng.random(PACKED.nbytes // 8) < share
    now = before.copy()
    now.view(np.uint64)[touched] ^= np.uint64(1)
    for _, _, offset, nbytes in PACKED.entries:  # what lies between the entries does not count
        end = -(-nbytes // 8) * 8
        now[offset + nbytes : offset + end] = before[offset + nbytes : offset + end]
    changes = difference(PACKED, before, now)
    if changes is None:
        assert share > 0.1
        return
    patch(PACKED, before, changes)
    np.testing.assert_array_equal(before, now)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ("", "end too soon"),
        ("01", "end too soon"),
        ("010100000000000000000000", "end too soon"),
        ("0000", "are 1 too long"),
        ("04040000000000000000000000", "name numbers that are not there"),
    ],
)
def test_changes_that_do_not_fit_are_refused(changes: str, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        patch(SMALL, np.zeros(SMALL.nbytes, np.uint8), np.frombuffer(bytes.fromhex(changes), np.uint8))


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_any_bytes_change_numbers_inside_or_are_refused(changes: bytes) -> None:
    around = np.zeros(SMALL.nbytes + 512, np.uint8)
    run: Any = around[256 : 256 + SMALL.nbytes]
    try:
        patch(SMALL, run, np.frombuffer(changes, np.uint8))
    except ProtocolError:
        pass
    assert not around[:256].any() and not around[256 + SMALL.nbytes :].any()
