"""All tasks of a run as processes: what is printed, who is started again, what the run's exit code is."""

from __future__ import annotations

import io
import os
import signal
import threading
from pathlib import Path

import pytest

from dps import cli
from dps.launch.commands import launch as launching
from dps.launch.runs import keeping
from dps.launch.supervision.interrupts import Interrupts
from dps.launch.supervision.outcome import describe
from dps.launch.supervision.output import Output, without_name
from dps.launch.supervision.plan import RunPlan, small_plan
from dps.launch.supervision.supervisor import Supervisor
from dps.process.config import THREADS, environment
from tests.launch.clusters.test_local_processes import until

TRAINER = """
import sys, time
import numpy as np, dps
steps, folder = int(sys.argv[1]), sys.argv[2]
hooks = [dps.StopAtStep(last_step=steps), *([dps.CheckpointSaver(steps=20)] if folder else [])]
with dps.Server.from_env() as server, dps.Session(
    server, {"a": np.zeros(10, np.float32)}, optimizer=dps.optim.SGD(1.0), hooks=hooks, timeout=30,
    checkpoint_dir=folder or None,
) as session:
    while not session.should_stop():
        step = session.push({"a": np.ones_like(session.pull()["a"])}).step
        if step % 10 == 0:
            print("step", step)
        time.sleep(0.004)
    print("ends at", session.global_step)
"""


class Run:
    """A launched run; `wait` runs on this thread, what is to happen meanwhile on another."""

    def __init__(self, program: str, folder: Path, *arguments: str, workers: int = 1) -> None:
        self.lines: list[str] = []
        path = folder / "program.py"
        path.write_text(program)
        self.supervisor = Supervisor(small_plan(1, workers), lambda name, text: self.lines.append(f"{name} {text}"))
        self.supervisor.start()
        for task in range(workers):
            self.supervisor.start_worker(task, str(path), arguments)

    def heard(self, words: str) -> bool:
        return any(words in line for line in self.lines)

    def kill(self, name: str, after: str) -> threading.Thread:
        """SIGKILL a task once a line with these words was heard."""

        def act() -> None:
            until(lambda: self.heard(after))
            self.supervisor.tasks.children[name].send_signal(signal.SIGKILL)

        thread = threading.Thread(target=act)
        thread.start()
        return thread

    def end(self, interrupts: Interrupts | None = None) -> int:
        code = self.supervisor.wait(interrupts)
        assert not [name for name, child in self.supervisor.tasks.children.items() if child.is_alive]
        return code


def test_lines_carry_their_tasks_name_and_colour_on_a_terminal_only() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    plain, terminal = io.StringIO(), Terminal()
    Output(plain).print_line("worker:1", "loss 0.5")
    assert plain.getvalue() == "[worker:1] loss 0.5\n"
    output = Output(terminal)
    output.print_line("ps:0", "a")
    output.print_line("ps:1", "b")
    output.print_line("ps:0", "c")
    first, second, third = (line.split("[ps")[0] for line in terminal.getvalue().splitlines())
    assert first == third != second and first.startswith("\x1b[")


def test_tasks_get_one_thread_where_nothing_else_is_said_and_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("TF_CONFIG", "{}")
    monkeypatch.setenv("DPS_CHIEF", "127.0.0.1:9")
    for name in THREADS[1:]:
        monkeypatch.delenv(name, raising=False)
    made = environment({"DPS_RUN_FDS": "3,4"})
    assert [made[name] for name in THREADS] == ["3", "1", "1", "1"]
    assert "TF_CONFIG" not in made and "DPS_CHIEF" not in made
    assert (made["DPS_LAUNCHED"], made["DPS_LAUNCHER"], made["DPS_RUN_FDS"]) == ("1", str(os.getpid()), "3,4")


@pytest.mark.parametrize(
    ("given", "told"),
    [([], []), (["--threads", "3"], ["--threads=3"]), (["--device", "gpu:1", "--threads", "auto"], None)],
)
def test_launch_passes_on_what_only_the_ps_use(
    given: list[str], told: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[RunPlan] = []
    monkeypatch.setattr(launching, "begin_run", lambda wanted, say: plans.append(wanted.plan("0")) or "")
    monkeypatch.setattr(keeping, "keep_runs", lambda *_: 0)
    assert cli.main(["launch", *given, __file__]) == 0
    wanted = ["--threads=auto", "--device=gpu:1"] if told is None else told
    assert plans[0].flags("ps:0", "-")[6:] == wanted and plans[0].flags("worker:0", "-")[6:8] == ["--ps", "1"]
    assert plans[0].chief_flags("")[-2:] == ["--workers", "1"]


def test_an_exit_code_for_people() -> None:
    assert [describe(code) for code in (3, -9, -64)] == ["exit code 3", "SIGKILL", "SIGRTMAX"]


@pytest.mark.slow
def test_the_worst_exit_code_of_the_workers_is_the_runs(tmp_path: Path) -> None:
    run = Run("import os, sys; sys.exit([0, 5, 4][int(os.environ['DPS_TASK'])])", tmp_path, workers=3)
    assert run.end() == 5
    assert run.supervisor.tasks.states["worker:1"] == "failed (exit code 5)"
    assert run.supervisor.tasks.states["worker:0"] == "done"


@pytest.mark.slow
def test_a_killed_worker_is_not_started_again_and_the_others_end(tmp_path: Path) -> None:
    run = Run(TRAINER, tmp_path, "300", "", workers=2)
    killing = run.kill("worker:1", "worker:1 step")
    assert run.end() == 1
    killing.join()
    assert run.heard("worker:0 ends at 30") and not run.heard("worker:1 ends at")
    assert run.supervisor.tasks.states["worker:1"] == "failed (SIGKILL)"


@pytest.mark.slow
def test_a_killed_ps_is_started_again_and_the_run_ends_well(tmp_path: Path) -> None:
    run = Run(TRAINER, tmp_path, "150", str(tmp_path / "saved"))
    killing = run.kill("ps:0", "step 40")
    assert run.end() == 0
    killing.join()
    assert run.heard("dps ps:0 ended with SIGKILL; it is started again")
    assert run.heard("worker:0 ends at 150")


@pytest.mark.slow
def test_tasks_that_somebody_else_tells_to_end_leave_the_run_in_order(tmp_path: Path) -> None:
    """A worker, then the ps, which is started again, then the chief, with which the run ends."""
    run = Run(TRAINER, tmp_path, "100000", str(tmp_path / "saved"), workers=2)
    tasks = run.supervisor.tasks.children

    def act() -> None:
        until(lambda: run.heard("worker:1 step"))
        tasks["worker:1"].send_signal(signal.SIGTERM)
        until(lambda: run.heard("worker:1 ends at"))
        tasks["ps:0"].send_signal(signal.SIGTERM)
        until(lambda: run.heard("worker:0 rolled back"))
        heard = len(run.lines)
        until(lambda: any("worker:0 step" in line for line in run.lines[heard:]))
        tasks["chief"].send_signal(signal.SIGTERM)

    acting = threading.Thread(target=act)
    acting.start()
    assert run.end() == 0, run.lines
    acting.join()
    assert run.heard("dps ps:0 ended with SIGTERM; it is started again")
    (last,) = [int(line.rpartition(" ")[2]) for line in run.lines if line.startswith("worker:0 ends at")]
    assert [path for path in (tmp_path / "saved").glob(f"step-{last:012}-epoch-*") if path.is_dir()], run.lines


@pytest.mark.slow
def test_a_killed_chief_is_started_again_and_takes_up_the_run_with_its_checkpoints(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    run = Run(TRAINER, tmp_path, "120", str(saved))
    killing = run.kill("chief", "step 40")
    assert run.end() == 0, run.lines
    killing.join()
    assert run.heard("chief goes on with run epoch 1 of an earlier chief; sessions: worker:0")
    assert not run.heard("rolled back")
    ends = max(int(line.split()[-1]) for line in run.lines if "ends at" in line)
    assert f"step-{ends:012d}-epoch-000001" in os.listdir(saved)


@pytest.mark.slow
def test_an_interrupt_before_the_workers_can_handle_it_drains_them_all_the_same(tmp_path: Path) -> None:
    run = Run(TRAINER, tmp_path, "100000", "", workers=2)
    interrupts = Interrupts()
    interrupts.count = 1
    assert run.end(interrupts) == 0, run.lines
    assert run.heard("worker:0 ends at") and run.heard("worker:1 ends at")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("worker:1: rolled back", "rolled back"),
        ("client:0: the plan", "the plan"),
        ("client:?: the plan", "the plan"),
        ("worker:2: what another one did", "worker:2: what another one did"),
        ("loss: 0.5", "loss: 0.5"),
    ],
)
def test_a_line_has_the_name_of_its_task_once(text: str, shown: str) -> None:
    assert without_name("worker:1", text) == shown
