"""What a run writes is for its account alone, and its secrets stay out of run.json."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dps import cli
from dps.checkpoint.storage import LocalStorage
from dps.errors import ConfigError
from dps.launch.runs import folder, keeper, request
from dps.launch.supervision.plan import Job, RunPlan, small_plan
from dps.process import own_files
from tests.accounts import NOBODY, modes, seen_by_another

TRAIN = """
import os, sys
import numpy as np, dps
with dps.Server.from_env() as server, dps.Session(
    server, {"w": np.zeros(2, np.float32)}, optimizer=dps.optim.SGD(0.1), timeout=30,
    hooks=[dps.StopAtStep(last_step=int(sys.argv[1])), dps.SummarySaver(os.environ["OUTPUT_DIR"] + "/summaries")],
    checkpoint_dir=os.environ["SAVED"],
) as session:
    print("token", os.environ["TOKEN"], "of", os.environ["ROLE"], "at", session.global_step, flush=True)
    while not session.should_stop():
        session.push({"w": session.pull()["w"] - 1})
"""
SECRETS = ("sesame", "poppy")
EXPERIMENT = """
output: out/it
parameters: {steps: 5}
env: {TOKEN: sesame, SAVED: SAVED_IN}
roles: {worker: {run: "train.py {{ steps }}", env: {ROLE: poppy}}}
"""


def launch(where: Path, *argv: str, runs: Path, code: int = 0) -> str:
    environ = dict(os.environ, DPS_RUNS=str(runs))
    command = [sys.executable, "-m", "dps.cli", "launch", *argv]
    done = subprocess.run(
        command, cwd=where, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        preexec_fn=lambda: os.umask(0o022) and None,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    return done.stdout


def experiment(where: Path, saved: str) -> str:
    (where / "train.py").write_text(TRAIN)
    (where / "experiment.yaml").write_text(EXPERIMENT.replace("SAVED_IN", saved))
    return "experiment.yaml"


def contents(path: Path) -> str:
    return "".join(file.read_text(errors="replace") for file in sorted(path.rglob("*")) if file.is_file())


def test_what_a_launch_makes_is_for_its_account_alone(open_folder: Path) -> None:
    runs, saved = open_folder / "runs", open_folder / "saved" / "here"
    said = launch(open_folder, experiment(open_folder, str(saved)), runs=runs)
    assert "token sesame of poppy at 0" in said and "open to other accounts" not in said
    made = (runs, open_folder / "out", open_folder / "saved")
    assert modes(*made) == {} and {path.name for path in saved.iterdir()} >= {"journal.json"}
    assert {path.name for path in runs.joinpath("1", "logs").iterdir()} >= {"worker.0.log"}
    assert list((open_folder / "out" / "it" / "summaries").iterdir())
    assert seen_by_another(*made) == []


def test_folders_that_the_user_made_keep_their_modes_with_one_warning_each(open_folder: Path) -> None:
    runs, saved = open_folder / "runs", open_folder / "saved"
    for made in (runs, saved):
        made.mkdir()
        made.chmod(0o755)
    said = launch(open_folder, experiment(open_folder, str(saved)), runs=runs)
    for made in (runs, saved):
        assert made.stat().st_mode & 0o777 == 0o755
        assert said.count(f"{made} is open to other accounts (mode 755), and stays so") == 1, said
    assert modes(*runs.iterdir(), *saved.iterdir()) == {}
    assert seen_by_another(runs, saved) == [str(runs), str(saved)]


@pytest.mark.slow
def test_secrets_are_apart_from_what_people_show_and_a_resumed_run_has_them(open_folder: Path) -> None:
    runs = open_folder / "runs"
    file = experiment(open_folder, str(open_folder / "saved"))
    assert "token sesame of poppy at 0" in launch(open_folder, file, runs=runs)
    (open_folder / "experiment.yaml").unlink()  # a run goes on as it was begun, whatever the file says now
    assert "token sesame of poppy at 5" in launch(open_folder, "--resume", "1", runs=runs)
    for run in ("1", "2"):
        told = (runs / run / "run.json").read_text()
        assert not any(secret in told for secret in SECRETS)
        assert json.loads(told)["plan"]["env"] == ["OUTPUT_DIR", "SAVED", "TOKEN"]


# -- without processes -------------------------------------------------------------------------------------------------


def made(tmp_path: Path, **env: str) -> str:
    path = folder.create(str(tmp_path / "runs"))
    plan = small_plan(1, 2, ("train.py",), env=env)
    plan = RunPlan({**plan.jobs, "evaluator": Job(run=("e.py",), env={"ROLE": "poppy"})}, plan.update, plan.env)
    keeper.prepare_run(path, plan, {"name": "n", "command": "dps launch e.yaml", "values": {}})
    return path


def test_the_plan_comes_back_with_the_values_of_its_variables(tmp_path: Path) -> None:
    path = made(tmp_path, TOKEN="sesame", DPS_KEYS="/keys")
    plan = request.read_plan(path)
    assert plan.environment("evaluator:0") == {
        "TOKEN": "sesame", "DPS_KEYS": "/keys", "ROLE": "poppy", "OUTPUT_DIR": os.path.join(path, "output"),
    }  # fmt: skip
    assert request.read_variables(path)["DPS_KEYS"] == "/keys" and plan.jobs["worker"] == Job(2, ("train.py",))
    os.unlink(os.path.join(path, request.ENV))
    with pytest.raises(ConfigError, match="is gone; begin a new run: dps launch e.yaml"):
        request.read_plan(path)
    assert request.read_variables(path) == {}


def old(path: str, plan: dict[str, Any]) -> None:
    """Make a run what an earlier version of dps has left."""
    folder.write(os.path.join(path, "run.json"), {"format": 1, "command": "", "plan": plan})
    os.unlink(os.path.join(path, request.ENV))
    os.chmod(path, 0o755)


def test_runs_of_earlier_versions_are_closed_and_can_still_be_resumed(tmp_path: Path) -> None:
    first, second = made(tmp_path), made(tmp_path)
    old(first, small_plan(env={"TOKEN": "sesame"}).as_dict())
    os.chmod(second, 0o750)  # its user wants that
    folder.create(str(tmp_path / "runs"))
    assert [os.stat(path).st_mode & 0o777 for path in (first, second)] == [0o700, 0o750]
    assert request.read_plan(first).env == {"TOKEN": "sesame"} == request.read_variables(first)


def test_the_users_own_state_folder_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("DPS_RUNS", raising=False)
    runs = tmp_path / "dps" / "runs"
    runs.mkdir(parents=True)
    folder.create(folder.root())
    assert [path.stat().st_mode & 0o777 for path in (runs, runs.parent)] == [0o700, 0o700]


def test_a_link_is_not_followed_to_the_folder_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "1").symlink_to(tmp_path / "elsewhere")
    assert os.path.basename(folder.create(str(runs))) == "2"
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o755


def test_a_folder_within_a_closed_one_is_closed(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    inner.chmod(0o755)
    for outer, mode in ((0o711, "755"), (0o700, "")):
        inner.parent.chmod(outer)
        tmp_path.chmod(0o755)
        open_above = all(parent.stat().st_mode & 0o011 for parent in tmp_path.parents)
        assert own_files.open_mode(str(inner)) == (mode if open_above else "")


def test_checkpoints_that_are_open_are_closed_and_their_folder_is_not(open_folder: Path) -> None:
    (open_folder / "step-000000000001-epoch-000001").mkdir(mode=0o755)
    warning = LocalStorage().close(str(open_folder), ["step-000000000001-epoch-000001", "gone"])
    assert modes(*open_folder.iterdir()) == {} and open_folder.stat().st_mode & 0o777 == 0o755
    assert warning.startswith(f"{open_folder} is open to other accounts (mode 755)")


def test_runs_of_other_accounts_in_one_folder_are_passed_over(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As root every folder can be read, so `is_readable` is asked in the place of the system."""
    path = made(open_folder)
    made(open_folder)
    monkeypatch.setenv("DPS_RUNS", os.path.dirname(path))
    monkeypatch.setattr(folder, "is_readable", lambda run: not run.endswith("/1"))
    assert cli.main(["list"]) == 0
    listed = capsys.readouterr().out
    assert listed.splitlines()[1].startswith("2 ") and "and 1 run of other accounts" in listed
    assert cli.main(["prune", "--keep", "0", "--dry-run"]) == 0
    assert cli.main(["status", "1"]) == 2
    assert "another account's" in capsys.readouterr().err
    if os.geteuid() == 0:
        monkeypatch.undo()
        command = (
            f"import os; from dps.launch.runs import folder; os.setuid({NOBODY}); print(folder.is_readable({path!r}))"
        )
        done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
        assert done.stdout == "False\n"
