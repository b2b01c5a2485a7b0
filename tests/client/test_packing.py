"""A variable's gradient packed into the bytes of its parts, and out of these again on the ps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from dps.client import packing
from dps.cluster.partition import split_rows
from dps.ps.intake.parts import unpack
from dps.variables.packed import PackedGradient
from dps.variables.plan import Part

Pack = Callable[[Any, tuple[Part, ...]], PackedGradient | None]
PACKS: dict[str, Pack] = {
    "float16": lambda a, parts: packing.cast("float16", a, parts),
    "bfloat16": lambda a, parts: packing.cast("bfloat16", a, parts),
    "int8": lambda a, parts: packing.quantised(a, parts, rest=True),
    "top_k": lambda a, parts: packing.largest(a, parts, max(1, len(a) // 3)),
    "random_k": lambda a, parts: packing.some(a, parts, max(1, len(a) // 3), key=99),
}


def parts_of(shape: tuple[int, ...], count: int) -> tuple[Part, ...]:
    found, row0 = [], 0
    for index, rows in enumerate(split_rows(shape[0], count)):
        found.append(Part(index, 0, f"w/part_{index}", (rows, *shape[1:]), row0, index % 2))
        row0 += rows
    return tuple(found)


def there_and_back(pack: Pack, a: Any, parts: tuple[Part, ...]) -> Any:
    packed = pack(a, parts)
    assert packed is not None and sorted(packed.parts) == [part.index for part in parts]
    return np.concatenate([unpack(packed.parts[p.index].form, p, a.dtype, packed.parts[p.index].data) for p in parts])


@settings(max_examples=40)
@given(st.integers(1, 9), st.integers(1, 400), st.sampled_from(["f4", "f8"]), st.integers(0, 2**32 - 1), st.data())
@pytest.mark.parametrize("name", PACKS)
def test_the_bits_do_not_depend_on_the_number_of_parts(
    name: str, rows: int, dim: int, dtype: str, seed: int, data: Any
) -> None:
    a = np.random.default_rng(seed).normal(size=(rows, dim)).astype(dtype)
    count = data.draw(st.integers(1, rows))
    whole, cut = a.reshape(-1).copy(), a.reshape(-1).copy()
    found = there_and_back(PACKS[name], whole, parts_of(a.shape, 1))
    np.testing.assert_array_equal(there_and_back(PACKS[name], cut, parts_of(a.shape, count)), found)
    np.testing.assert_array_equal(whole, cut)
    if name in ("top_k", "random_k"):
        np.testing.assert_array_equal(found.reshape(-1) + whole, a.reshape(-1))
    elif name == "int8":
        np.testing.assert_allclose(found.reshape(-1) + whole, a.reshape(-1), rtol=1e-6, atol=1e-7)


@settings(max_examples=60)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=30), st.data())
def test_the_largest_are_taken_and_of_equals_the_first(numbers: list[int], data: Any) -> None:
    k = data.draw(st.integers(1, len(numbers)))
    a = np.array(numbers, np.float32)
    order = sorted(range(len(numbers)), key=lambda i: (-abs(numbers[i]), i))[:k]
    wanted = np.zeros_like(a)
    wanted[order] = a[order]
    packed = packing.largest(a, parts_of((len(a),), 1), k)
    assert packed is not None and packed.nbytes == 8 * k
    data_bytes = packed.parts[0].data
    assert data_bytes[: 4 * k].view("<u4").tolist() == sorted(order)
    np.testing.assert_array_equal(data_bytes[4 * k :].view("<f4"), wanted[sorted(order)])


def test_the_layout_of_the_bytes_by_hand() -> None:
    (part,) = parts_of((4,), 1)
    a = np.array([0, 254, -2, 1], np.float32)
    assert bytes(PACKS["bfloat16"](a, (part,)).parts[0].data).hex() == "00007e4300c0803f"  # type: ignore[union-attr]
    assert bytes(PACKS["float16"](a, (part,)).parts[0].data).hex() == "0000f05b00c0003c"  # type: ignore[union-attr]
    eight = PACKS["int8"](a.copy(), (part,)).parts[0]  # type: ignore[union-attr]
    assert bytes(eight.data).hex() == "00000040007fff00" and eight.form == ["int8"]  # 1/2 goes to even
    top = packing.largest(a.copy(), (part,), 2).parts[0]  # type: ignore[union-attr]
    assert bytes(top.data).hex() == "010000000200000000007e43000000c0" and top.form == ["top_k"]
    some = packing.some(a.copy(), (part,), 4, key=5).parts[0]  # type: ignore[union-attr]
    assert bytes(some.data) == a.tobytes() and some.form == ["random_k", 5, 4, 4]


@pytest.mark.parametrize("name", ["int8", "top_k", "random_k"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_is_not_packed(name: str, bad: float) -> None:
    a = np.array([1, bad, 3], np.float32)
    before = a.copy()
    assert PACKS[name](a, parts_of((3,), 1)) is None
    np.testing.assert_array_equal(a, before)
