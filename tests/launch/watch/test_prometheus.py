"""The figures for Prometheus, read by its own parser: names, kinds, labels, and counters that never go back."""

from __future__ import annotations

import math
import re
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import dps
from dps.launch.runs import folder
from dps.launch.runs.reports import RunReader
from dps.launch.watch.metrics import FAMILIES, RunMetrics, Totals
from tests.launch.watch.readings import EVIL, of_ps, reading, session

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def series(metrics: RunMetrics) -> Series:
    """Every series by its name and labels."""
    found = {}
    for family in text_string_to_metric_families(metrics.text()):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def test_every_family_has_its_help_and_the_kind_that_its_name_says(tmp_path: Path) -> None:
    metrics = RunMetrics()
    folder.write(str(tmp_path / "usage.json"), {"worker:0": {"cpu_percent": 50.0, "memory_mb": 2.0}})
    metrics.add_reading(reading(str(tmp_path), {"0": of_ps(1, 5, {"worker:0": session(5, 800, 900)})}))
    families = list(text_string_to_metric_families(metrics.text()))
    for family in families:
        total = all(sample.name.endswith("_total") for sample in family.samples)
        assert family.type == ("counter" if total else "gauge") and family.documentation and family.samples
    read = {sample.name for family in families for sample in family.samples}
    assert read <= FAMILIES.keys() and FAMILIES.keys() - read == {
        "dps_worker_steps_total", "dps_worker_time_seconds_total",
        "dps_task_gpu_usage_ratio", "dps_task_gpu_memory_bytes",
    }  # fmt: skip
    for name in FAMILIES:
        assert re.fullmatch(r"dps_[a-z_]+", name)
        assert not re.search(r"_(ms|mb|percent|minutes|kb)\b", name), "base units alone"
    found = series(metrics)
    assert found["dps_task_cpu_usage_ratio", (("task", "worker:0"),)] == 0.5
    assert found["dps_task_memory_bytes", (("task", "worker:0"),)] == 2e6
    assert found["dps_session_received_bytes_total", (("ps", "ps:0"), ("worker", "worker:0"))] == 800
    assert found["dps_ps_size_bytes", (("ps", "ps:0"),)] == 4000
    assert found["dps_run_state", (("state", "RUNNING"),)] == 1 and found["dps_run_state", (("state", "LOST"),)] == 0


def test_no_counter_goes_back_over_rollbacks_losses_and_rejoining(tmp_path: Path) -> None:
    metrics, before = RunMetrics(), Series()
    path = str(tmp_path)
    readings = [
        reading(path, {"0": of_ps(1, 5, {"worker:0": session(5, 50)}), "1": of_ps(1, 5, {})}),
        reading(path, {"0": of_ps(1, 9, {"worker:0": session(9, 90)}), "1": {"address": "x", "state": "no answer"}}),
        reading(path, {}),  # the chief does not answer
        reading(path, {"0": of_ps(2, 4, {"worker:0": session(1, 10)}, applied=1)}, epoch=2),  # a rollback
        reading(path, {"0": of_ps(3, 20, {"worker:0": session(12, 120)}, applied=12)}, epoch=3),  # another
        reading(path, {"0": of_ps(3, 21, {"worker:1": session(2, 20)}, applied=13)}, epoch=3),  # a worker has left
        reading(path, {"0": of_ps(3, 22, {"worker:0": session(1, 10)}, applied=14)}, epoch=3),  # and comes again
        reading(path, {}, state="SUCCEEDED"),
    ]  # fmt: skip
    for told in readings:
        metrics.add_reading(told)
        now = series(metrics)
        for key, value in before.items():
            if key[0].endswith("_total"):
                assert now[key] >= value, key
        before = now
    both = ("ps", "ps:0"), ("worker", "worker:0")
    assert before["dps_session_pushes_total", both] == 9 + 1 + 12 + 1
    assert before["dps_session_received_bytes_total", both] == 90 + 10 + 120 + 10
    assert before["dps_ps_pushes_total", (("ps", "ps:0"), ("result", "applied"))] == 9 + 1 + 14
    assert before["dps_steps_total", ()] == 9 + 18  # from 4 it has come to 22
    assert before["dps_chief_up", ()] == 0 and before["dps_run_state", (("state", "SUCCEEDED"),)] == 1


def test_no_counter_goes_back_when_a_session_goes_back_to_a_checkpoint(tmp_path: Path) -> None:
    metrics, view = RunMetrics(), reading(str(tmp_path), {}).view
    with (
        dps.Server.create_local_server() as server,
        dps.Session(
            server, {"w": np.zeros(300)}, optimizer=dps.optim.SGD(1.0), checkpoint_dir=str(tmp_path / "saved")
        ) as session,
        closing(RunReader("a test", 20.0)) as reader,
    ):
        view.values["chief"] = server.target

        def push(times: int) -> Series:
            for _ in range(times):
                session.push({"w": np.ones(300)})
            metrics.add_reading(reader.read(view))
            return series(metrics)

        push(4)
        session.save()
        before = push(3)
        session.restore()
        after = push(2)
    assert (before["dps_step", ()], after["dps_step", ()]) == (7, 6)
    assert (before["dps_run_epoch", ()], after["dps_run_epoch", ()]) == (1, 2)
    assert before.keys() <= after.keys()
    assert [key for key in before if key[0].endswith("_total") and after[key] < before[key]] == []
    both = ("ps", "ps:0"), ("worker", "worker:0")
    assert after["dps_session_pushes_total", both] == 9
    assert after["dps_session_received_bytes_total", both] > before["dps_session_received_bytes_total", both] > 0


def test_what_is_not_said_any_more_is_no_gauge(tmp_path: Path) -> None:
    metrics = RunMetrics()
    metrics.add_reading(reading(str(tmp_path), {"0": of_ps(1, 5, {"worker:0": session(5)})}))
    metrics.add_reading(reading(str(tmp_path), {}))
    names = {name for name, _ in series(metrics)}
    assert "dps_loss" not in names and "dps_ps_up" not in names and "dps_steps_total" in names


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1e-300])
def test_a_loss_is_told_as_it_is(tmp_path: Path, loss: float) -> None:
    metrics = RunMetrics()
    metrics.add_reading(reading(str(tmp_path), {"0": of_ps(1, 5, {})}, loss=loss))
    told = series(metrics)["dps_loss", ()]
    assert told == loss or (math.isnan(told) and math.isnan(loss))


@pytest.mark.parametrize("name", [EVIL, 'a"b\\c\nd\re', "\\n", ""])
def test_the_name_of_a_run_is_one_label(tmp_path: Path, name: str) -> None:
    metrics = RunMetrics()
    metrics.add_reading(reading(str(tmp_path), {}, name=name))
    (labels,) = [dict(labels) for family, labels in series(metrics) if family == "dps_run_info"]
    assert labels == {"run": tmp_path.name, "name": name.replace("\r", " ")}


def test_the_times_of_a_worker_are_counted_in_seconds_and_over_its_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics, told = RunMetrics(), {"steps": 4, "read_s": 0.5, "computed_s": 2.0, "moved_s": 0.25, "waited_s": 1.0}
    monkeypatch.setattr(
        "dps.launch.watch.metrics.training_of",
        lambda chief, ps: {"loss": None, "step": None, "workers": {"worker:0": told}},
    )
    for computed_s in (2.0, 3.0, 0.5, 1.0):  # the third is of another session
        told |= {"computed_s": computed_s}
        metrics.add_reading(reading(str(tmp_path), {"0": of_ps(1, 5, {})}))
    found = series(metrics)
    labels = ("activity", "computing"), ("worker", "worker:0")
    assert found["dps_worker_time_seconds_total", labels] == 3.0 + 1.0
    assert found["dps_worker_time_seconds_total", (("activity", "reading_data"), labels[1])] == 0.5 + 0.5
    assert found["dps_worker_steps_total", labels[1:]] == 4 + 4


def test_totals_of_a_group_begin_anew_together() -> None:
    totals = Totals()
    assert totals.of_group("a", (5, 7), 1) == (5, 7) and totals.of_group("a", (6, 7), 1) == (6, 7)
    assert totals.of_group("a", (8, 1), 1) == (14, 8)
    assert totals.of_group("a", (9, 2), 2) == (23, 10)
    assert [totals.of_rises("b", value) for value in (3, 5, 2, 4)] == [3, 5, 5, 7]
