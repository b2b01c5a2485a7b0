"""A second run on the same cluster: it goes on with the variables of the first and says so, or begins anew."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import ConfigError, DpsError
from dps.launch.clusters import elsewhere
from tests.launch.programs import echo, trains

GOES_ON = (
    "this run goes on with the variables of the run before (2), from step 5; local.run(..., fresh=True) begins anew"
)


def cluster(processes: bool, workers: int = 1) -> dps.LocalCluster:
    return dps.LocalCluster(ps=1, workers=workers, processes=processes)


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if "run before" in line]


@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_second_run_says_that_it_goes_on_and_a_fresh_one_begins_anew(
    processes: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster(processes) as local:
        assert local.run(trains).results == [5.0]
        assert local.run(echo).results == [[0]]
        assert said(capsys) == []
        assert local.run(trains).results == [10.0]
        (line,) = said(capsys)
        assert GOES_ON in line
        target = local.target
        assert local.run(trains, fresh=True).results == [5.0]
        assert said(capsys) == [] and local.target != target
        with local.session() as reader:
            assert reader.global_step == 5
        assert local.run(trains, fresh=True).results == [5.0]
        assert local.run(echo, 3).results == [[0, 3]]
        assert local.run(trains, steps=7, fresh=True).results == [7.0]


def test_a_running_run_keeps_its_cluster() -> None:
    def waits(server: Any) -> None:
        while not server.stop_requested:
            server.runtime.sleep(0.001)

    with cluster(False) as local:
        run = local.run(waits)
        target = local.target
        with pytest.raises(ConfigError, match="the run before has not ended"):
            local.run(trains, fresh=True)
        assert local.target == target
        run.stop()


@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_optimizer_that_does_not_fit_is_one_line(processes: bool) -> None:
    with cluster(processes, workers=2) as local:
        local.run(trains).wait()
        with pytest.raises(DpsError) as found:
            local.run(trains, "adam").wait()
    text = str(found.value)
    assert "\n" not in text and "failed the same way" in text
    wanted = (
        "its optimizer of a is Adam(learning_rate=0.1, beta1=0.9, beta2=0.999, epsilon=1e-08), the run's is "
        "SGD(learning_rate=1.0, weight_decay=0.0); give all workers the same model and optimizer"
    )
    assert wanted in text and "(programs.py, line " in text and "local.run(..., fresh=True) begins anew" in text


def test_a_fresh_run_on_other_machines_has_new_keys_and_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []

    class Tasks:
        target = "127.0.0.1:1"

        def __init__(self, *given: Any) -> None:
            keys.append(given[-1]["DPS_KEYS"])

        def run(self, run: Any, *_: Any) -> None:
            run.ended(0)

        def stop(self) -> None:
            assert Path(keys[-1]).is_dir(), "the tasks that end still need them"

    monkeypatch.delenv("DPS_KEYS", raising=False)
    monkeypatch.setattr(elsewhere, "ProcessTasks", Tasks)
    monkeypatch.setattr(elsewhere, "make_engine", lambda _: Anything())
    with elsewhere.SSHCluster(["one"], ps=1, workers=1) as local:
        local.run(echo)
        local.run(echo, fresh=True)
        assert len(set(keys)) == 2 and os.environ["DPS_KEYS"] == keys[1]
        assert [Path(folder).is_dir() for folder in keys] == [False, True]
    assert "DPS_KEYS" not in os.environ and not Path(keys[1]).exists()


class Anything:
    """An engine that starts nothing."""

    def check(self, plan: Any) -> None: ...


def test_the_clients_of_a_stopped_cluster_leave_no_thread() -> None:
    """A cell that was run again left a thread and some 25 descriptors for each session that it had opened."""
    before = threading.active_count()
    for _ in range(2):
        local = dps.LocalCluster(ps=1, workers=1, processes=False).start()
        session = local.session({"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0))
        session.push({"w": np.ones(2)})
        local.stop()
        with pytest.raises(dps.TaskLost):
            session.push({"w": np.ones(2)})
    assert threading.active_count() == before
