from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import DTypeLike

from dps.cluster.placement import Greedy, Random, RoundRobin, checked_task, describe, imbalance, nbytes
from dps.errors import PlacementError


def test_bytes_are_elements_times_item_size() -> None:
    assert nbytes("w", (10, 3), "float32") == 120
    assert nbytes("w", (10, 3), np.float64) == 240
    assert nbytes("w", (), "int8") == 1
    assert nbytes("w", (0, 5), "float32") == 0
    assert nbytes("w", (4,), "bfloat16") == 8


@pytest.mark.parametrize("dtype", ["string", str, "S3", "U7", object])
def test_a_string_item_counts_sixteen_bytes(dtype: DTypeLike) -> None:
    assert nbytes("w", (3,), dtype) == 48


def test_round_robin_takes_the_tasks_in_turn_whatever_the_size() -> None:
    place = RoundRobin(3)
    sizes = [100, 1, 1, 50, 2]
    assert [place(f"v{i}", (size,), "int8") for i, size in enumerate(sizes)] == [0, 1, 2, 0, 1]
    assert place.loads == [150, 3, 1]


def test_two_round_robins_count_apart() -> None:
    one, other = RoundRobin(2), RoundRobin(2)
    assert [one("a", (), "int8"), other("a", (), "int8"), one("b", (), "int8")] == [0, 0, 1]


def test_greedy_takes_the_least_loaded_task_and_the_lowest_among_equals() -> None:
    place = Greedy(3)
    # loads: 000 -> 500 -> 530 -> 534 -> 564 -> 566 -> 666
    assert [place("v", (size,), "int8") for size in (5, 3, 4, 3, 2, 1)] == [0, 1, 2, 1, 2, 0]
    assert place.loads == [6, 6, 6]


def test_greedy_weighs_by_the_users_load() -> None:
    place = Greedy(2, load=lambda name, shape, dtype: 0.5 if name == "light" else 2)
    assert [place(name, (1,), "int8") for name in ("heavy", "light", "light", "heavy", "light")] == [0, 1, 1, 1, 0]
    assert place.loads == [2.5, 3]


@pytest.mark.parametrize("load", [-1, math.nan, math.inf, None, "3"])
def test_greedy_refuses_a_load_that_weighs_nothing_sensible(load: object) -> None:
    place = Greedy(2, load=lambda name, shape, dtype: load)  # type: ignore[arg-type]
    with pytest.raises(PlacementError, match=r"load of 'w': got .*wanted a finite number from 0"):
        place("w", (), "int8")


def test_random_depends_on_name_and_seed_only() -> None:
    names = [f"layer{i}/w" for i in range(8)]
    alone = [Random(5, seed=7)(name, (4,), "float32") for name in names]
    together = Random(5, seed=7)
    assert [together(name, (1,), "int8") for name in reversed(names)] == alone[::-1]
    assert sum(together.loads) == 8
    assert [Random(5, seed=8)(name, (4,), "float32") for name in names] != alone


def test_random_gives_what_it_gave_in_earlier_releases() -> None:
    # printf '7:w0' | b2sum -l 64 and so on, modulo 5
    assert [Random(5, seed=7)(f"w{i}", (), "int8") for i in range(6)] == [1, 0, 0, 1, 3, 3]


def test_random_uses_every_task_about_equally() -> None:
    place = Random(4, seed=0)
    for i in range(4000):
        place(f"v{i}", (), "int8")
    assert all(850 < load < 1150 for load in place.loads)  # 1000 each, 5 sigma = 137


@pytest.mark.parametrize("n", [0, -1, 1.5, True, None])
def test_a_policy_needs_at_least_one_task(n: object) -> None:
    for policy in (RoundRobin, Greedy, lambda n: Random(n, seed=0)):
        with pytest.raises(ValueError, match="wanted a whole number from 1"):
            policy(n)  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [-1, 2, 0.0, "0", None, True])
def test_a_policy_that_answers_nonsense_is_refused(answer: object) -> None:
    def policy(name: str, shape: Sequence[int], dtype: DTypeLike) -> int:
        return answer  # type: ignore[return-value]

    with pytest.raises(PlacementError, match=r"placement of 'w': got .*wanted a ps task from 0 to 1"):
        checked_task(policy, 2, "w", (), "int8")


def test_a_policy_may_answer_with_a_numpy_integer() -> None:
    def policy(name: str, shape: Sequence[int], dtype: DTypeLike) -> int:
        return np.int64(1)  # type: ignore[return-value]

    assert checked_task(policy, 2, "w", (), "int8") == 1


def test_imbalance_is_max_over_mean() -> None:
    assert imbalance({0: 300, 1: 100}) == 1.5
    assert imbalance({0: 100, 3: 100}) == 1.0
    assert imbalance({0: 0, 1: 0}) == imbalance({}) == 1.0


def test_the_plan_is_a_short_table() -> None:
    assert describe({1: 1000, 0: 1250, 2: 750}).splitlines() == [
        "  ps               bytes   share",
        "   0               1,250   41.7%",
        "   1               1,000   33.3%",
        "   2                 750   25.0%",
        "max over mean 1.25",
    ]


def test_with_several_ps_the_table_has_what_a_step_moves_over_the_link_of_each() -> None:
    rows = {"emb": 128, "more": 4, "a": 8, "b": 8}
    assert describe({0: 3000, 1: 1000}, {0: (1000, 3000), 1: (1000, 1000)}, rows).splitlines() == [
        "  ps               bytes   share          a step: in                 out",
        "   0               3,000   75.0%               1,000               3,000",
        "   1               1,000   25.0%               1,000               1,000",
        "and the rows that a step names, in and out: 128 bytes for each of emb, 4 bytes for each of more, 8 bytes for "
        "each of a, and 1 more tables",
        "max over mean 1.50",
    ]
    assert describe({0: 3000}, {0: (1000, 3000)}, rows) == describe({0: 3000})


def test_a_plan_without_bytes_is_even() -> None:
    assert describe({0: 0}).splitlines()[1:] == ["   0                   0    0.0%", "max over mean 1.00"]


sizes = st.lists(st.integers(0, 1000), max_size=40)


@given(st.integers(1, 8), sizes)
def test_greedy_is_never_further_above_the_mean_than_the_largest_variable_allows(n: int, elements: list[int]) -> None:
    place = Greedy(n)
    tasks = [place(f"v{i}", (count,), "int8") for i, count in enumerate(elements)]
    assert place.loads == [sum(c for c, t in zip(elements, tasks, strict=True) if t == task) for task in range(n)]
    # Graham 1966, list scheduling: max <= mean + (1 - 1/n) largest
    bound = Fraction(sum(elements), n) + (1 - Fraction(1, n)) * max(elements, default=0)
    assert max(place.loads) <= bound


@given(st.integers(1, 8), sizes)
def test_round_robin_gives_every_task_as_many_variables_give_or_take_one(n: int, elements: list[int]) -> None:
    place = RoundRobin(n)
    tasks = [place("v", (count,), "int8") for count in elements]
    assert tasks == [i % n for i in range(len(elements))]
    assert sum(place.loads) == sum(elements)
