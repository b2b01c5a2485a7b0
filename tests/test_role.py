"""One task as a process: where its settings come from, what a mistake says, what its exit code tells."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dps
from dps import role
from dps.cluster.address import parse
from dps.errors import ConfigError
from dps.launch.programs.program import exit_code as code_of
from dps.launch.programs.program import run_program
from dps.process import config
from dps.role import DEFAULT_CHIEF
from dps.task.served_task import serving
from dps.transport.current import runtime

TWO_JOBS = '{"ps": ["127.0.0.1:2222"], "worker": ["127.0.0.1:2230", "127.0.0.1:2231"]}'


def exit_code(*argv: str) -> int:
    """What the process's exit code would be, in this process."""
    try:
        return role.main(argv)
    except SystemExit as error:
        return code_of(error)


def start(*argv: str, cwd: Path | None = None, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "dps.role", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **environ},
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# -- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "which job is this task of"),
        (["--bogus"], "--bogus is not an argument of python -m dps.role; python -m dps.role --help lists"),
        (
            ["--job", "worker", "--program", "train.py", "--steps", "3"],
            "--steps is not an argument of python -m dps.role; arguments of train.py go after --: "
            "python -m dps.role --job worker --program train.py -- --steps 3",
        ),
        (["--job", "ps", "--log-level", "loud"], "LOUD"),
        (["--job", "boss"], "--job boss cannot be run"),
        (["--job", "evaluator"], "an evaluator runs a program that follows the run"),
        (["--resolver", "lsf"], "resolver: got 'lsf', wanted one of"),
        (["--jobs", "ps=1"], "got --jobs without --resolver"),
        (["--resolver", "skypilot", "--jobs", "ps"], "jobs: got 'ps', wanted names with numbers"),
        (["--resolver", "skypilot"], "SkyPilot: got no SKYPILOT_NODE_IPS"),
        (["--job", "worker", "--task", "0"], "--serve MODULE); got neither"),
        (["--job", "worker", "--task", "-1", "--program", "x.py"], "got --task -1"),
        (["--job", "chief", "--ps", str(10**22)], f"got --ps {10**22}; wanted a whole number from 0 to 100000"),
        (["--job", "chief", "--workers", "-2"], "got --workers -2"),
        (["--job", "ps", "--update", f"bounded:{10**22}"], "staleness is an int of at most 2**53"),
        (["--job", "worker", "--program", os.path.dirname(__file__)], "a folder without __main__.py; wanted FILE"),
        (["--job", "ps", "--program", "train.py"], "a ps runs no program"),
        (["--job", "chief", "--chief", "127.0.0.1"], "give host and port, such as 127.0.0.1:2222"),
        (["--job", "ps", "--chief", "nonsense"], "nonsense"),
        (["--job", "chief", "--chief", "127.0.0.1:0", "--update", "often"], "--update 'often' is not known"),
        (["--job", "ps", "--task", "7", "--cluster", TWO_JOBS], "7"),
        (["--job", "ps", "--chief", "127.0.0.1:1", "--device", "gpu:7"], "got GPU:7"),
        (["--job", "ps", "--chief", "127.0.0.1:1", "--device", "tape"], "'tape'"),
        (["--job", "ps", "--chief", "127.0.0.1:1", "--threads", "all"], "'all'"),
        (["--job", "chief", "--serve", "json"], "a chief has no --serve, which is for a worker; leave it out"),
        (["--job", "worker", "--program", "x.py", "--threads", "2"], "a worker has no --threads, which is for a ps"),
        (["--job", "ps", "--task", "0", "--cluster", "cluster.ini"], "cluster.ini"),
    ],
)
def test_a_mistake_in_the_arguments_is_one_line_and_exit_code_2(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*argv) == 2
    told = capsys.readouterr().err
    assert told.startswith("dps: ") and told.count("\n") == 1
    assert words in told


def test_an_address_that_is_taken_is_exit_code_2_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    holder = runtime().endpoint("127.0.0.1:0")
    try:
        assert exit_code("--job", "chief", "--bind", holder.address) == 2
    finally:
        holder.close(0)
    told = capsys.readouterr().err
    assert holder.address in told and told.count("\n") == 1


def test_help_lists_the_exit_codes_and_loads_nothing_heavy() -> None:
    program = (
        "import sys\nfrom dps import role\nprint(' '.join(role.parser().format_help().split()))\n"
        "print([m for m in ('numpy', 'zmq', 'numba', 'msgpack') if m in sys.modules])"
    )
    text, loaded = subprocess.check_output([sys.executable, "-c", program], text=True).splitlines()
    for words in (
        "0 done",
        "1 the program failed",
        "2 bad arguments",
        "3 a task was lost",
        "4 a deadline",
        "5 refused",
    ):
        assert words in text
    assert loaded == "[]"


# -- where the settings come from -------------------------------------------------------------------------------------


def environment(*argv: str) -> dict[str, str]:
    return role.task_environment(role.parser().parse_args(argv))


def test_the_cluster_flag_goes_before_hosts_and_those_before_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"cluster": {"ps": ["127.0.0.1:3"], "worker": ["127.0.0.1:4"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(there))
    hosts = ("--ps_hosts", "127.0.0.1:5", "--worker_hosts", "127.0.0.1:6,127.0.0.1:7")
    found = environment("--job_name", "ps", "--task_index", "0", "--cluster", TWO_JOBS, *hosts)
    assert json.loads(found["DPS_CLUSTER"]) == json.loads(TWO_JOBS)
    found = environment("--job_name", "ps", "--task_index", "0", *hosts)
    assert json.loads(found["DPS_CLUSTER"]) == {"ps": ["127.0.0.1:5"], "worker": ["127.0.0.1:6", "127.0.0.1:7"]}
    found = environment()
    assert json.loads(found["DPS_CLUSTER"]) == there["cluster"]
    assert (found["DPS_JOB"], found["DPS_TASK"], found["DPS_CHIEF"]) == ("worker", "0", "")


def test_with_the_chiefs_address_only_the_task_may_be_left_out() -> None:
    found = environment("--job", "worker", "--chief", "127.0.0.1:7000")
    assert (found["DPS_CHIEF"], found["DPS_TASK"], "DPS_BIND" in found) == ("127.0.0.1:7000", "", False)


def test_a_task_that_the_environment_names_has_its_settings_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {
        "DPS_JOB": "ps", "DPS_TASK": "1", "DPS_CHIEF": "node1:7000", "DPS_WORKERS": "4", "DPS_PS": "2",
        "DPS_UPDATE": "sync", "DPS_DEVICE": "cpu", "DPS_THREADS": "2", "DPS_CHECKPOINT_ROOT": "/kept",
    }  # fmt: skip
    for name, value in there.items():
        monkeypatch.setenv(name, value)
    assert there.items() <= environment().items()
    flags = ("--chief", "node2:1", "--task", "0", "--ps", "3", "--checkpoint-root", "/other")
    changed = {"DPS_CHIEF": "node2:1", "DPS_TASK": "0", "DPS_PS": "3", "DPS_CHECKPOINT_ROOT": "/other"}
    assert (there | changed).items() <= environment(*flags).items()
    found = environment("--job", "ps", "--task", "0")  # another task, such as one that a program of this one starts
    assert found == {
        "DPS_JOB": "ps", "DPS_TASK": "0", "DPS_CLUSTER": "", "DPS_CHIEF": DEFAULT_CHIEF, "DPS_CHECKPOINT_ROOT": "/kept",
    }  # fmt: skip


def test_an_empty_job_in_the_environment_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPS_JOB", "")
    with pytest.raises(ConfigError, match="which job is this task of"):
        environment()


@pytest.mark.parametrize("text", ["two", "100001", "9" * 30])
@pytest.mark.parametrize("name", ["DPS_TASK", "DPS_WORKERS", "DPS_PS"])
def test_a_number_in_the_environment_that_is_none_is_one_clear_error(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPS_JOB", "worker")
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigError, match=f"got {name}='{text}', wanted a number from 0 to 100000"):
        environment()


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("DPS_LAUNCHER", "abc", "the number of a process, which dps launch sets; leave it out"),
        ("DPS_LAUNCHER", "-1", "the number of a process"),
        ("NUMBA_NUM_THREADS", "0", "a whole number of threads from 1; numba reads it: set 1, or leave it out"),
        ("NUMBA_NUM_THREADS", "-1", "a whole number of threads from 1"),
        ("NUMBA_NUM_THREADS", "abc", "a whole number of threads from 1"),
    ],
)
def test_a_variable_that_is_no_number_is_named_in_one_line(name: str, value: str, wanted: str) -> None:
    """The lines were "invalid literal for int()" and "Number of threads specified must be > 0."."""
    task = start("--job", "ps", "--task", "0", "--chief", "127.0.0.1:1", **{name: value})
    out, err = task.communicate(timeout=60)
    assert (task.returncode, out) == (2, "")
    assert err.startswith(f"dps: got {name}={value!r}, wanted {wanted}") and err.count("\n") == 1


def test_where_a_task_listens_comes_from_its_flags_and_then_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = ("--bind", "eth0", "--advertise", "node1", "--ports", "5000-5100", "--trusted-network")
    wanted = {
        "DPS_BIND": "eth0", "DPS_ADVERTISE": "node1", "DPS_PORTS": "5000-5100", "DPS_TRUSTED_NETWORK": "1",
    }  # fmt: skip
    assert wanted.items() <= environment("--job", "ps", *given).items()
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)
    found = environment("--job", "ps", "--bind", "10.0.0.1:0")
    assert (wanted | {"DPS_BIND": "10.0.0.1:0"}).items() <= found.items()


def test_a_chief_that_listens_elsewhere_tells_others_the_address_that_it_was_given() -> None:
    found = environment("--job", "chief", "--chief", "node1:2220", "--bind", "0.0.0.0:2220")
    assert (found["DPS_BIND"], found["DPS_ADVERTISE"]) == ("0.0.0.0:2220", "node1:2220")


def test_a_chief_may_be_bound_without_a_port() -> None:
    assert environment("--job", "chief", "--bind", "lo")["DPS_BIND"] == "lo"
    assert environment("--job", "chief", "--bind", "0.0.0.0", "--chief", "node1:2220")["DPS_BIND"] == "0.0.0.0:2220"
    with dps.Server(None, "chief", 0, bind="127.0.0.1") as chief:
        assert parse(chief.address).port > 0


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("DPS_PORTS", "abc", "got --ports 'abc'; wanted FIRST-LAST, two ports from 1 to 65535, such as 5000-5100"),
        ("DPS_BIND", "127.0.0.1:x", "address: got '127.0.0.1:x', wanted"),
        ("DPS_KEYS", "/nowhere", "keys: cannot read /nowhere: No such file or directory"),
        ("DPS_TOKEN_FILE", "/nowhere", "cannot read a join token from /nowhere"),
    ],
)
def test_an_error_about_a_variable_names_it(
    name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    assert exit_code("--job", "worker", "--task", "0", "--serve", "math:sqrt") == 2
    told = capsys.readouterr().err
    assert told.startswith(f"dps: {says}") and told.endswith(f" ({name}={value})\n") and told.count("\n") == 1


def test_an_error_about_a_flag_names_no_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DPS_PORTS", "6000-6100")
    assert exit_code("--job", "ps", "--ports", "abc") == 2
    assert "DPS_PORTS" not in capsys.readouterr().err


def test_with_nothing_the_chief_is_at_port_2220_and_listens_there() -> None:
    assert environment("--job", "ps")["DPS_CHIEF"] == "127.0.0.1:2220"
    assert environment("--job", "chief")["DPS_BIND"] == "127.0.0.1:2220"


# -- programs ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the text of a program with arguments 5 and x; its exit code."""
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)

    def call(text: str, name: str = "program_trainer.py", verbose: bool = False, program: str = "") -> int:
        (tmp_path / name).write_text(text)
        return run_program(program or name, ["5", "x"], verbose)

    return call


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("import sys; assert (__name__, sys.argv[1:]) == ('__main__', ['5', 'x'])", 0, ""),
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit('no data')", 1, "no data\n"),
        ("import dps; raise dps.TaskLost('ps:1 is gone')", 3, "dps: ps:1 is gone\n"),
        ("import dps; raise dps.DeadlineExceeded('ps:0 is silent')", 4, "dps: ps:0 is silent\n"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_the_exit_code_tells_how_the_program_ended(
    run: Callable[..., int], text: str, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(text) == code
    assert capsys.readouterr().err == told


MAKE = "import numpy as np, dps\nserver = dps.Server.create_local_server()\nw = {'w': np.zeros((3, 2), np.float32)}\n"
OPEN = MAKE + "session = dps.Session(server, w, optimizer=dps.optim.SGD(1.0), timeout=10)\n"
SYNC = "dps.Session(server.target, w, optimizer=dps.optim.SGD(1.0), update=dps.SyncReplicas(), timeout=10)"
LISTED = "{'ps': ['127.0.0.1:2222'], 'worker': ['127.0.0.1:2223']}"
MISTAKES = {
    "no such job": (f"import dps; dps.Server({LISTED}, 'dataset', 0)", 2, "wanted one of this cluster"),
    "no such task": (f"import dps; dps.Server({LISTED}, 'ps', 3)", 2, "wanted an index of ps"),
    "no port": ("import dps; dps.Server({'ps': ['127.0.0.1']}, 'ps', 0)", 2, "127.0.0.1"),
    "beyond loopback": ("import dps; dps.Server({'worker': ['0.0.0.0:2222']}, 'worker', 0)", 5, "0.0.0.0"),
    "taken": (MAKE + "dps.Server({'worker': [server.address]}, 'worker', 0)", 2, "is taken"),
    "no optimizer": (MAKE + "dps.Session(server, w)", 2, "no optimizer for w"),
    "name": (MAKE + "dps.Session(server, {'a/b': w['w']}, optimizer=dps.optim.SGD(1.0))", 2, "cannot be a name"),
    "update mode": (OPEN + SYNC, 2, "SyncReplicas"),
    "not writable": (OPEN.replace("1.0)", "1.0), checkpoint_dir='/proc/run'"), 2, "/proc/run"),
    "other layout": (OPEN + "dps.Session(server.target, {'v': w['w']}, optimizer=dps.optim.SGD(1.0))", 2, "only one"),
    "shape": (
        OPEN + "session.push({'w': np.zeros((2, 2), np.float32)})",
        1,
        "ValueError: the gradient of w has shape (2, 2)",
    ),
    "dtype": (OPEN + "session.push({'w': np.zeros((3, 2))})", 1, "ValueError: the gradient of w is float64"),
    "gradient's name": (OPEN + "session.push({'v': w['w']})", 1, "no variable; there are w"),
    "NaN": (OPEN + "session.push({'w': w['w'] * np.nan})", 1, "ValueError: the gradient of w has NaN"),
    "nobody there": ("import dps; dps.Session('127.0.0.1:9', timeout=0.5)", 4, "127.0.0.1:9"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_program_ends_in_one_clear_line_and_its_exit_code(
    run: Callable[..., int], mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text, code, words = MISTAKES[mistake]
    try:
        ended = run(text + "\n")
    finally:
        for server in list(serving):
            server.stop()
    told = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("chief")]
    assert words in told[-1], told
    assert ended == code, told
    assert code == 1 or len(told) == 1


def test_the_programs_own_error_shows_its_own_frames_only(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("def f():\n    raise OSError('disk')\nf()\n") == 1
    told = capsys.readouterr().err
    assert told.splitlines()[1].strip().endswith("line 3, in <module>")
    assert told.endswith("OSError: disk\n") and "runpy" not in told and "role.py" not in told


def test_verbose_shows_where_one_of_our_errors_was_raised(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("import dps\nraise dps.TaskLost('gone')\n", verbose=True) == 3
    assert "Traceback" in capsys.readouterr().err


def test_a_program_may_be_a_module_or_a_function(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    text = "import sys\ndef main():\n    print('in', __name__, sys.argv[1])\nif __name__ == '__main__': main()\n"
    assert run(text, "program_one.py", program="program_one") == 0
    assert run(text, "program_two.py", program="program_two:main") == 0
    assert run(text, "program_three.py", program="program_three.py:main") == 0
    assert capsys.readouterr().out.splitlines() == ["in __main__ 5", "in program_two 5", "in program_three 5"]


@pytest.mark.parametrize("program", ["nowhere.py", "nowhere.at.all", "nowhere:main", "nowhere.py:main", "json:nothing"])
def test_a_program_that_is_not_there_is_one_line_and_exit_code_2(
    run: Callable[..., int], program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("", program=program) == 2
    told = capsys.readouterr().err
    assert program in told and told.count("\n") == 1


def test_a_module_that_the_program_lacks_is_the_programs_own_error(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("import nowhere_at_all", "program_lacking.py", program="program_lacking") == 1
    assert "No module named 'nowhere_at_all'" in capsys.readouterr().err


# -- processes --------------------------------------------------------------------------------------------------------


def test_a_chief_says_where_it_is_and_a_sigterm_ends_it_in_order() -> None:
    chief = start("--job", "chief", "--chief", "127.0.0.1:0", "--owned")
    said = line(chief)
    assert said.startswith("dps chief at 127.0.0.1:") and not said.endswith(":0")
    chief.send_signal(signal.SIGTERM)
    assert chief.communicate(timeout=60) == ("", "")
    assert chief.returncode == 0


def test_a_ps_without_a_task_says_its_name_when_the_chief_has_given_it_one() -> None:
    chief = start("--job", "chief", "--chief", "127.0.0.1:0")
    ps = start("--job", "ps", "--chief", line(chief).removeprefix("dps chief at "))
    try:
        said = line(ps)
        address = said.rpartition(" ")[2]
        if said == f"dps ps:? at {address}":  # it was faster than the chief
            said = line(ps)
        assert said == f"dps ps:0 at {address}"
    finally:
        for process in (ps, chief):
            process.terminate()
            process.communicate(timeout=60)
    assert (ps.returncode, chief.returncode) == (0, 0)


@pytest.mark.parametrize(
    ("first", "more"), [(signal.SIGTERM, ""), (signal.SIGINT, "; Ctrl-C once more ends the program at once")]
)
def test_the_first_signal_drains_a_program_and_the_second_ends_it(
    first: signal.Signals, more: str, tmp_path: Path
) -> None:
    (tmp_path / "loop.py").write_text(
        "import time\nfrom dps.process import config\nprint('begins')\n"
        "while not config.stop_requested.is_set(): time.sleep(0.01)\n"
        "print('drains')\nwhile True: time.sleep(0.01)\n"
    )
    worker = start("--job", "worker", "--program", "loop.py", cwd=tmp_path)
    assert line(worker) == "begins"
    worker.send_signal(first)
    assert line(worker) == "drains"
    worker.send_signal(signal.SIGINT)
    told = worker.communicate(timeout=60)[1]
    assert worker.returncode == 130
    assert told == f"dps: stopping after this step{more}\n"


def test_a_task_whose_launcher_is_gone_does_not_begin() -> None:
    orphan = start("--job", "chief", "--chief", "127.0.0.1:0", DPS_LAUNCHED="1", DPS_LAUNCHER="1")
    assert orphan.communicate(timeout=60) == ("", "")
    assert orphan.returncode == 1


# -- the chief's address on stdin -----------------------------------------------------------------------------------


def test_a_task_reads_the_chiefs_address_from_stdin() -> None:
    command = [sys.executable, "-u", "-m", "dps.role", "--job", "ps", "--task", "0", "--chief", "-"]
    ps = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert ps.stdin is not None
    ps.stdin.write("127.0.0.1:1\n")  # nobody is there: that is another matter
    ps.stdin.flush()
    told = line(ps)
    ps.kill()
    ps.communicate()
    assert told.startswith("dps ps:0 at 127.0.0.1:")


def test_a_task_that_gets_no_address_on_stdin_ends_with_one_line_and_exit_code_2() -> None:
    command = [sys.executable, "-m", "dps.role", "--job", "ps", "--chief", "-"]
    ended = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("dps: got --chief - and no address on stdin") and ended.stderr.count("\n") == 1


def test_a_launched_task_whose_run_does_not_begin_leaves_the_reason_to_the_launcher(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read, write = os.pipe()
    os.close(write)
    stdin = os.dup(0)
    os.dup2(read, 0)
    config.launched.set()
    try:
        with pytest.raises(SystemExit) as ended:
            role.chief_from_stdin("worker")
    finally:
        config.launched.clear()
        os.dup2(stdin, 0)
        os.close(stdin)
        os.close(read)
    assert ended.value.code == 3 and capsys.readouterr().err == ""
