"""Bad input on the real command line: one line that says what was got and wanted, exit code 2, no traceback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dps
from dps import role
from dps.errors import ConfigError
from dps.launch.programs.program import exit_code as code_of
from dps.launch.programs.program import run_program

SLURM = {
    "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}  # fmt: skip


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What was told on stderr: a single line of dps's."""
    told = capsys.readouterr().err
    assert told.startswith("dps: ") and told.count("\n") == 1 and told.endswith("\n")
    assert "Traceback" not in told
    return told


def exit_code(*argv: str) -> int:
    try:
        return role.main(argv)
    except SystemExit as error:
        return code_of(error)


# -- where the cluster is -------------------------------------------------------------------------------------------


def tf_config(task: Any, cluster: Any = None) -> str:
    return json.dumps({"cluster": cluster or {"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}, "task": task})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{not json", "TF_CONFIG: got '{not json', wanted JSON"),
        ('{"cluster":\n"x"\n', "TF_CONFIG"),
        ("[1, 2]", "TF_CONFIG: got [1, 2], wanted an object"),
        (
            tf_config({"type": "worker", "index": 7}),
            "worker:7, wanted one of the cluster's: ps:0, worker:0",
        ),
        (tf_config({"type": "boss", "index": 0}), "got the task boss:0"),
        (tf_config({"type": "ps", "index": "first"}), "got task index 'first' for ps"),
        (tf_config("ps"), "got task 'ps'"),
        (
            tf_config({"type": "ps", "index": 0}, {"ps": "127.0.0.1:1"}),
            "job 'ps': got str '127.0.0.1:1', wanted",
        ),
        (tf_config({"type": "ps", "index": 0}, {"ps": ["nowhere"]}), "ps:0: address: got 'nowhere'"),
        (
            tf_config({"type": "ps", "index": 0}, {"ps": ["127.0.0.1:1"]}),
            "got a cluster of ps, wanted one with a chief",
        ),
        (tf_config({"type": "evaluator", "index": 0}), "an evaluator runs a program"),
    ],
)
def test_a_tf_config_that_cannot_be_used(
    text: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    assert exit_code() == 2
    assert words in one_line(capsys)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"SLURM_PROCID": "3"}, "got SLURM_PROCID=3, SLURM_STEP_NUM_TASKS=3"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "wanted one task count a node, their sum as the number of tasks"),
        ({"SLURM_STEP_NUM_TASKS": "three"}, "got SLURM_STEP_NUM_TASKS='three', wanted a whole number"),
        ({"SLURM_STEP_NODELIST": "n[1-2"}, "host list: got 'n[1-2'"),
        ({"SLURM_STEP_NODELIST": "n[1-99999999999]"}, "host list: got 'n[1-99999999999]'"),
        ({"SLURM_STEP_NODELIST": ""}, "Slurm: got an empty SLURM_STEP_NODELIST"),
        ({"SLURM_STEP_NODELIST": None}, "got no SLURM_STEP_NODELIST"),
        ({"SLURM_STEP_TASKS_PER_NODE": None}, "got no SLURM_STEP_TASKS_PER_NODE"),
        ({"SLURM_STEP_TASKS_PER_NODE": "two"}, "tasks per node: got 'two', wanted the form '3(x2),1'"),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x2000000000)"}, "wanted at most 1,000,000 nodes"),
        ({"SLURM_NODEID": "1"}, "start the step with srun --distribution=block"),
    ],
)
def test_slurm_variables_that_do_not_add_up(
    changes: dict[str, str | None], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {**SLURM, **changes}.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    assert exit_code("--program", "train.py") == 2
    assert words in one_line(capsys)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--cluster", '{"ps": ["127.0.0.1:0"]}', "--job", "ps"], "got a cluster of ps, wanted one with a chief or"),
        (["--ps_hosts", "127.0.0.1:0", "--job", "ps", "--task", "0"], "(--chief_hosts), or "),
        (
            ["--cluster", '{"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}', "--job", "ps", "--chief", "a:3"],
            "got --chief a:3 and the addresses of a cluster",
        ),
        (["--job", "ps", "--advertise", "banana"], "got --advertise 'banana'; wanted HOST or HOST:PORT by which"),
    ],
)
def test_a_ps_that_nobody_could_find_ends_at_once(
    given: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert exit_code(*given) == 2
    assert words in one_line(capsys)


# -- what a program asks for ------------------------------------------------------------------------------------------

PROGRAM = """
import numpy as np, dps

def fails(*_):
    raise OSError("no lamp\\n here")

class Broken(dps.Hook):
    def before_run(self, session):
        fails()

with dps.Server.create_local_server() as server:
    settings = {{"optimizer": dps.optim.SGD(0.1), "timeout": 10}}
    settings |= dict({settings})
    with dps.Session(server, {{"w": np.zeros((4, 2), np.float32)}}, **settings) as session:
        session.push({{"w": np.ones((4, 2), np.float32)}})
"""


def run(settings: str, folder: Path) -> int:
    """The exit code of a worker's program whose session has these settings."""
    program = folder / "program_bad_input.py"
    program.write_text(PROGRAM.format(settings=settings))
    return run_program(str(program), [], verbose=False)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            "optimizer='sgd'",
            "optimizer of the session: got 'sgd', wanted one of dps.optim",
        ),
        ("optimizer=dps.optim.SGD", "got the class SGD"),
        ("optimizer=dps.optim.Sgd(0.1)", "dps.optim has no 'Sgd'; there are the optimizers SGD, Momentum"),
        (
            "optimizer=dps.optim.SGD(lr=0.1)",
            "SGD: got lr, which it does not take; it takes learning_rate",
        ),
        ("optimizer=dps.optim.SGD()", "SGD: missing a required argument: 'learning_rate'"),
        ("optimizer=dps.optim.SGD('fast')", "SGD: learning_rate is 'fast' of type str"),
        ("optimizer=dps.optim.Adam(beta1=1.5)", "Adam: beta1 is 1.5"),
        ("optimizer=dps.optim.SGD(dps.optim.Cosine(0.1, 0))", "Cosine"),
        ("optimizer=None", "no optimizer for w"),
        ("update='synch'", "update='synch' is not known; wanted 'async', 'sync', 'sync:sum', 'bounded:S' or 'local:H'"),
        ("update='local:0'", "steps is an int of at least 1"),
        ("update=dps.Local()", "Local: missing a required argument: 'steps'"),
        ("update=dps.Async", "update: got <class 'dps.training.update_modes.Async'>"),
        ("update=dps.Bounded(-1)", "staleness is an int of at least 0"),
        ("update=dps.Async(staleness=1)", "Async: got staleness, which it does not take"),
        ("durability='standby'", "durability 'standby' is not there yet"),
        ("durability='log'", "durability 'log' is not there yet"),
        ("durability='sometimes'", "durability: got 'sometimes', wanted 'none'"),
        ("partitioner=lambda shape, dtype: 0", "partition of 'w', shape (4, 2): got 0"),
        ("partitioner=lambda shape, dtype: -2", "got -2"),
        ("partitioner=lambda shape, dtype: 2.0", "got 2.0"),
        ("partitioner=lambda shape, dtype: 5", "wanted a number of parts from 1 to 4"),
        ("partitioner=lambda shape, dtype: None", "got None"),
        ("partitioner=fails", "raised OSError: no lamp here"),
        ("partitioner=3", "partition of 'w': 3 raised TypeError"),
        ("placement=lambda name, shape, dtype: 1", "placement of 'w': got 1"),
        ("placement=lambda name, shape, dtype: 'ps'", "got 'ps'"),
        ("placement=fails", "raised OSError: no lamp here"),
        ("placement='greedy'", "ps_strategy: got 'greedy', wanted a callable"),
        ("hooks=[dps.StopAtStep]", "got the class StopAtStep"),
        ("hooks=[dps.StopAtStep(last_step=-3)]", "got last_step=-3"),
        ("timeout=0", "timeout: got 0, wanted seconds above 0"),
        ("timeout='long'", "timeout: got 'long'"),
        ("keep_checkpoints=0", "keep_checkpoints: got 0"),
        ("checkpoint_dir=7", "checkpoint_dir: got 7, wanted a path"),
        ("checkpoint_dir=''", "checkpoint_dir: got '', wanted a path, or None for no checkpoints"),
    ],
)
def test_settings_that_make_no_sense(
    settings: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(settings, tmp_path) == 2
    assert words in one_line(capsys)


def test_a_hook_that_raises_is_the_programs_own_failure_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("hooks=[Broken()]", tmp_path) == 1
    assert one_line(capsys) == "dps: worker:0: hook Broken.before_run raised OSError: no lamp here\n"


def test_an_update_mode_that_is_not_known_is_told_before_anything_is_started() -> None:
    words = "^update='synch' is not known; wanted 'async', 'sync', 'sync:sum', 'bounded:S' or 'local:H'$"
    with pytest.raises(ConfigError, match=words):
        dps.LocalCluster(update="synch")
    with pytest.raises(ConfigError, match=words):
        dps.simulate(lambda server: None, update="synch")
    with pytest.raises(ConfigError, match=words):
        dps.Server.create_local_server(update="synch")


def test_what_dps_never_had_is_an_ordinary_attribute_error() -> None:
    assert not hasattr(dps, "Kernel") and not hasattr(dps.optim, "Lion")


def test_the_whole_command_tells_it_the_same_way(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM.format(settings="partitioner=lambda shape, dtype: 0"))
    done = subprocess.run(
        [sys.executable, "-m", "dps.role", "--job", "worker", "--program", "train.py"],
        capture_output=True, text=True, cwd=tmp_path, env=os.environ, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    said = [line for line in done.stderr.splitlines() if "waits for" not in line]  # a busy machine starts the ps late
    assert len(said) == 1 and said[0].startswith("dps: partition of 'w'")
