"""Every promise, in every update mode, under faults, for as many seeds as DPS_SEEDS says (200 a mode)."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.simulation.scenario import Scenario, crowded, run, scenario, with_a_killed_chief, with_a_lost_ps

SEEDS = int(os.environ.get("DPS_SEEDS", "200"))
CHUNK = 50
FIRST = int(os.environ.get("DPS_FIRST_SEED", "0"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, CHUNK))
@pytest.mark.parametrize("mode", ["async", "at once", "sync", "steps", "bounded"])
def test_no_promise_is_broken_under_faults(mode: str, first: int) -> None:
    for seed in range(first, min(first + CHUNK, FIRST + SEEDS)):
        found = run(scenario(mode, seed))
        assert not found, "\n".join(found)


@pytest.mark.timeout(600)
def test_no_promise_is_broken_where_tokens_are_queued() -> None:
    for seed in range(FIRST, FIRST + max(SEEDS // 5, 10)):
        found = run(scenario("tokens", seed))
        assert not found, "\n".join(found)


@pytest.mark.timeout(600)
def test_no_promise_is_broken_where_pushes_are_applied_while_another_one_arrives() -> None:
    for seed in range(FIRST, FIRST + max(SEEDS // 20, 10)):
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
@pytest.mark.parametrize("mode", ["async", "at once", "sync", "steps", "bounded"])
@pytest.mark.parametrize("of", [with_a_killed_chief, with_a_lost_ps])
def test_no_promise_is_broken_where_a_chief_or_a_ps_is_killed(of: Callable[[str, int], Scenario], mode: str) -> None:
    for seed in range(FIRST, FIRST + max(SEEDS // 10, 10)):
        found = run(of(mode, seed))
        assert not found, "\n".join(found)


def test_a_seed_replays_exactly() -> None:
    for mode, seed in (("async", 5), ("sync", 35), ("bounded", 58)):
        kept: list[object] = []
        for _ in range(2):
            run(scenario(mode, seed), keep=kept)  # type: ignore[arg-type]
        first, second = ([str(event) for event in cluster.world.trace] for cluster in kept)  # type: ignore[attr-defined]
        assert first == second
        assert len(first) > 50
