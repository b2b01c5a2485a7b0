"""Rounds of a benchmark: what counts, and what comes of it. Figures are made up, so nothing is timed."""

from __future__ import annotations

from dps.monitor.rounds import Rounds, Turn, rotated, steady


def test_a_round_counts_while_its_probe_is_within_a_third_of_the_median() -> None:
    assert steady([1.0, 1.29, 0.71, 1.31, 0.69]) == [0, 1, 2]


def test_the_median_round_always_counts() -> None:
    assert steady([1.0, 10.0, 100.0]) == [1]


def test_figures_leave_out_dropped_rounds() -> None:
    found = Rounds(probes=[1.0, 1.1, 2.0], samples=[{"pull": [1.0, 2.0, 9.0]}, {"pull": [4.0]}, {"pull": [50.0]}])
    assert found.dropped == 1
    assert found.median_s("pull") == 3.0  # of the rounds' medians 2 and 4
    assert found.p99_s("pull") == 9.0


def test_each_round_begins_one_place_later() -> None:
    assert [rotated("abc", by) for by in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]
    assert rotated([], 1) == []


def test_of_two_rounds_that_differ_one_counts() -> None:
    assert steady([1.0, 3.0]) == [0] and steady([3.0, 1.0]) == [1]


def test_each_round_measures_everything_in_turn() -> None:
    heard: list[str] = []

    def beside() -> float:
        heard.append("end")
        return 7.0

    found = Rounds()
    turns = {
        "limit": Turn(lambda: heard.append("limit")),
        "work": Turn(lambda: heard.append("work"), lambda: heard.append("begin"), beside),
    }
    for _ in range(2):
        found.measure(lambda: heard.append("probe"), turns, 0.0)
    probe, limit, work = ["probe"] * 6, ["limit"] * 6, ["begin", *["work"] * 6, "end"]
    assert heard == [*probe, *limit, *work, *probe, *work, *limit]
    assert found.beside_per_s("work") == 7.0
    assert found.beside_per_s("limit") == 0.0
