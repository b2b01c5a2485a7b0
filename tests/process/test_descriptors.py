"""Too few descriptors: one clear line and exit code 2, wherever it is noticed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest
import zmq

import dps
from dps import cli, role
from dps.errors import ConfigError, OutOfDescriptors
from dps.process import descriptors
from dps.transport.sockets.dealer import Dealer


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may open 40, and no more may be asked for."""
    monkeypatch.setattr(descriptors, "_limits", lambda: (40, 40, -1))


def limited(flags: str, *command: str) -> subprocess.CompletedProcess[str]:
    """A command of a shell that has set the limit."""
    shell = f'ulimit {flags} && exec "$0" "$@"'
    return subprocess.run(["sh", "-c", shell, *command], capture_output=True, text=True, check=False, timeout=60)


def test_a_task_needs_more_the_more_others_there_are() -> None:
    assert [descriptors.needed(job, 1, 1) for job in ("chief", "ps", "worker")] == [44, 53, 63]
    assert descriptors.needed("chief", 2, 8) == 44 + 5 + 7 * 6
    assert descriptors.needed_to_launch(1, 1) == 63 and descriptors.needed_to_launch(2, 200) == descriptors.needed(
        "chief", 2, 200
    )


@pytest.mark.parametrize(("need", "advice"), [(41, "ulimit -n 1024"), (1234, "ulimit -n 2048")])
@pytest.mark.usefixtures("limit")
def test_a_limit_that_is_too_low_is_told_with_what_is_needed_and_what_to_try(need: int, advice: str) -> None:
    descriptors.check("ps:0", 40)
    with pytest.raises(ConfigError) as raised:
        descriptors.check("ps:0", need)
    found = "ps:0 may open 40 descriptors (files, sockets, pipes)"
    assert str(raised.value) == f"{found} and needs about {need}; raise the limit first: {advice}"


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize(
    "argv", [["chief", "--chief", "127.0.0.1:0"], ["ps"], ["worker", "--program", __file__]], ids=lambda argv: argv[0]
)
def test_a_task_says_so_before_it_begins(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert role.main(["--job", *argv]) == 2
    told = capsys.readouterr().err
    assert told.startswith("dps: this task may open 40 descriptors") and told.count("\n") == 1


@pytest.mark.usefixtures("limit")
def test_the_launcher_says_so_for_all_its_tasks_and_starts_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["launch", "--ps", "2", __file__]) == 2
    told = capsys.readouterr().err
    assert told.startswith("dps: each task of this run may open 40 descriptors") and "about 71;" in told
    assert told.count("\n") == 1


@pytest.mark.usefixtures("limit")
def test_a_server_in_a_program_of_ones_own_says_so_too() -> None:
    with pytest.raises(ConfigError, match="worker:3 may open 40 .* needs about 63"):
        dps.Server(None, "worker", 3, chief="127.0.0.1:1")


def test_in_a_shell_with_ulimit_20_a_launch_is_one_line_and_exit_code_2() -> None:
    ended = limited("-n 20", sys.executable, "-m", "dps.cli", "launch", __file__)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "may open 20 descriptors" in ended.stderr and ended.stderr.count("\n") == 1


def test_a_soft_limit_is_raised_where_the_hard_one_allows_it() -> None:
    program = (
        "import resource; from dps.process import descriptors; before = resource.getrlimit(resource.RLIMIT_NOFILE)[0]\n"
        "descriptors.check('it', 61); print(before, resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 61)"
    )
    assert limited("-Sn 40", sys.executable, "-c", program).stdout == "40 True\n"


def test_the_last_descriptor_is_an_error_of_its_own_and_never_ends_the_process() -> None:
    program = (
        "import resource, sys; from dps.transport.runtime import RealRuntime; from dps.errors import OutOfDescriptors\n"
        "limit, made, runtime = int(sys.argv[1]), [], RealRuntime()\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))\n"
        "try:\n    while True:\n        made.append(runtime.endpoint('127.0.0.1:0'))\n"
        "        made.append(runtime.endpoint()); made[-1].connect(made[-2].address)\n"
        "except OutOfDescriptors as error: print(error)\n"
        "[each.close(0) for each in made]"
    )
    for limit in (16, 36, 47):  # libzmq alone aborts at 25 and 36
        ended = subprocess.run(
            [sys.executable, "-c", program, str(limit)], capture_output=True, text=True, check=False, timeout=60
        )
        assert f"used up its limit of {limit};" in ended.stdout and "ulimit -n 1024" in ended.stdout
        assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), zmq.ZMQError(errno.EMFILE)])
def test_a_node_that_runs_out_of_them_ends_its_task_with_2_and_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(dealer: Dealer) -> None:
        raise error

    monkeypatch.setattr(Dealer, "open", refuse)
    server = dps.Server(None, "worker", 0, chief="127.0.0.1:1")
    try:
        assert server.join(20.0) == 2
        assert server.reason.startswith("worker:0: a connection to 127.0.0.1:1 needs a descriptor")
    finally:
        server.stop()
    assert len(caplog.messages) == 1 and "Traceback" not in caplog.text


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(FileNotFoundError), descriptors.opening("nothing"):
        os.open("/nowhere/at/all", os.O_RDONLY)
    with pytest.raises(OutOfDescriptors), descriptors.opening("a file"):
        raise OSError(errno.ENFILE, "Too many open files in system")
