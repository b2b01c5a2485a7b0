"""What is said of an uneven plan: only what was computed to mend it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dps.cluster.placement import Greedy, RoundRobin
from dps.cluster.setter import WARN_ABOVE, WORTH_NBYTES, advice, spread

MB = 1 << 18
"""Elements of float32."""
Sizes = Sequence[tuple[int, ...]]


def said(shapes: Sizes, n: int) -> str | None:
    """Of a plan in turn, as it is by default."""
    variables = [(f"v{i}", shape, "float32") for i, shape in enumerate(shapes)]
    place = RoundRobin(n)
    for variable in variables:
        place(*variable)
    return advice(variables, dict(enumerate(place.loads)))


def test_a_mended_placement_is_named_with_what_it_would_be() -> None:
    assert said([(2 * MB,), (4,), (2 * MB,), (4,)], 2) == (
        "ps:0 holds 2.00 times the mean of all ps; with placement=dps.placement.Greedy(2) it would be 1.00 times"
    )


def test_one_large_variable_is_cut_and_greedy_alone_which_would_not_help_is_not_named() -> None:
    split = "partitioner=dps.partition.MinSize(min_bytes=262144, max_shards=2)"
    shapes = [(784, 1280), (1280,), (1280, 10), (10,)]
    assert said(shapes, 2) == f"ps:0 holds 2.00 times the mean of all ps; with {split} it would be 1.01 times"
    variables = [(f"v{i}", shape, "float32") for i, shape in enumerate(shapes)]
    assert spread(variables, Greedy(2), None, 2) > 1.9


def test_both_are_named_where_only_both_mend_it() -> None:
    text = said([(8 * MB,), (4,), *[(60_000,), (4,)] * 16], 2)
    assert text is not None and "Greedy(2) and partitioner=dps.partition.MinSize(" in text


@pytest.mark.parametrize("shapes", [[(1, 4 * MB)], [(1, 4 * MB), (4,), (1, MB)]])
def test_what_nothing_mends_is_left_to_the_table(shapes: Sizes) -> None:
    assert said(shapes, 2) is None


def test_small_models_and_even_plans_need_no_advice() -> None:
    assert said([(MB // 2,), (4,), (MB // 2 - 9,), (4,)], 2) is None
    assert said([(MB,), (MB,)], 2) is None
    assert said([(4 * MB,)], 1) is None
    assert advice([], {}) is None
    assert WORTH_NBYTES == 1 << 20 and WARN_ABOVE == 1.25
