"""Predictions: what the simulated machines cost, how they grow, slow links, and a small run with its picture."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import predict, predict_links
from benchmarks.simulating import Model, simulated
from dps.monitor.setting import Setting
from dps.transport.sim import Calibration, Handling, LaneCosts, Machines

PS_S, WORKER_S = 0.002, 0.004
HERE = {"ps": Handling(PS_S), "worker": Handling(WORKER_S / 2, 0.0, WORKER_S / 2)}


def rate(workers: int, machines: Machines, ps: int = 1, latency_s: float = 1e-6) -> float:
    outcome = simulated(Model(workers, ps, "4x16", 20, machines, latency_s))
    return outcome.per_s


def test_one_worker_takes_turns_with_its_ps() -> None:
    assert rate(1, Machines(2, True, HERE)) == pytest.approx(1 / (PS_S + WORKER_S), rel=0.01)
    assert rate(1, Machines(2, True, HERE), latency_s=0.003) == pytest.approx(1 / (PS_S + WORKER_S + 0.006), rel=0.01)


def test_many_workers_are_bound_by_the_cores_that_they_share() -> None:
    assert rate(8, Machines(2, True, HERE)) == pytest.approx(2 / (PS_S + WORKER_S), rel=0.1)


def test_many_workers_on_machines_of_their_own_are_bound_by_the_ps() -> None:
    assert rate(8, Machines(1, False, HERE)) == pytest.approx(1 / PS_S, rel=0.1)
    outcome = simulated(Model(8, 1, "4x16", 20, Machines(1, False, HERE), 1e-6))
    assert outcome.ps_busy > 0.95
    assert outcome.worker_busy < 0.5


def test_a_worker_pays_for_its_message_to_each_ps() -> None:
    """On four ps: four messages and four answers at 2 ms each, and the 2 ms of one ps, which others overlap."""
    assert rate(1, Machines(1, False, HERE), ps=4) == pytest.approx(1 / (4 * WORKER_S), rel=0.15)


def test_a_simulation_gives_the_same_again() -> None:
    assert rate(5, Machines(2, True, HERE)) == rate(5, Machines(2, True, HERE))


def test_one_worker_alone_takes_what_was_measured_of_it() -> None:
    """The sum of worker and ps, less what they do at the same time; through shared memory the bytes count, too."""
    of = Handling(PS_S / 2, 1e-9, PS_S / 2, 0.0)
    worker = Handling(WORKER_S / 4, 0.0, WORKER_S / 4, 2e-9, WORKER_S / 2)
    lane = LaneCosts(of, worker, 0.0)
    calibration = Calibration("made", 2, lane, lane, (0.0,), 1e9, 0.0)
    for transport in ("tcp", "socket"):
        setting = Setting("dense", transport, "1m")
        outcome = simulated(predict.like_here(setting, calibration, 0.0, 1, 20))
        assert outcome.per_s == pytest.approx(1 / (PS_S + WORKER_S + 3e-9 * (1 << 20)), rel=0.03)
    beside = replace(lane, ps=replace(of, beside=0.5), worker=replace(worker, beside=0.5))
    setting = Setting("dense", "socket", "4k")
    outcome = simulated(predict.like_here(setting, replace(calibration, sockets=beside), 0.0, 1, 20))
    assert outcome.per_s == pytest.approx(1 / (PS_S / 2 + WORKER_S / 2 + WORKER_S / 4), rel=0.03)


def test_who_is_at_work_all_the_time() -> None:
    found = [predict.bound(*busy) for busy in ((0.95, 0.2), (0.4, 0.99), (0.4, 0.5), (0.95, 0.2, 0.97))]
    assert found == ["ps", "workers", "neither", "the ps's cards"]


def test_growth_has_all_points_up_to_the_most() -> None:
    rows = list(predict.growth(Calibration.shipped(), 10))
    assert [(row["nbytes"], row["ps"], row["x"]) for row in rows] == [
        (102_400, 1, 1), (102_400, 1, 10), (102_400, 10, 1), (102_400, 10, 10),
        (1_048_400, 1, 1), (1_048_400, 1, 10), (1_048_400, 10, 1), (1_048_400, 10, 10),
    ]  # fmt: skip
    assert [row["bound"] for row in rows] == [*["workers"] * 5, "neither", *["workers"] * 2]


def test_a_row_of_slow_links_is_predicted_by_its_links() -> None:
    """Two ps whose links carry 4 Mbit/s each, one worker: a push of 100 KB takes what half of it needs on a link."""
    case = predict_links.Case("push", "async", 1, 2, 4, 100_000, 64)
    link = 4 * 125_000 * predict_links.MOST
    assert predict_links.predicted(case, 3, Calibration.shipped()) == pytest.approx(2 * link / 1e6, rel=0.1)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_small_run_compares_and_draws(tmp_path: Path) -> None:
    out, picture = tmp_path / "prediction.json", tmp_path / "prediction.svg"
    flags = ["--transports", "tcp", "--sizes", "4k", "--rounds", "1", "--seconds", "0.02", "--pushes", "5"]
    assert predict.main([*flags, "--most-here", "2", "--most", "0", "--out", str(out), "--picture", str(picture)]) == 0
    rows = json.loads(out.read_text())["results"]
    assert [(row["sweep"], row["size"], row["x"]) for row in rows] == [("check", "4k", 1), ("check", "4k", 2)]
    assert all(row["measured"] > 0 and row["predicted"] > 0 for row in rows)
    assert picture.stat().st_size > 10_000
