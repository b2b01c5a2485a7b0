"""Changes between published versions: bit-equal after the patch, short where few numbers changed, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dps.errors import ProtocolError
from dps.variables.packed import PackedLayout
from dps.variables.plan import VariableSpec, make_plan
from dps.variables.sparse_changes import difference, patch
from tests.variables.models import SGD

SPECS = [
    VariableSpec("a", (700,), "<f4", SGD),
    VariableSpec("b", (3,), "<f8", SGD),
    VariableSpec("c", (0, 2), "<f4", SGD),
]


def packed(specs: list[VariableSpec] = SPECS) -> PackedLayout:
    return PackedLayout(make_plan(specs, (0,), lambda *_: 0, None).layouts[0], [], [["bfloat16", [0]]])


@given(st.binary(min_size=1, max_size=8), st.lists(st.integers(0, 1439), max_size=80))
def test_a_patch_makes_exactly_the_later_version(seed: bytes, places: list[int]) -> None:
    layout = packed()
    before = np.random.default_rng(list(seed)).integers(0, 256, layout.nbytes, np.uint8)
    now = before.copy()
    for place in places:
        now[place % layout.nbytes] ^= 1 + place % 255
    changes = difference(layout, before, now)
    run = before.copy()
    patch(layout, run, changes)
    covered = np.concatenate([run[o : o + n] for _, _, o, n in layout.entries])
    np.testing.assert_array_equal(covered, np.concatenate([now[o : o + n] for _, _, o, n in layout.entries]))


@given(st.binary(max_size=64))
def test_bytes_that_are_no_changes_are_refused(data: bytes) -> None:
    layout, run = packed(), np.zeros(packed().nbytes, np.uint8)
    made = difference(layout, run, np.ones(layout.nbytes, np.uint8))
    for changes in (np.frombuffer(data, np.uint8), np.concatenate([made[: len(data)], np.frombuffer(data, np.uint8)])):
        try:
            patch(layout, run.copy(), changes)
        except ProtocolError:
            continue


@pytest.mark.parametrize("cut", [1, 9, -1])
def test_changes_that_end_too_soon_or_are_too_long_are_refused(cut: int) -> None:
    layout = packed()
    before = np.zeros(layout.nbytes, np.uint8)
    made = difference(layout, before, np.ones(layout.nbytes, np.uint8))
    with pytest.raises(ProtocolError):
        patch(layout, before.copy(), made[:cut])
    with pytest.raises(ProtocolError, match="are 1 too long"):
        patch(layout, before.copy(), np.append(made, np.uint8(0)))


def test_one_in_a_hundred_of_four_million_takes_at_most_130_kb() -> None:
    n, rng = 4_000_000, np.random.default_rng(7)
    layout = packed([VariableSpec("a", (n,), "<f4", SGD)])
    before: Any = rng.integers(0, 1 << 16, n, np.uint16)
    now = before.copy()
    now[rng.choice(n, n // 100, replace=False)] ^= 1
    changes = difference(layout, before.view(np.uint8), now.view(np.uint8))
    assert len(changes) <= 130_000
    run = before.view(np.uint8).copy()
    patch(layout, run, changes)
    np.testing.assert_array_equal(run, now.view(np.uint8))
