"""Matrix factorisation by rows gets near the best loss that there is, which is known: the noise in the ratings."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import dps
from tests.examples.processes import EXAMPLES, Terminals

USERS, ITEMS, N, STEPS, BATCH = 300, 200, 30_000, 600, 500
SIZES = ("--users", USERS, "--items", ITEMS, "--ratings", N, "--steps", STEPS, "--batch", BATCH)


def test_two_workers_get_near_the_noise(tmp_path: Path) -> None:
    """Fitting 4 (300 + 200) numbers to 30,000 ratings costs about 2000/30000 more than the noise: a ratio of 1.07."""
    launch = ("-m", "dps.cli", "launch", "--ps", "2", "--workers", "2", str(EXAMPLES / "sparse.py"), "--")
    with Terminals(tmp_path) as terminals:
        terminals.start("all", *launch, *map(str, SIZES))
        codes, said = terminals.ended()
    assert codes == {"all": 0}, said
    found = re.findall(r"error ([\d.]+) on ratings kept aside, .* the noise: ([\d.]+)", said["all"])
    assert len(found) == 2, said
    for error, noise in found:
        assert float(noise) == pytest.approx(0.09, rel=0.1)  # the standard deviation is 0.3; 3,000 ratings
        assert 0.98 * float(noise) < float(error) < 1.15 * float(noise)


def test_each_table_is_spread_over_both_ps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    sparse = import_module("sparse")
    with dps.LocalCluster(ps=2, workers=2, processes=False, update="sync") as local:
        run = local.run(sparse.train, USERS, ITEMS, N, 20, BATCH, 2)
        run.wait(60)
        with local.session() as session:
            stats, users = session.stats(), session.lookup("users", np.array([0, USERS - 1]))
    assert run.results[0] == run.results[1]  # both read the values of step 20
    half = (USERS + ITEMS) // 2 * sparse.WIDTH * 4  # bytes of float32
    assert [stats[ps]["nbytes"] for ps in ("ps:0", "ps:1")] == [half, half]
    first = sparse.first_values(USERS, ITEMS)["users"].value
    assert users.shape == (2, sparse.WIDTH) and not np.array_equal(users, first[[0, USERS - 1]])
