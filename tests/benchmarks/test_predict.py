"""Predicted growth: what the simulated machines cost, how costs are fitted, and a small run with its picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import predict
from benchmarks.service_times import Sample, medians
from benchmarks.simulating import Model, messages_of_a_push, simulated
from dps.transport.sim import Handling, Machines

PS_S, WORKER_S = 0.002, 0.004
HERE = {"ps": Handling(PS_S), "worker": Handling(WORKER_S / 2, 0.0, WORKER_S / 2)}


def rate(workers: int, machines: Machines, ps: int = 1, latency_s: float = 1e-6) -> float:
    outcome, _ = simulated(Model(workers, ps, "4x16", 20, machines, latency_s))
    return outcome.per_s


def test_one_worker_takes_turns_with_its_ps() -> None:
    assert rate(1, Machines(2, True, HERE)) == pytest.approx(1 / (PS_S + WORKER_S), rel=0.01)
    assert rate(1, Machines(2, True, HERE), latency_s=0.003) == pytest.approx(1 / (PS_S + WORKER_S + 0.006), rel=0.01)


def test_many_workers_are_bound_by_the_cores_that_they_share() -> None:
    assert rate(8, Machines(2, True, HERE)) == pytest.approx(2 / (PS_S + WORKER_S), rel=0.1)


def test_many_workers_on_machines_of_their_own_are_bound_by_the_ps() -> None:
    assert rate(8, Machines(1, False, HERE)) == pytest.approx(1 / PS_S, rel=0.1)
    outcome, _ = simulated(Model(8, 1, "4x16", 20, Machines(1, False, HERE), 1e-6))
    assert outcome.ps_busy > 0.95
    assert outcome.worker_busy < 0.5


def test_a_worker_pays_for_its_message_to_each_ps() -> None:
    """On four ps: four messages and four answers at 2 ms each, and the 2 ms of one ps, which others overlap."""
    assert rate(1, Machines(1, False, HERE), ps=4) == pytest.approx(1 / (4 * WORKER_S), rel=0.15)


def test_a_simulation_gives_the_same_again() -> None:
    assert rate(5, Machines(2, True, HERE)) == rate(5, Machines(2, True, HERE))


def test_the_messages_of_a_push_are_counted() -> None:
    alone = Machines(1, False)
    assert messages_of_a_push(Model(1, 1, "4k", 2, alone, 1e-6)) == 1
    assert messages_of_a_push(Model(1, 1, "1x655360", 2, alone, 1e-6)) >= 3  # 2.5 MiB in pieces of 1 MiB at most
    assert messages_of_a_push(Model(1, 1, "1x655360", 2, alone, 1e-6, shared_memory=True)) == 1


def test_costs_are_lines_over_the_size() -> None:
    ones = [
        {"size": size, "nbytes": n, "ps_s": 100e-6 + n * 1e-9, "worker_s": 80e-6 + n * 2e-9}
        for size, n in (("4k", 4096), ("small", 102_400), ("1m", 1 << 20))
    ]
    found = predict.fitted(ones, {"worker_s": 80e-6 + 102_400 * 2e-9 + 3 * 30e-6})
    assert found == predict.Costs(
        pytest.approx(100e-6), pytest.approx(1e-9), pytest.approx(50e-6), pytest.approx(30e-6), pytest.approx(2e-9)
    )


def test_rounds_in_which_others_were_busy_count_only_where_there_is_no_choice() -> None:
    samples = [Sample(1, per_s, 0.0, 0.0, 0.0, others) for per_s, others in ((1, 0), (2, 0), (3, 0.1), (9, 1), (9, 1))]
    assert medians(samples)["per_s"] == 2
    assert medians(samples[1:])["per_s"] == 6
    assert (medians(samples)["quiet"], medians(samples)["rounds"]) == (3, 5)


def test_who_is_at_work_all_the_time() -> None:
    assert [predict.bound(0.95, 0.2), predict.bound(0.4, 0.99), predict.bound(0.4, 0.5)] == ["ps", "workers", "neither"]


def test_growth_has_all_points_up_to_the_most() -> None:
    rows = list(predict.growth(predict.Costs(1e-3, 0.0, 1e-3, 1e-4, 0.0), 10))
    assert [(row["nbytes"], row["ps"], row["x"]) for row in rows] == [
        (102_400, 1, 1), (102_400, 1, 10), (102_400, 10, 1), (102_400, 10, 10),
        (1_048_400, 1, 1), (1_048_400, 1, 10), (1_048_400, 10, 1), (1_048_400, 10, 10),
    ]  # fmt: skip
    assert all(row["bound"] == "workers" for row in rows)


@pytest.mark.slow
def test_a_small_run_compares_and_draws(tmp_path: Path) -> None:
    out, picture = tmp_path / "prediction.json", tmp_path / "prediction.svg"
    flags = ["--transports", "tcp", "--sizes", "4k", "--rounds", "1", "--seconds", "0.02", "--pushes", "5"]
    assert predict.main([*flags, "--most-here", "2", "--most", "0", "--out", str(out), "--picture", str(picture)]) == 0
    rows = json.loads(out.read_text())["results"]
    assert [(row["sweep"], row["size"], row["x"]) for row in rows] == [("check", "4k", 1), ("check", "4k", 2)]
    assert all(row["measured"] > 0 and row["predicted"] > 0 for row in rows)
    assert picture.stat().st_size > 10_000
