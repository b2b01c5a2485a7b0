"""The `dps` command: what each part prints, and how mistakes end."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dps
from dps import cli, role
from dps.launch.commands import operating as asking
from dps.launch.supervision import output
from dps.process.flags import guarded
from dps.transport.keys import files as key_files


def exit_code(*argv: str) -> int:
    try:
        return cli.main(argv)
    except SystemExit as error:
        assert isinstance(error.code, int)
        return error.code


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "COMMAND"),
        (["fly"], "dps has no command 'fly'; wanted one of launch, status, "),
        (["statu"], "dps has no command 'statu'; did you mean 'status'? dps --help lists the arguments\n"),
        (["keys", "nwe", "x"], "dps keys has no command 'nwe'; did you mean 'new'? dps keys --help"),
        (["launch", "--on", "slrum", __file__], "--on: got 'slrum'; did you mean 'slurm'? dps launch --help"),
        (["logs", "--folow"], "--folow is not an argument of dps logs; did you mean --follow? dps logs --help"),
        (["launch"], "program"),
        (["launch", "--workers", "0", "train.py"], "--workers 0; wanted --workers from 1"),
        (
            ["launch", "--datasets", "2", "train.py"],
            "got --datasets 2 and nothing to serve; wanted --dataset FILE:NAME",
        ),
        (
            ["launch", "--dataset", "feed.py", "train.py"],
            "got --dataset feed.py, wanted FILE:NAME, a dataset or a function",
        ),
        (["launch", "--dataset", "feed.py:x", "--datasets", "0", "train.py"], "got --datasets 0; wanted at least one"),
        (["launch", "--dataset", "no-feed.py:x 3", __file__], "no-feed.py: no such file"),
        (["launch", "--workers", "-1", "train.py"], "--workers -1"),
        (["launch", "--ps", str(10**22), "train.py"], f"got {10**22} tasks of a job; wanted at most 100000"),
        (["launch", "nowhere.py"], "nowhere.py: no such file"),
        (
            ["launch", __file__, "--steps", "3"],
            "--steps is not an argument of dps launch; arguments of test_cli.py go after --: "
            f"dps launch {__file__} -- --steps 3\n",
        ),
        (
            ["launch", "--workers", "3", __file__, "--steps=3", "--ps", "2", "--", "--rate", "1"],
            "--steps is not an argument of dps launch; arguments of test_cli.py go after --: "
            f"dps launch --workers 3 {__file__} --ps 2 -- --steps=3 --rate 1\n",
        ),
        (
            ["launch", "--steps", "3", __file__],
            "--steps is not an argument of dps launch; dps launch --help lists them",
        ),
        (["status", "--steps"], "--steps is not an argument of dps status; dps status --help"),
        (["launch", "--worker", "2", __file__], "--worker is not an argument of dps launch"),
        (["kill", "1", "--grace", "nan"], "got --grace nan; wanted seconds from 0"),
        (["launch", "--update", "often", __file__], "--update 'often' is not known"),
        (["launch", "--threads", "all", __file__], "got 'all' threads"),
        (["launch", "--restarts", "-1", __file__], "got --restarts -1; wanted a whole number from 0"),
        (["simulate", "nowhere:train"], "no module 'nowhere'"),
        (["status", "--chief", "nonsense"], "nonsense"),
        (["status", "--chief", "a:1", "b:2"], "got b:2 and --chief a:1; give one run's number or one address"),
        (["status", "--chief", "a:1", "4"], "got 4 and --chief a:1"),
        (["keys", "new", __file__], "cannot write to"),
        (["init", "experiment"], "got 'experiment'; wanted a name that ends in .yaml, as experiment.yaml"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert exit_code(*argv) == 2
    told = capsys.readouterr().err
    assert told.startswith("dps: ") and told.count("\n") == 1
    assert words in told


def test_help_lists_commands_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    for command in cli.parser()._subparsers._group_actions[0].choices:  # type: ignore[union-attr]
        assert f" dps {command}" in text, "each has an example"
    for words in ("launch", "bench", "doctor", "keys", "status", "simulate", "3 a task was lost", "5 refused"):
        assert words in text


def test_the_help_of_each_command_has_an_example() -> None:
    for name, command in cli.parser()._subparsers._group_actions[0].choices.items():  # type: ignore[union-attr,attr-defined]
        assert name == "bench" or f"dps {name}" in str(command.epilog), name


def test_status_shows_the_chief_the_workers_and_a_row_for_each_ps(capsys: pytest.CaptureFixture[str]) -> None:
    with dps.Server.create_local_server() as server:
        params = {"w": np.zeros((250, 1000), np.float32)}
        with dps.Session(server, params, optimizer=dps.optim.SGD(1.0)) as session:
            session.push({"w": np.ones((250, 1000), np.float32)})
            assert exit_code("status", "--chief", server.target) == 0
            chief, live, waiting, *_, ps = capsys.readouterr().out.splitlines()
            assert exit_code("status", server.target, "--json") == 0
            found = json.loads(capsys.readouterr().out)
    assert found["ps"]["0"]["step"] == 1 and found["live"] == ["worker:0"] and found["address"] == server.target
    assert chief.startswith(f"chief at {server.target}: training; run epoch 1")
    assert (live, waiting) == ("workers live: worker:0", "workers waiting: none")
    step_version_mb = ps.split()[3:6]
    assert ps.split()[0] == "0" and step_version_mb == ["1", "1", "1.0"]


def test_status_says_of_a_ps_without_variables_that_it_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    def look(server: dps.Server) -> None:
        with dps.Session(server, {"w": np.zeros(3, np.float32)}, optimizer=dps.optim.SGD(1.0)):
            assert exit_code("status", "--chief", server.target) == 0

    with dps.LocalCluster(ps=2, workers=1, processes=False) as local:
        local.run(look).wait()
    *_, first, second = capsys.readouterr().out.splitlines()
    assert first.split()[2] == "ready" and " has no variables " in second


def test_status_of_a_chief_that_is_not_there_is_exit_code_4(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ANSWER_S", 0.2)
    with dps.Server.create_local_server() as server:
        gone = server.target
    assert exit_code("status", "--chief", gone) == 4
    said = capsys.readouterr().err
    assert f"no chief answered at {gone} for 0.2 s; is a run there? dps list has those of dps launch\n" in said


@pytest.mark.parametrize(
    "command",
    ["doctor --chief nowhere.lab:1", "status nowhere.lab:1", "kill nowhere.lab:1", "token --chief nowhere.lab:1"],
)
def test_a_name_without_an_address_is_one_line_and_exit_code_2_of_every_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    key_files.new(str(tmp_path / "keys"))
    monkeypatch.setenv("DPS_KEYS", str(tmp_path / "keys"))
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert exit_code(*command.split()) == 2
    assert role.main(["--job", "ps", "--chief", "nowhere.lab:1"]) == 2
    said = "dps: host 'nowhere.lab' has no address (Name or service not known); check the name, or give its number\n"
    assert capsys.readouterr().err == 2 * said


def test_doctor_names_packages_and_whether_a_node_can_listen(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("doctor") == 0
    text = capsys.readouterr().out
    assert f"numpy {np.__version__}" in text and "a node can listen on 127.0.0.1" in text
    assert "shared between processes of this machine" in text


def test_simulate_without_greenlet_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text("def train(server): ...\n")
    code = "import sys; sys.modules['greenlet'] = None; sys.argv[1:] = ['simulate', 'loop.py:train']\n"
    code += "from dps import cli; cli.run()"
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "dps: the simulator needs greenlet, which is not installed: pip install 'dps[sim]'\n"


def test_simulate_runs_a_function_and_prints_what_came_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("greenlet")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "program_simulated.py").write_text(
        "import dps, numpy as np\n"
        "def train(server):\n"
        "    hooks = [dps.StopAtStep(last_step=3)]\n"
        "    with dps.Session(server, {'a': np.zeros(2)}, optimizer=dps.optim.SGD(1.0), hooks=hooks) as session:\n"
        "        while not session.should_stop():\n"
        "            session.push({'a': np.ones(2)})\n"
        "        return float(session.pull()['a'][0])\n"
        "def fail(server):\n"
        "    raise OSError('disk')\n"
        "def writes(server):\n"
        "    hooks = [dps.SummarySaver('logs')]\n"
        "    with dps.Session(server, {'a': np.zeros(2)}, optimizer=dps.optim.SGD(1.0), hooks=hooks) as session:\n"
        "        session.push({'a': np.ones(2)})\n"
    )
    file = str(tmp_path / "program_simulated.py")
    assert exit_code("simulate", f"{file}:train", "--workers", "2", "--update", "sync", "--seed", "4") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("simulated ") and "; all tasks ended well; calibration: shipped (" in lines[0]
    assert lines[1:] == ["worker:0 returned -3.0", "worker:1 returned -3.0"]
    assert exit_code("simulate", f"{file}:fail") == 1
    assert "worker:0: OSError: disk" in capsys.readouterr().out
    assert exit_code("simulate", f"{file}:writes", "--workers", "1", "--save", str(tmp_path / "saved")) == 0
    assert f"saved {tmp_path}/saved/logs/summaries.jsonl" in capsys.readouterr().out.splitlines()
    assert (tmp_path / "saved/logs/summaries.jsonl").read_bytes()


def completed_by_bash(script: str, *words: str) -> set[str]:
    """What bash offers for the last of these words."""
    typed = " ".join(f"'{word}'" for word in words)
    code = (
        f"{script}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _shtab_dps; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    return set(subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_bash_completes_commands_flags_and_programs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("shtab")
    assert exit_code("completion", "bash") == 0
    script = capsys.readouterr().out
    assert completed_by_bash(script, "dps", "la") == {"launch"}
    assert completed_by_bash(script, "dps", "launch", "--wo") == {"--workers"}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trainer.py").touch()
    assert completed_by_bash(script, "dps", "launch", "tr") == {"trainer.py"}
    monkeypatch.setenv("DPS_RUNS", str(tmp_path / "runs"))
    for number in (1, 2, 13):
        (tmp_path / "runs" / str(number)).mkdir(parents=True)
    for command in ("logs", "status", "monitor", "kill"):
        assert completed_by_bash(script, "dps", command, "") == {"1", "2", "13"}
    assert completed_by_bash(script, "dps", "logs", "1") == {"1", "13"}
    assert completed_by_bash(script, "dps", "launch", "--resume", "2") == {"2"}
    assert exit_code("completion", "zsh") == 0
    assert capsys.readouterr().out.startswith("#compdef dps")


def test_completion_names_the_extra_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert exit_code("completion", "bash") == 2
    wanted = "dps: dps completion needs shtab, which is not installed; pip install 'dps[completion]'\n"
    assert capsys.readouterr().err == wanted
    assert exit_code("completion", "fish") == 2


def test_python_m_dps_is_the_command() -> None:
    command = [sys.executable, "-m", "dps"]
    ended = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"dps {dps.__version__}\n", "")
    ended = subprocess.run([*command, "fly"], capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and ended.stderr.startswith("dps: ") and ended.stderr.count("\n") == 1


def test_a_reader_that_goes_leaves_no_traceback() -> None:
    ended = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m dps completion zsh | head -1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.stderr == "" and ended.returncode in (0, 141, 2), ended


@pytest.mark.parametrize(
    "command", ["list", "status 1", "logs 1", "kill 1", "monitor 1", "prune --keep 1", "launch --resume 1"]
)
def test_a_file_in_place_of_the_folder_of_runs_is_one_line_and_exit_code_2(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hosts"
    file.write_text("")
    monkeypatch.setenv("DPS_RUNS", str(file))
    assert exit_code(*command.split()) == 2
    wanted = f"dps: the runs in {file} cannot be read: Not a directory; set DPS_RUNS to the folder of your runs\n"
    assert capsys.readouterr().err == wanted


def test_a_damaged_file_of_a_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "4").mkdir()
    (tmp_path / "4" / "run.json").write_text("{")
    monkeypatch.setenv("DPS_RUNS", str(tmp_path))
    assert exit_code("list") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"dps: {tmp_path}/4/run.json is damaged (") and said.count("\n") == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("buffering", [-1, 1])
def test_output_on_a_full_disk_is_one_line_and_exit_code_2(
    buffering: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DPS_RUNS", str(tmp_path))
    with open("/dev/full", "w", buffering) as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert exit_code("list") == 2
        monkeypatch.undo()
    wanted = "dps: the output or a file of dps: No space left on device; make room there, or name a folder of another "
    assert capsys.readouterr().err == f"{wanted}disk\n"


def test_closed_output_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPS_RUNS", str(tmp_path))
    monkeypatch.setattr(sys, "stdout", None)
    assert exit_code("list") == 0


@pytest.mark.parametrize("uses", [0, 10**22])
def test_a_token_for_too_many_is_one_line_and_exit_code_2(uses: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("token", "--uses", str(uses)) == 2
    assert capsys.readouterr().err == f"dps: got --uses {uses}; wanted 1 to 10000\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EROFS, "Read-only file system", "/a"), "/a: Read-only file system; name a folder that can be"),
        (OSError("no words"), "no words"),
        (OverflowError("int too big"), "a number is too large (int too big); give a smaller one"),
        (dps.TaskLost("ps:0 was lost"), "ps:0 was lost"),
    ],
)
def test_no_error_of_a_command_ends_in_a_traceback(
    error: Exception, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise error

    assert guarded(work) == (3 if isinstance(error, dps.TaskLost) else 2)
    told = capsys.readouterr().err
    assert told.startswith(f"dps: {said}") and told.count("\n") == 1


def test_people_are_told_what_takes_more_than_a_second(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "SLOW_S", 0.01)
    monkeypatch.setattr(asking, "ANSWER_S", 0.2)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert exit_code("status", "127.0.0.1:9") == 4
    first, second = capsys.readouterr().err.splitlines()
    assert first == "dps: asks the chief at 127.0.0.1:9 and its ps ..." and "no chief answered" in second
    assert exit_code("list") == 0
