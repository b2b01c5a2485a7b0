"""From the exit codes of a run's tasks to its own, and the last line."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from dps.launch.engines.slurm import NOTICE
from dps.launch.supervision.outcome import OVER, TEARDOWN, outcome
from dps.launch.supervision.supervisor import ErrorCollector

SERVERS = {"chief": 0, "ps:0": 0}


@pytest.mark.parametrize(
    ("codes", "crashed", "code", "line"),
    [
        ({}, {}, 0, ""),
        ({"worker:0": 0, "worker:1": 0}, {"ps:0": -9}, 0, ""),
        ({"worker:0": 7}, {}, 1, "the run failed: worker:0 ended with exit code 7"),
        ({"worker:0": 0, "evaluator:0": 7}, {}, 1, "the run failed: evaluator:0 ended with exit code 7"),
        ({"worker:0": 0, "worker:1": -9}, {}, 1, "the run failed: worker:1 was killed (SIGKILL), exit code 137"),
        (
            {"worker:0": 5, "worker:1": -11, "worker:2": 5},
            {},
            5,
            "the run failed: worker:0, worker:2 ended with exit code 5; worker:1 was killed (SIGSEGV), exit code 139",
        ),
        (
            {f"worker:{task}": 1 for task in range(64)},
            {},
            1,
            "the run failed: worker:0, worker:1, worker:2 and 61 more ended with exit code 1",
        ),
        (
            {"chief": 3, "ps:0": 3, "worker:0": -9},
            {},
            1,
            "the run failed: worker:0 was killed (SIGKILL), exit code 137",
        ),
        ({"worker:0": 0, "worker:1": 3}, {}, 3, "the run has ended without worker:1, exit code 3"),
        (
            {"worker:0": 7, "worker:1": 3},
            {},
            3,
            "the run failed: worker:0 ended with exit code 7; worker:1 ended with exit code 3",
        ),
        ({"chief": 1, "ps:0": 1, "worker:0": 7}, {}, 1, "the run failed: worker:0 ended with exit code 7"),
        ({"chief": 1, "ps:0": 1, "worker:0": 0}, {}, 1, "the run failed: chief, ps:0 ended with exit code 1"),
        ({"chief": 3, "ps:0": 3, "worker:0": 3}, {}, 3, "the run is over: chief ended with exit code 3"),
        ({"chief": 3, "ps:0": -9, "worker:0": 3}, {"ps:0": -9}, 3, "the run is over: ps:0 was lost (SIGKILL)"),
        ({"chief": 3, "ps:0": 3, "worker:0": 3}, {"ps:0": -9}, 3, "the run is over: ps:0 was lost (SIGKILL)"),
        (
            {"chief": -9, "ps:0": 3, "worker:0": 1},
            {"ps:0": -9, "chief": -9},
            3,
            "the run is over: chief was lost (SIGKILL)",
        ),
        ({"chief": 3, "worker:0": -9}, {"ps:0": -9}, 1, "the run failed: worker:0 was killed (SIGKILL), exit code 137"),
    ],
)
def test_the_runs_exit_code_and_its_last_line(
    codes: dict[str, int], crashed: dict[str, int], code: int, line: str
) -> None:
    assert outcome(SERVERS | codes, crashed) == (code, line)


SILENT = "ps:1 was silent for 1.0 s and did not come back within 50 s"


@pytest.mark.parametrize(
    ("codes", "crashed", "reason", "line"),
    [
        ({}, {}, SILENT, f"the run is over: {SILENT}"),
        ({}, {"ps:0": -9}, SILENT, f"the run is over: {SILENT}"),
        ({}, {"ps:1": -9, "ps:0": -9}, SILENT, "the run is over: ps:1 was lost (SIGKILL)"),
        ({"ps:0": -11}, {"ps:0": -11}, SILENT, "the run is over: ps:0 was lost (SIGSEGV)"),
        ({}, {}, "no worker finished: worker:0 was silent for 1.0 s", None),
    ],
)
def test_a_run_whose_task_was_lost_ends_with_the_chiefs_reason(
    codes: dict[str, int], crashed: dict[str, int], reason: str, line: str | None
) -> None:
    tasks = SERVERS | {"chief": 3, "ps:1": 3, "worker:0": 3} | codes
    assert outcome(tasks, crashed, reason) == (3, line or f"the run is over: {reason}")


def test_a_failed_worker_is_named_with_the_end_of_its_traceback() -> None:
    tails = ErrorCollector()
    lines = (
        "before", "Traceback (most recent call last):", '  File "/a/train.py", line 3, in <module>', "    load()",
        '  File "/a/data.py", line 2, in load', "    raise RuntimeError('no data')", "RuntimeError: no data", "after",
    )  # fmt: skip
    for line in lines:
        tails.read_line("worker:1", line)
    codes = SERVERS | {"worker:0": 5, "worker:1": 1, "worker:2": 1}
    assert outcome(codes, {}, "", tails.found) == (
        5,
        "the run failed: worker:0 ended with exit code 5; "
        "worker:1, worker:2 ended with exit code 1: RuntimeError: no data (data.py, line 2)",
    )


def test_the_notice_of_slurm_which_all_processes_of_a_step_get_is_not_the_word_that_the_run_has_ended() -> None:
    notice = signal.Signals(int(NOTICE.partition("@")[0]))
    assert notice not in (OVER, TEARDOWN, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    hears = "from dps.launch.programs.program import handle_run_end; handle_run_end()"
    program = f"import os; {hears}; os.kill(os.getpid(), {notice:d})"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0, "tasks ignore it"


def test_a_syntax_error_of_a_program_is_named_though_it_has_no_traceback() -> None:
    tails = ErrorCollector()
    for line in ('  File "/a/train.py", line 3', "    def f(:", "          ^", "SyntaxError: invalid syntax"):
        tails.read_line("worker:0", line)
    assert tails.found == {"worker:0": "SyntaxError: invalid syntax (train.py, line 3)"}


def test_a_place_that_no_error_follows_is_no_error() -> None:
    tails = ErrorCollector()
    for line in ('  File "/a/train.py", line 3 in load', "", "Current thread 0x7f (most recent call first):", "loaded"):
        tails.read_line("worker:0", line)
    assert tails.found == {}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["dps: --program x: no such file", "the end"], ": --program x: no such file"),
        (["usage: train.py [--steps N]", "train.py: error: the following arguments are required: --steps"],
         ": train.py: error: the following arguments are required: --steps"),
        (["dps: stopping after this step", "nothing to do"], " of the program itself"),
        ([], " of the program itself"),
    ],
)  # fmt: skip
def test_exit_code_2_of_a_program_is_told_from_bad_arguments(lines: list[str], words: str) -> None:
    tails = ErrorCollector()
    for line in lines:
        tails.read_line("worker:0", line)
    found = outcome(SERVERS | {"chief": 2, "worker:0": 2}, {}, "", tails.found, tails.refused)
    assert found == (2, f"the run failed: worker:0 ended with exit code 2{words}")
