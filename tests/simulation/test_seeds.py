"""Every promise, in every update mode, under faults, with as many seeds as `tests.seeds` says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.seeds import FIRST, counts, cut
from tests.simulation.scenario import (
    Scenario,
    crowded,
    run,
    scenario,
    spoilt,
    varied,
    varied_with_kills,
    with_a_forger,
    with_a_killed_chief,
    with_a_lost_ps,
)

SEEDS, QUICK = counts()
CHUNK = 25
FEW, QUICK_FEW = max(SEEDS // 10, 4), max(QUICK // 10, 2)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", cut(SEEDS, QUICK, CHUNK))
@pytest.mark.parametrize("mode", ["async", "at once", "sync", "steps", "bounded"])
def test_no_promise_is_broken_under_faults(mode: str, seeds: range) -> None:
    for seed in seeds:
        found = run(scenario(mode, seed))
        assert not found, "\n".join(found)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", cut(max(SEEDS // 5, 10), max(QUICK // 5, 10), CHUNK))
def test_no_promise_is_broken_where_tokens_are_queued(seeds: range) -> None:
    for seed in seeds:
        found = run(scenario("tokens", seed))
        assert not found, "\n".join(found)


@pytest.mark.timeout(600)
def test_no_promise_is_broken_where_pushes_are_applied_while_another_one_arrives() -> None:
    for seed in range(FIRST, FIRST + max(SEEDS // 20, 5)):
        found = run(crowded(seed))
        assert not found, "\n".join(found)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["async", "sync", "bounded"])
def test_no_promise_is_broken_where_a_ps_holds_no_variables(mode: str) -> None:
    for seed in range(FIRST, FIRST + max(SEEDS // 10, 10)):
        chosen = scenario(mode, seed)
        if chosen.ps > 1:
            found = run(chosen, variables=chosen.ps - 1 - seed % (chosen.ps - 1))
            assert not found, "\n".join(found)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", cut(max(SEEDS // 20, 3), max(QUICK // 20, 3), CHUNK))
@pytest.mark.parametrize("mode", ["async", "at once", "sync", "steps", "bounded"])
def test_no_promise_is_broken_where_a_stranger_claims_to_be_each_of_the_others(mode: str, seeds: range) -> None:
    for seed in seeds:
        found = run(with_a_forger(mode, seed))
        assert not found, "\n".join(found)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["async", "at once", "sync", "steps", "bounded"])
@pytest.mark.parametrize("of", [with_a_killed_chief, with_a_lost_ps, varied_with_kills])
@pytest.mark.parametrize("seeds", cut(FEW, QUICK_FEW, QUICK_FEW))
def test_no_promise_is_broken_where_a_chief_or_a_ps_is_killed(
    seeds: range, of: Callable[[str, int], Scenario], mode: str
) -> None:
    for seed in seeds:
        found = run(of(mode, seed))
        assert not found, "\n".join(found)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", cut(2 * FEW, 2 * QUICK_FEW, CHUNK))
@pytest.mark.parametrize("mode", ["async", "at once", "sync", "steps", "bounded", "tokens"])
def test_no_promise_is_broken_whatever_optimizer_dtype_gradients_and_tuning_there_are(mode: str, seeds: range) -> None:
    for seed in seeds:
        found = run(varied(mode, seed))
        assert not found, "\n".join(found)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", cut(FEW, QUICK_FEW, CHUNK))
@pytest.mark.parametrize("mode", ["async", "at once", "sync", "steps", "bounded"])
def test_no_promise_is_broken_where_a_pass_over_memory_finds_nan(mode: str, seeds: range) -> None:
    for seed in seeds:
        found = run(spoilt(mode, seed))
        assert not found, "\n".join(found)


def test_a_seed_replays_exactly() -> None:
    for of, mode, seed in (
        (scenario, "async", 5),
        (scenario, "sync", 35),
        (scenario, "bounded", 58),
        (varied, "async", 3),
    ):
        kept: list[object] = []
        for _ in range(2):
            run(of(mode, seed), keep=kept)  # type: ignore[arg-type]
        first, second = ([str(event) for event in cluster.world.trace] for cluster in kept)  # type: ignore[attr-defined]
        assert first == second
        assert len(first) > 50
