"""What a simulated run says of itself, and the files that it leaves."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from tests.accounts import modes


def train(server: dps.Server, folder: str = "", steps: int = 20) -> None:
    hooks: list[Any] = [dps.StopAtStep(last_step=steps)]
    hooks += [dps.SummarySaver(folder, steps=5)] if folder else []
    with dps.Session(server, {"w": np.full(2, 4.0)}, optimizer=dps.optim.SGD(0.1), hooks=hooks) as session:
        while not session.should_stop():
            w = session.pull()["w"]
            session.push({"w": 2 * w}, loss=float(w @ w) if folder else None)


COMPUTE = dps.sim.Compute(seconds=0.1)


def test_the_files_of_a_simulation_are_saved_on_request(tmp_path: Path) -> None:
    runs = [dps.simulate(train, "logs/run", workers=2, seed=seed, compute=COMPUTE) for seed in (1, 2)]
    for number, run in enumerate(runs):
        folder = tmp_path / f"seed-{number}"
        file = folder / "logs/run/summaries.jsonl"
        assert run.save(folder) == [str(file)]
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        steps = [row["step"] for row in rows if "event" not in row]
        assert len(steps) == 4 and steps[0] <= 2 and all(b - a >= 5 for a, b in pairwise(steps))
        assert rows[1]["loss"] > 1.0 and rows[-1]["loss"] < 1.0
        assert "; files on the simulated disk: 1; run.save(folder), or --save FOLDER, writes them to a real one" in str(
            run
        )
        assert run.save(folder) == [str(file)] and file.read_bytes() == run.files["logs/run/summaries.jsonl"]


def test_saved_files_are_for_one_account(open_folder: Path) -> None:
    dps.simulate(train, "logs/run").save(open_folder / "a" / "b")
    assert modes(open_folder / "a") == {}


@pytest.mark.parametrize("folder", ["/logs", "../../logs", "/tmp/../logs"])
def test_saved_files_stay_in_their_folder(tmp_path: Path, folder: str) -> None:
    saved = dps.simulate(train, folder).save(tmp_path / "here")
    assert saved == [str(tmp_path / "here/logs/summaries.jsonl")]


def test_it_says_steps_losses_and_lost_tasks() -> None:
    run = dps.simulate(train, "logs", workers=2, seed=3, compute=COMPUTE, faults=[dps.sim.Kill("worker:1", at=0.55)])
    text = str(run)
    assert f"simulated {run.seconds:.3f} s: step 20, {len(run.history)} pushes, loss 32 to 0." in text
    assert "; worker:1 was killed; " in text and run.lost == {"worker:1": "was killed"}
    assert "all tasks ended well" not in text


def test_a_task_that_was_started_again_is_named() -> None:
    run = dps.simulate(train, "", 20, ps=2, compute=COMPUTE, faults=[dps.sim.Kill("ps:1", at=0.55)])
    told = f"no losses; ps:1 was killed and started again; calibration: {run.calibration}"
    assert run.restarted == ["ps:1"] and str(run).endswith(told)


def test_it_says_so_if_nothing_was_lost_and_there_is_no_loss() -> None:
    run = dps.simulate(train, "", 5)
    assert str(run) == (
        f"simulated {run.seconds:.3f} s: step 5, 5 pushes, no losses; all tasks ended well; "
        f"calibration: {run.calibration}"
    )
    assert run.save("never made") == [] and not Path("never made").exists()


def test_it_names_the_errors_of_tasks_and_those_that_did_not_end() -> None:
    def fails(server: dps.Server) -> None:
        if server.task == 0:
            raise ValueError("no data")
        train(server, steps=10**9)

    run = dps.simulate(fails, workers=2, until_s=30.0, compute=COMPUTE)
    assert "worker:0 ended with 1 (ValueError: no data)" in str(run)
    assert "worker:1 had not ended" in str(run) and "pushes, no losses" in str(run)


def test_pushes_that_were_dropped_are_counted() -> None:
    compute = dps.sim.Compute(seconds=0.1, slow={1: 5.0})
    run = dps.simulate(train, "", 20, workers=2, update=dps.SyncReplicas(1, 2), compute=compute)
    assert f"{len(run.history)} pushes ({sum(not row['accepted'] for row in run.history)} not accepted)" in str(run)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ps": -1}, "got ps=-1, wanted a whole number from 0"),
        ({"ps": 1.5}, "got ps=1.5"),
        ({"workers": 0}, "got workers=0, wanted a whole number from 1"),
        ({"until_s": float("nan")}, "got until_s=nan"),
        ({"compute": dps.sim.Compute(0.1, slow={3: 2.0}), "workers": 2}, "there is no process 'worker:3'"),
    ],
)
def test_what_cannot_be_simulated_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        dps.simulate(train, **given)
