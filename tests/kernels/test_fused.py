"""Passes that sum and update in one: the bits of the kernels that do one after the other."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dps.kernels import halves
from dps.kernels.passes import passes
from dps.training.optimizers import KNOWN, SGD

RMSPROP = (0.1, 0.9, 0.1, 0.5, 1e-8)
ADAM = (0.002, 0.01, 0.9, 0.1, 0.999, 0.001, 0.5, 1e-8)
CASES = [
    ("sgd", 0, (0.1, 0.0)),
    ("sgd", 0, (0.1, 0.01)),
    ("momentum", 1, (0.1, 0.9, False)),
    ("momentum", 1, (0.1, 0.9, True)),
    ("adagrad", 1, (0.1, 1e-10)),
    ("adam", 2, ADAM),
    ("rmsprop", 1, RMSPROP),
    ("rmsprop", 3, RMSPROP),
    ("ftrl", 2, (0.1, None, 0.3, 0.02, 0.1)),
    ("ftrl", 2, (0.1, 0.4, 0.3, 0.02, 0.1)),
]
HALVES: dict[str, Any] = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def numbers(n: int, seed: int, dtype: Any, offset: int) -> Any:
    """Small numbers in memory that begins `offset` elements behind a line."""
    made = np.random.default_rng(seed).standard_normal(n + offset + 16).astype(dtype)
    begin = -made.ctypes.data % 64 // made.itemsize + offset
    return made[begin : begin + n] if begin + n <= made.size else made[offset : offset + n]


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("dtype", "counts"), [(np.float32, [1, 3]), pytest.param(np.float64, [2, 4], marks=pytest.mark.nightly)]
)  # each count of gradients is a kernel to compile
@pytest.mark.parametrize(("name", "slots", "scalars"), CASES, ids=lambda c: c if isinstance(c, str) else "")
@settings(max_examples=25)
@given(data=st.data(), n=st.integers(0, 100), offset=st.integers(0, 5), in_place=st.booleans())
def test_the_bits_are_those_of_a_mean_and_then_an_update(
    dtype: Any, counts: list[int], name: str, slots: int, scalars: Any, data: Any, n: int, offset: int, in_place: bool
) -> None:
    check_bits(dtype, name, slots, scalars, n, offset, data.draw(st.sampled_from(counts)), in_place)


@pytest.mark.parametrize("pushes", [1, 2, 3, 4])
@pytest.mark.parametrize("in_place", [True, False])
def test_the_bits_of_a_mean_of_up_to_four_gradients(pushes: int, in_place: bool) -> None:
    check_bits(np.float32, *CASES[0], 71, 3, pushes, in_place)


def check_bits(
    dtype: Any, name: str, slots: int, scalars: Any, n: int, offset: int, pushes: int, in_place: bool
) -> None:
    gs = tuple(numbers(n, 10 + k, dtype, offset) for k in range(pushes))
    mean = gs[0]
    for g in gs[1:]:
        mean = mean + g
    if pushes > 1:
        mean = mean / dtype(pushes)
    kept = [np.abs(numbers(n, 20 + k, dtype, offset)) for k in range(slots)]
    numbers_of = [s if s is None or isinstance(s, bool) else dtype(s) for s in scalars]
    kept = [*kept, None, None] if (name, slots) == ("rmsprop", 1) else kept
    w, wanted = numbers(n, 1, dtype, 1), np.empty(n, dtype)
    wanted_slots = [None if slot is None else slot.copy() for slot in kept]
    passes(KNOWN[name].rule).dense(wanted, w, *wanted_slots, mean.astype(dtype), *numbers_of)
    before = w.tobytes()
    out = w if in_place else numbers(n, 2, dtype, offset)
    passes(KNOWN[name].rule).fused(out, w, *kept, gs, dtype(pushes), *numbers_of)
    assert out.tobytes() == wanted.tobytes()
    for slot, wanted_slot in zip(kept, wanted_slots, strict=True):
        assert slot is wanted_slot is None or slot.tobytes() == wanted_slot.tobytes()
    assert in_place or w.tobytes() == before


@pytest.mark.parametrize(("name", "slots", "scalars"), CASES, ids=lambda c: c if isinstance(c, str) else "")
@pytest.mark.parametrize(
    ("half", "n", "pushes"),
    [
        ("bfloat16", 5, 1),
        ("bfloat16", 100, 1),
        *(pytest.param("float16", n, pushes, marks=pytest.mark.nightly) for n, pushes in ((5, 1), (100, 1), (71, 3))),
    ],
)
@pytest.mark.parametrize("in_place", [True, False])
def test_halves_are_updated_as_their_float32_numbers_and_rounded_once(
    half: str, name: str, slots: int, scalars: Any, n: int, pushes: int, in_place: bool
) -> None:
    dtype = HALVES[half]
    w, *gs = (np.random.default_rng(k).standard_normal(n + 3).astype(dtype)[3:] for k in range(1 + pushes))
    kept: list[Any] = [np.abs(numbers(n, 20 + k, np.float32, 0)) for k in range(slots)]
    kept = [*kept, None, None] if (name, slots) == ("rmsprop", 1) else kept
    wanted_slots = [None if slot is None else slot.copy() for slot in kept]
    numbers_of = [s if s is None or isinstance(s, bool) else np.float32(s) for s in scalars]
    wide, wide_gs = w.astype(np.float32), tuple(g.astype(np.float32) for g in gs)
    passes(KNOWN[name].rule).fused(wide, wide, *wanted_slots, wide_gs, np.float32(pushes), *numbers_of)
    out = w if in_place else np.empty(n + 3, dtype)[3:]
    given = [halves.bits_in(a) for a in (out, w, *gs)]
    passes(KNOWN[name].rule).fused(given[0], given[1], *kept, tuple(given[2:]), np.float32(pushes), *numbers_of)
    with np.errstate(over="ignore"):  # where a variance of 0 is divided by
        assert out.tobytes() == wide.astype(dtype).tobytes()
    for slot, wanted_slot in zip(kept, wanted_slots, strict=True):
        assert slot is wanted_slot is None or slot.tobytes() == wanted_slot.tobytes()


def test_memory_that_is_not_aligned_to_its_elements_is_written_all_the_same() -> None:
    raw = bytearray(4 * 101)
    out, w, g = np.frombuffer(raw, np.float32, 100, offset=1), np.ones(100, np.float32), np.ones(100, np.float32)
    passes(SGD.rule).fused(out, w, (g,), np.float32(1), np.float32(0.5), np.float32(0))
    assert out.tolist() == [0.5] * 100
