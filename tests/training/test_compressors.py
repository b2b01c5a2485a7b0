"""Compressors as settings: what they accept, what they say, and which one a variable gets."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from dps.errors import ConfigError
from dps.training import compression as compress
from dps.training.compression import Bfloat16, Compressor, Float16, Int8, RandomK, TopK


@pytest.mark.parametrize("compressor", [Float16(), Bfloat16(), Int8(), Int8(feedback=False), TopK(0.5), RandomK(1, 7)])
def test_a_compressor_is_the_same_after_the_wire(compressor: Compressor) -> None:
    assert compress.from_wire(compressor.to_wire()) == compressor


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TopK(0), "TopK: fraction is 0.0, it must be above 0 and at most 1; try fraction=0.01"),
        (lambda: TopK(1.5), "TopK: fraction is 1.5, it must be above 0"),
        (lambda: RandomK(float("nan")), "RandomK: fraction is nan, it must be finite"),
        (lambda: TopK("1%"), "TopK: fraction is '1%' of type str, it must be a number"),  # type: ignore[arg-type]
        (lambda: TopK(), "TopK: missing a required argument: 'fraction'"),  # type: ignore[call-arg]
        (lambda: RandomK(0.1, seed=0.5), "RandomK: seed is 0.5, it must be a whole number"),  # type: ignore[arg-type]
        (lambda: Int8(feedback=1), "Int8: feedback is 1, it must be True or False"),  # type: ignore[arg-type]
        (lambda: Float16(bits=8), "Float16: got bits, which it does not take"),  # type: ignore[call-arg]
        (lambda: compress.rules(Int8, "compression"), "compression: got the class Int8, wanted None or one of Float16"),
        (lambda: compress.rules("int8", "compression"), "compression: got 'int8', wanted"),
        (lambda: compress.rules({"w": 3}, "compression"), "compression['w']: got 3, wanted None or one of"),
        (lambda: compress.rules({3: None}, "compression"), "compression: got the key 3, wanted a pattern of names"),
        (
            lambda: compress.rules(TopK(0.1), "pull_compression", pulls=True),
            "pull_compression: got TopK(fraction=0.1), wanted None or Float16() or Bfloat16()",
        ),
        (
            lambda: compress.check_names(compress.rules({"x/*": Int8()}, "compression"), ["w", "b"], "compression"),
            "compression: 'x/*' matches no variable; there are w, b",
        ),
    ],
)
def test_bad_settings_are_one_line(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(words)}") as caught:
        make()
    assert "\n" not in str(caught.value)


def test_what_came_over_the_wire_is_checked_too() -> None:
    with pytest.raises(ValueError, match="compressor: the name is 'zip', it must be a known one"):
        compress.from_wire({"name": "zip"})
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        compress.from_wire({"name": "top_k", "fraction": 7})


def test_the_first_pattern_that_matches_counts_and_none_leaves_a_variable_alone() -> None:
    rules = compress.rules({"*/b": None, "hidden/*": TopK(0.1), "*": Int8()}, "compression")
    found = {name: compress.chosen(rules, name) for name in ("hidden/b", "hidden/w", "out/w", "B")}
    assert found == {"hidden/b": None, "hidden/w": TopK(0.1), "out/w": Int8(), "B": Int8()}
    assert compress.chosen(compress.rules({"w": Int8()}, "compression"), "b") is None
    assert compress.chosen(compress.rules(None, "compression"), "w") is None


def test_a_share_is_rounded_up_and_never_less_than_one_element_nor_more_than_all() -> None:
    assert [TopK(0.1).count(n) for n in (1, 10, 11, 100)] == [1, 1, 2, 10]
    assert RandomK(1.0).count(7) == 7


def test_a_share_that_is_a_whole_number_of_elements_is_not_rounded_up_to_one_more() -> None:
    """0.07 * 100 is 7.000000000000001 in float64, and 8 elements were sent."""
    assert TopK(0.07).count(100) == 7 and RandomK(0.55).count(100) == 55
    assert TopK(0.0700001).count(100) == 8 and TopK(0.070000001).count(10**9) == 70_000_001
    for size in range(1, 300):
        assert [TopK(k / size).count(size) for k in range(1, size + 1)] == list(range(1, size + 1))
