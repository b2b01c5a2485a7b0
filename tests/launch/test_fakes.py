"""The launcher with processes that are none: whom it names, whom it tells, what Ctrl-C does at each moment."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from dps.launch import leaving, supervisor
from dps.launch.interrupts import Interrupts
from dps.launch.outcome import describe
from dps.launch.plan import DATASET, EVALUATOR, SERVING, Job, small_plan
from dps.launch.processes import Processes
from dps.launch.run import LocalRun
from dps.launch.supervisor import Supervisor
from dps.record import replace
from tests.launch.test_local import until


class Task:
    """Stands for a process: it ends by SIGKILL, or when the test says so."""

    host, displaced = "", False

    def __init__(self, name: str) -> None:
        self.name, self.code = name, None
        self.pid = 0

    @property
    def alive(self) -> bool:
        return self.code is None

    def signal(self, number: int) -> None:
        if number == signal.SIGKILL and self.alive:
            self.code: int | None = -signal.SIGKILL

    def wait(self, patience_s: float | None = 0.0) -> bool:
        return not self.alive

    def tell(self, chief: str) -> None: ...

    def tell_to_end(self) -> None: ...

    def end(self, patience_s: float) -> None:
        self.signal(signal.SIGKILL)


class Launched(Supervisor):
    """A chief, a ps and workers that are there already."""

    def __init__(self, workers: int = 2, owned: bool = False) -> None:
        self.said: list[str] = []
        super().__init__(small_plan(1, workers, owned=owned), lambda name, text: self.said.append(f"{name} {text}"))
        for name in ("chief", "ps:0", *(f"worker:{task}" for task in range(workers))):
            self._spawn(name, [])
        self.target = "127.0.0.1:1"
        self._line("chief", "dps chief at 127.0.0.1:1")

    def _spawn(self, name: str, *_: Any, **__: Any) -> Any:
        self.children[name] = Task(name)  # type: ignore[assignment]
        self.states[name] = "running"
        return self.children[name]

    def ends(self, name: str, code: int) -> None:
        child: Any = self.children[name]
        child.code = code
        self._events.put(child)
        self.turn(0.0)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str, int]]:
    """What the chief was told of workers."""
    told: list[tuple[int, str, int]] = []
    monkeypatch.setattr(leaving, "leave", lambda chief, *what: told.append(what))
    return told


def test_the_last_line_gives_the_reason_that_the_chief_gave() -> None:
    run = Launched()
    reason = "ps:0 was silent for 1.0 s and did not come back within 50 s"
    run._line("chief", f"chief: {reason}")
    run._line("chief", f"dps: {reason}")
    for name in run.children:
        run.ends(name, 3)
    assert run.wait() == 3
    assert run.said[-1] == f"dps the run is over: {reason}"


def test_who_is_lost_for_good_is_who_failed_not_who_crashed_before_and_came_back() -> None:
    run = Launched()
    run.ends("ps:0", -9)
    assert run.said == ["dps ps:0 ended with SIGKILL; it is started again"] and run.lost() == ""
    run.ends("chief", 2)
    assert run.lost() == "chief"


def test_a_ps_that_ends_with_its_failed_run_is_not_called_lost(told: list[Any]) -> None:
    run = Launched()
    for name in ("worker:0", "worker:1", "ps:0", "chief"):  # all are over before the launcher looks
        child: Any = run.children[name]
        child.code = 2
        run._events.put(child)
    assert run.wait() == 2
    assert run.said == ["dps the run failed: worker:0, worker:1 ended with exit code 2"]


def test_a_chief_that_is_being_restarted_is_told_of_ended_workers_once_it_listens(told: list[Any]) -> None:
    run = Launched()
    run.ends("chief", -9)
    run.ends("worker:1", -9)
    assert told == []  # it would only be waited for, and the ps with it
    run._line("chief", "dps chief at 127.0.0.1:1")
    run.turn(0.0)
    run.turn(0.0)
    assert told == [(1, "was killed (SIGKILL)", -9)]


def test_a_worker_in_whose_place_another_one_trains_is_not_told_of(told: list[Any]) -> None:
    run = Launched(owned=True)
    run.ends("chief", -9)
    run.ends("worker:0", -9)
    run._spawn("worker:0")
    run._line("chief", "dps chief at 127.0.0.1:1")
    run.turn(0.0)
    assert told == []


def test_ctrl_c_is_heeded_while_the_last_checkpoint_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "ALONE_S", 0.0)
    monkeypatch.setattr(Launched, "_patience_s", lambda self: 60.0)
    run, interrupts = Launched(), Interrupts()
    for task in ("worker:0", "worker:1"):
        run.ends(task, 0)
    monkeypatch.setattr(Launched, "turn", lambda self, wait_s: setattr(interrupts, "count", interrupts.count + 1))
    assert run._events.empty() and run.wait(interrupts) == 130
    assert run.said == ["dps the run is ending; Ctrl-C once more kills all tasks"]


def test_a_run_whose_workers_cannot_all_be_started_leaves_none_of_them() -> None:
    class Full(Launched):
        def start_worker(self, task: int, *_: Any, **__: Any) -> Any:
            if task == 1:
                raise OSError(11, "no more processes")
            return self.children["worker:0"]

    tasks = Processes.__new__(Processes)
    tasks._workers, tasks.supervisor, tasks.target = 2, Full(), "127.0.0.1:1"
    before = set(os.listdir("/proc/self/fd"))
    run = LocalRun("train", 2, tasks)
    with pytest.raises(OSError, match="no more processes"):
        tasks.run(run, until, ())
    assert not tasks.supervisor.children["worker:0"].alive
    until(lambda: run.states()["worker:0"] == "failed")
    assert set(os.listdir("/proc/self/fd")) <= before


def test_the_last_line_names_the_dataset_task_whose_failure_ended_the_run(
    told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("END_S", "KILL_S", "ALONE_S"):
        monkeypatch.setattr(supervisor, name, 0.0)
    monkeypatch.setattr(Launched, "_patience_s", lambda self: 0.0)
    run = Launched(workers=1)
    run.plan = replace(run.plan, jobs={**run.plan.jobs, DATASET: Job()})
    run._spawn("dataset:0")
    run.children["worker:0"].end = lambda patience_s: run.ends("worker:0", 130)  # type: ignore[method-assign]
    run.ends("dataset:0", 2)
    assert run.wait() == 2
    assert run.said[-1] == "dps the run failed: dataset:0 ended with exit code 2"


class Serves(Launched):
    """Its workers serve what a program outside of the cluster schedules."""

    def __init__(self) -> None:
        super().__init__()
        jobs = {**self.plan.jobs, "worker": Job(2, (f"{SERVING}:main", "steps"), restarts=1), "evaluator": Job()}
        self.plan = replace(self.plan, jobs=jobs)
        self._spawn(EVALUATOR, [])
        self.told_to_end: list[str] = []
        for task in ("worker:0", "worker:1"):
            self.children[task].tell_to_end = lambda task=task: self._told(task)  # type: ignore[method-assign]
        self.children["worker:1"].end = lambda patience_s: self.ends("worker:1", -9)  # type: ignore[method-assign]

    def _told(self, name: str) -> None:
        self.told_to_end.append(name)
        if name == "worker:0":
            self.ends(name, 0)


@pytest.mark.parametrize("code", [-signal.SIGKILL, 3])
def test_workers_that_serve_a_program_which_was_killed_end_with_it(
    code: int, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "END_S", 0.1)
    monkeypatch.setattr(supervisor, "KILL_S", 0.1)
    run = Serves()
    run.ends(EVALUATOR, code)
    assert run.said == [f"dps {EVALUATOR} ended with {describe(code)}; the workers that serve it end, too"]
    run.wait()
    assert run.told_to_end[:2] == ["worker:0", "worker:1"] and run.states["worker:0"] == "done"
    assert run.children["worker:1"].code == -signal.SIGKILL, "it was in a call that did not end, and is not restarted"


def test_a_killed_evaluator_ends_no_worker() -> None:
    run = Launched()
    run.plan = replace(run.plan, jobs={**run.plan.jobs, "evaluator": Job()})
    run._spawn(EVALUATOR, [])
    run.ends(EVALUATOR, -9)
    assert run.said == [f"dps {EVALUATOR} ended with SIGKILL; the training goes on"]
    assert run.children["worker:0"].alive
