"""The promises under faults when pushes travel compressed: what was left out of a push never counts twice or unasked.

A push of the training program has one element that is not 0, which each compressor here sends as it is: so its
residual is 0 when all is right, and a push that was dropped or rolled back must not come back out of it.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.scenario import compressed, run, scenario


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "sync", "bounded"])
def test_no_promise_is_broken_when_pushes_are_compressed(mode: str) -> None:
    for seed in range(int(os.environ.get("DPS_COMPRESSED_SEEDS", "12"))):
        found = run(scenario(mode, seed), **compressed(seed))
        assert not found, "\n".join(found)
