"""The launcher with processes that are none: whom it names, whom it tells, what Ctrl-C does at each moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from dps.errors import TaskLost
from dps.launch.clusters.processes import ProcessTasks
from dps.launch.clusters.run import LocalRun
from dps.launch.programs import leaving
from dps.launch.supervision import ending, supervisor
from dps.launch.supervision import ending as after_end
from dps.launch.supervision.ending import TasksEnding
from dps.launch.supervision.engine import Line, Notice, Order, Started
from dps.launch.supervision.interrupts import Interrupts
from dps.launch.supervision.outcome import OVER, describe
from dps.launch.supervision.plan import DATASET, EVALUATOR, SERVING, Job, RunPlan, small_plan
from dps.launch.supervision.supervisor import Supervisor
from dps.process.record import replace
from tests.launch.clusters.test_local_processes import until


class Task:
    """Stands for a process: it ends by SIGKILL, or when the test says so."""

    host, is_displaced = "", False

    def __init__(self, name: str) -> None:
        self.name, self.code = name, None
        self.pid = 0
        self.signals: list[int] = []

    @property
    def is_alive(self) -> bool:
        return self.code is None

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        if number == signal.SIGKILL and self.is_alive:
            self.code: int | None = -signal.SIGKILL

    def wait(self, timeout_s: float | None = 0.0) -> bool:
        return not self.is_alive

    def send_chief(self, chief: str) -> None: ...

    def tell_to_end(self) -> None: ...

    def end_task(self, timeout_s: float) -> None:
        self.send_signal(signal.SIGKILL)


class Launched(Supervisor):
    """A chief, a ps and workers that are there already."""

    def __init__(self, workers: int = 2, owned: bool = False) -> None:
        self.said: list[str] = []
        super().__init__(small_plan(1, workers, owned=owned), lambda name, text: self.said.append(f"{name} {text}"))
        self.tasks.start_task = self.there  # type: ignore[method-assign]
        for name in ("chief", "ps:0", *(f"worker:{task}" for task in range(workers))):
            self.there(name)
        self._take_line("chief", "dps chief at 127.0.0.1:1")

    def there(self, name: str, *_: Any) -> Any:
        self.tasks.children[name] = Task(name)
        self.tasks.states[name] = "running"
        return self.tasks.children[name]

    def has_ended(self, name: str, code: int) -> None:
        child: Any = self.tasks.children[name]
        child.code = code
        self.tasks._record_end(child)

    def ends(self, name: str, code: int) -> None:
        self.has_ended(name, code)
        self.handle_next_end(0.0)

    def has(self, role: str) -> None:
        self.tasks.plan = replace(self.tasks.plan, jobs={**self.tasks.plan.jobs, role: Job()})


class Fails:
    """An engine whose tasks end as soon as they are started, with this code, after one line."""

    def __init__(self, code: int = 2, last: str = "") -> None:
        self.code, self.last = code, last

    def check(self, plan: RunPlan) -> None: ...

    def open(self, plan: RunPlan, line: Line, notice: Notice) -> str:
        return "127.0.0.1:1"

    def start(self, order: Order, line: Line, ended: Callable[[Started], None]) -> Any:
        task = Task(order.name)
        task.code = self.code
        line(order.name, self.last)
        ended(task)
        return task

    def go_on(self) -> bool:
        return False

    def used(self) -> dict[str, dict[str, float]]:
        return {}

    def close(self) -> None: ...


def test_a_chief_that_ends_while_it_is_started_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "START_S", 5.0)
    with pytest.raises(TaskLost, match="the chief ended while it was started; its output says why"):
        Supervisor(small_plan(), print, engine=Fails()).start()


@pytest.mark.parametrize(("code", "exit_code"), [(2, 2), (5, 5), (-9, 3), (77, 3), (0, 3)])
def test_a_launch_whose_chief_does_not_start_has_the_chiefs_reason_and_exit_code(code: int, exit_code: int) -> None:
    engine = Fails(code, "dps: 127.0.0.1:1 is taken by another server")
    with pytest.raises(TaskLost) as caught:
        Supervisor(small_plan(), print, engine=engine).start()
    assert str(caught.value) == "the chief ended while it was started: 127.0.0.1:1 is taken by another server"
    assert caught.value.exit_code == exit_code


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str, int]]:
    """What the chief was told of workers."""
    told: list[tuple[int, str, int]] = []
    monkeypatch.setattr(leaving, "report_end", lambda chief, *what: told.append(what))
    return told


def test_the_last_line_gives_the_reason_that_the_chief_gave() -> None:
    run = Launched()
    reason = "ps:0 was silent for 1.0 s and did not come back within 50 s"
    run._take_line("chief", f"chief: {reason}")
    run._take_line("chief", f"dps: {reason}")
    for name in run.tasks.children:
        run.ends(name, 3)
    assert run.wait() == 3
    assert run.said[-1] == f"dps the run is over: {reason}"


def test_who_is_lost_for_good_is_who_failed_not_who_crashed_before_and_came_back() -> None:
    run = Launched()
    run.ends("ps:0", -9)
    assert run.said == ["dps ps:0 ended with SIGKILL; it is started again"] and run.tasks.lost_task() == ""
    run.ends("chief", 2)
    assert run.tasks.lost_task() == "chief"


def test_a_ps_that_ends_with_its_failed_run_is_not_called_lost(told: list[Any]) -> None:
    run = Launched()
    for name in ("worker:0", "worker:1", "ps:0", "chief"):  # all are over before the launcher looks
        run.has_ended(name, 2)
    assert run.wait() == 2
    assert run.said == ["dps the run failed: worker:0, worker:1 ended with exit code 2 of the program itself"]


def test_a_chief_that_is_being_restarted_is_told_of_ended_workers_once_it_listens(told: list[Any]) -> None:
    run = Launched()
    run.ends("chief", -9)
    run.ends("worker:1", -9)
    assert told == []  # it would only be waited for, and the ps with it
    run._take_line("chief", "dps chief at 127.0.0.1:1")
    run.handle_next_end(0.0)
    run.handle_next_end(0.0)
    assert told == [(1, "was killed (SIGKILL)", -9)]


def test_a_worker_in_whose_place_another_one_trains_is_not_told_of(told: list[Any]) -> None:
    run = Launched(owned=True)
    run.ends("chief", -9)
    run.ends("worker:0", -9)
    run.there("worker:0")
    run._take_line("chief", "dps chief at 127.0.0.1:1")
    run.handle_next_end(0.0)
    assert told == []


def test_ctrl_c_is_heeded_while_the_last_checkpoint_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "ALONE_S", 0.0)
    monkeypatch.setattr(TasksEnding, "_servers_timeout_s", lambda self: 60.0)
    run, interrupts = Launched(), Interrupts()
    for task in ("worker:0", "worker:1"):
        run.ends(task, 0)
    run.ending._turn = lambda wait_s: setattr(interrupts, "count", interrupts.count + 1)
    assert run.wait(interrupts) == 130
    assert run.said == ["dps the run is ending; Ctrl-C once more kills all tasks"]


def test_a_run_whose_workers_cannot_all_be_started_leaves_none_of_them() -> None:
    class Full(Launched):
        def start_worker(self, task: int, *_: Any, **__: Any) -> Any:
            if task == 1:
                raise OSError(11, "no more processes")
            return self.tasks.children["worker:0"]

    tasks = ProcessTasks.__new__(ProcessTasks)
    tasks._workers, tasks.supervisor, tasks.target = 2, Full(), "127.0.0.1:1"
    before = set(os.listdir("/proc/self/fd"))
    run = LocalRun("train", 2, tasks)
    with pytest.raises(OSError, match="no more processes"):
        tasks.run(run, until, (), {})
    assert not tasks.supervisor.tasks.children["worker:0"].is_alive
    until(lambda: run.states()["worker:0"] == "failed")
    assert set(os.listdir("/proc/self/fd")) <= before


def test_the_last_line_names_the_dataset_task_whose_failure_ended_the_run(
    told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("END_S", "KILL_S", "ALONE_S"):
        monkeypatch.setattr(ending, name, 0.0)
    monkeypatch.setattr(TasksEnding, "_servers_timeout_s", lambda self: 0.0)
    run = Launched(workers=1)
    run.has(DATASET)
    run.there("dataset:0")
    run.tasks.children["worker:0"].end_task = lambda timeout_s: run.ends("worker:0", 130)  # type: ignore[method-assign]
    run.ends("dataset:0", 2)
    assert run.wait() == 2
    assert run.said[-1] == "dps the run failed: dataset:0 ended with exit code 2"


class Serves(Launched):
    """Its workers serve what a program outside of the cluster schedules."""

    def __init__(self) -> None:
        super().__init__()
        jobs = {**self.tasks.plan.jobs, "worker": Job(2, (f"{SERVING}:main", "steps"), restarts=1), "evaluator": Job()}
        self.tasks.plan = replace(self.tasks.plan, jobs=jobs)
        self.there(EVALUATOR)
        self.told_to_end: list[str] = []
        for task in ("worker:0", "worker:1"):
            self.tasks.children[task].tell_to_end = lambda task=task: self._told(task)  # type: ignore[method-assign]
        self.tasks.children["worker:1"].end_task = lambda timeout_s: self.ends("worker:1", -9)  # type: ignore[method-assign]

    def _told(self, name: str) -> None:
        self.told_to_end.append(name)
        if name == "worker:0":
            self.ends(name, 0)


@pytest.mark.slow
@pytest.mark.parametrize("code", [-signal.SIGKILL, 3])
def test_workers_that_serve_a_program_which_was_killed_end_with_it(
    code: int, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "END_S", 0.1)
    monkeypatch.setattr(ending, "KILL_S", 0.1)
    run = Serves()
    run.ends(EVALUATOR, code)
    assert run.said == [f"dps {EVALUATOR} ended with {describe(code)}; the workers that serve it end, too"]
    run.wait()
    assert run.told_to_end[:2] == ["worker:0", "worker:1"] and run.tasks.states["worker:0"] == "done"
    ended = run.tasks.children["worker:1"].code
    assert ended == -signal.SIGKILL, "it was in a call that did not end, and is not restarted"


def test_a_killed_evaluator_ends_no_worker() -> None:
    run = Launched()
    run.has("evaluator")
    run.there(EVALUATOR)
    run.ends(EVALUATOR, -9)
    assert run.said == [f"dps {EVALUATOR} ended with SIGKILL; the training goes on"]
    assert run.tasks.children["worker:0"].is_alive


def test_programs_that_still_run_hear_now_and_then_that_the_chief_has_ended_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = [100.0]
    monkeypatch.setattr(after_end, "now", lambda: at[0])
    run = Launched(workers=2)
    run.has("evaluator")
    run.there(EVALUATOR)
    signals = {name: task.signals for name, task in run.tasks.children.items()}  # type: ignore[attr-defined]
    run.handle_next_end(0.0)
    assert not any(signals.values()), "the run goes on"
    run.ends("worker:0", 0)
    run.ends("ps:0", 0)
    run.ends("chief", 0)
    for _ in range(10 * 30):
        at[0] += 0.1
        run.handle_next_end(0.0)
    assert signals == {
        "chief": [], "ps:0": [], "worker:0": [], "worker:1": [OVER] * 8, EVALUATOR: [OVER] * 8,
    }, "at once, and seldom later: a program may work on for hours when its session is closed"  # fmt: skip
    assert run.said == ["dps the run has ended; waits for the program of worker:1"]
    run.ends("worker:1", -9)
    assert run.tasks.states["worker:1"] == "failed (SIGKILL)", "nobody starts it again: there is no run for it"
    run.ends(EVALUATOR, 1)
    assert run.said == ["dps the run has ended; waits for the program of worker:1"], "no training goes on"


@pytest.mark.parametrize("code", [3, -9])
def test_programs_hear_of_no_good_end_from_a_chief_that_has_failed(code: int) -> None:
    run = Launched(workers=1)
    run.ends("ps:0", 3)
    run.tasks.states["chief"] = "failed"
    run.tasks.children["chief"].code = code  # type: ignore[misc]
    run.handle_next_end(0.0)
    assert OVER not in run.tasks.children["worker:0"].signals  # type: ignore[attr-defined]
