"""A wide-and-deep model on keyed tables gets near the best possible log loss, which the generator knows."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from examples.click_stream import DENSE, FEATURE_BIT, FEATURES, days
from tests.examples.processes import EXAMPLES, Terminals

LINE = (
    r"day 5: log loss ([\d.]+), best possible ([\d.]+), rate alone ([\d.]+); (\d+) rows, (\d+) admitted, (\d+) expired"
)


def test_two_workers_get_most_of_what_can_be_had_and_rows_come_and_go(tmp_path: Path) -> None:
    """Their share of the way from the rate alone to the best possible loss: 0.80 and 0.81 when this was written."""
    with Terminals(tmp_path) as terminals:
        launch = "-m", "dps.cli", "launch", "--ps", "2", "--workers", "2", str(EXAMPLES / "clicks.py")
        terminals.start("all", *launch, "--", "--days", "5")
        codes, said = terminals.ended()
    assert codes == {"all": 0}, said
    found = re.findall(LINE, said["all"])
    assert len(found) == 2, said
    shares = [(alone - loss) / (alone - best) for loss, best, alone in (map(float, line[:3]) for line in found)]
    assert 0.55 < shares[0] < 1 and 0.74 < shares[1] < 1, said  # the first to end may have had few pushes of the other
    rows, admitted, expired = map(int, found[1][3:])
    assert rows == admitted - expired, said  # on each ps, and so on both
    assert rows > 10_000 and expired > 1000, said


def test_the_best_possible_loss_is_the_entropy_of_the_clicks() -> None:
    (clicks,) = islice(days(50_000), 1)
    p = clicks.probability
    entropy = -(p * np.log(p) + (1 - p) * np.log1p(-p))
    assert clicks.loss(p) == pytest.approx(entropy.mean(), abs=0.006)  # two standard deviations are 0.004
    assert clicks.clicked.mean() == pytest.approx(p.mean(), abs=0.006)
    worse = [clicks.loss(np.clip(p * factor, 0, 1)) for factor in (0.8, 1.2)]
    assert min(worse) > clicks.loss(p) + 0.003
    assert clicks.loss(p.mean()) > clicks.loss(p) + 0.1


def test_ids_follow_zipf_and_one_in_twenty_is_new_every_day() -> None:
    first, second = islice(days(20_000), 2)
    assert first.dense.shape == (20_000, DENSE) and first.keys.shape == (20_000, FEATURES)
    assert (first.keys >> FEATURE_BIT == np.arange(FEATURES)).all()
    ids, counts = np.unique(first.keys[:, -1], return_counts=True)
    order = np.argsort(counts)[::-1]
    assert ids[order[0]] == (FEATURES - 1) << FEATURE_BIT  # the id 0 of the feature
    assert counts[order[0]] / counts[order[1]] == pytest.approx(2**1.2, rel=0.1)
    seen = [{*np.unique(clicks.keys[:, 12]).tolist()} for clicks in (first, second)]
    assert len(seen[1] - seen[0]) / len(seen[1]) == pytest.approx(0.05, abs=0.03)


def test_logs_share_ids_and_probabilities_and_have_their_own_examples() -> None:
    again, one, other = (next(islice(days(1000, log), 2, None)) for log in (0, 0, 1))
    np.testing.assert_array_equal(again.keys, one.keys)
    np.testing.assert_array_equal(again.clicked, one.clicked)
    assert not np.array_equal(one.dense, other.dense)
    assert len(np.intersect1d(one.keys[:, 0], other.keys[:, 0])) >= 8  # of 10 ids
