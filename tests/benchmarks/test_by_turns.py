"""benchmarks/by_turns.py: two commits at once, by turns."""

from __future__ import annotations

import pytest

from benchmarks.by_turns import ROOT, Cost, lines_of, main, rounds_of


def test_the_table_has_median_ratio_spread_and_times() -> None:
    costs = [(Cost(base, 3e-4), Cost(1e-4, 2e-4)) for base in (2e-4, 3e-4, 1e-4, 4e-4)]
    head, push, between, by_processor = lines_of({"push": costs})
    assert head.startswith("HEAD is so many times as fast")
    assert push.split() == ["push", "2.500", "2.00-4.00", "250.0", "us", "100.0", "us"]
    assert between == "by the processor time of all processes"
    assert by_processor.split() == ["push", "1.500", "1.50-1.50", "300.0", "us", "200.0", "us"]


def test_unknown_works_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["HEAD", "HEAD", "--works", "swim"])
    said = "--works swim is not known; wanted some of push, step, step in place, pull and push, sync"
    assert said in capsys.readouterr().err


@pytest.mark.nightly
def test_both_clusters_live_at_once_and_work_by_turns() -> None:
    found = rounds_of([ROOT, ROOT], ["push", "sync"], elements=100, rounds=3, calls=5)
    assert {work: len(pairs) for work, pairs in found.items()} == {"push": 3, "sync": 3}
    assert all(0 < seconds < 10 for pairs in found.values() for pair in pairs for cost in pair for seconds in cost)
