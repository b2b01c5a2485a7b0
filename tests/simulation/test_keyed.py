"""Keyed tables under faults: no key is lost and none twice, in every update mode."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dps.process import record
from dps.training.update_modes import SyncReplicas
from tests.seeds import counts, cut
from tests.simulation.scenario import Scenario, run, scenario, with_a_killed_chief, with_a_lost_ps

SEEDS, QUICK = counts()
CHUNK = 25


def summed(chosen: Scenario) -> Scenario:
    """A step adds gradients: a key that one push has would be divided by one, a cell by all pushes."""
    update = chosen.update
    if isinstance(update, SyncReplicas):
        return replace(chosen, update=record.replace(update, reduction="sum"))
    return chosen


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", cut(SEEDS, QUICK, CHUNK))
@pytest.mark.parametrize("mode", ["async", "bounded", "sync"])
def test_no_key_is_lost_and_none_twice_under_faults(mode: str, seeds: range) -> None:
    for seed in seeds:
        of = (scenario, scenario, with_a_lost_ps, with_a_killed_chief)[seed % 4]
        found = run(summed(of(mode, seed)), keyed=True)
        assert not found, "\n".join(found)
