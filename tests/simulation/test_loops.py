"""What hooks are told around a training loop, and when timers fire, on the virtual clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.checkpoint import MemoryStorage
from dps.hooks import Timer
from dps.transport.current import runtime
from dps.transport.sim import Compute, Network, World
from tests.simulation.test_runs import happened

EXACT: dict[str, Any] = {"compute": Compute(1.0), "network": Network(latency_s=1e-4), "calibration": None}


def session(server: Any, **settings: Any) -> dps.Session:
    return dps.Session(server, {"a": np.zeros(2)}, optimizer=dps.optim.SGD(1.0), timeout=100, **settings)


def loop(server: Any, pushes: int, hooks: list[dps.Hook], checkpoint_dir: str | None = None) -> Any:
    """Push until a hook stops it, at most so often; the global step at the end."""
    with session(server, hooks=hooks, checkpoint_dir=checkpoint_dir) as s:
        for _ in range(pushes):
            if s.should_stop():
                break
            s.push({"a": np.ones(2)}, loss=0.5)
        return s.global_step


class Noted(dps.Hook):
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def begin(self) -> None:
        self.notes.append(f"{self.name} begin")

    def after_create_session(self, session: Any) -> None:
        self.notes.append(f"{self.name} created")

    def before_run(self, session: Any) -> None:
        self.notes.append(f"{self.name} before")

    def after_run(self, session: Any, push: Any, loss: Any) -> None:
        self.notes.append(f"{self.name} after {push.step} {loss}")

    def end(self, session: Any) -> None:
        self.notes.append(f"{self.name} end")


def test_hooks_are_called_in_list_order_around_every_push() -> None:
    notes: list[str] = []
    dps.simulate(loop, 2, [Noted("x", notes), Noted("y", notes)], **EXACT)
    assert notes == [
        "x begin", "y begin", "x created", "y created", "x before", "y before", "x after 1 0.5", "y after 1 0.5",
        "x before", "y before", "x after 2 0.5", "y after 2 0.5", "x end", "y end",
    ]  # fmt: skip


@pytest.mark.parametrize(("error", "ends"), [(None, True), (StopIteration, True), (KeyError, False)])
def test_end_is_called_only_when_there_was_no_error_and_running_out_of_data_is_none(error: Any, ends: bool) -> None:
    notes: list[str] = []

    def train(server: Any) -> None:
        with session(server, hooks=[Noted("x", notes)]):
            if error is not None:
                raise error("out")

    run = dps.simulate(train, calibration=None)
    assert ("x end" in notes) == ends and bool(run.errors) != ends


def test_stopping_at_a_step_counts_the_steps_of_all_workers() -> None:
    def train(server: Any) -> Any:
        return loop(server, 100, [dps.StopAtStep(last_step=9)])

    run = dps.simulate(train, workers=3, **EXACT)
    assert max(run.results) in (9, 10, 11) and min(run.results) >= 9  # pushes that were on their way still count


def test_a_number_of_steps_counts_once_from_the_step_at_session_creation() -> None:
    disk = MemoryStorage()
    dps.simulate(loop, 3, [], "run", storage=disk, calibration=None)
    hook = dps.StopAtStep(num_steps=4)
    run = dps.simulate(loop, 100, [hook], "run", storage=disk, calibration=None)
    assert run.results == [7] and hook.last_step == 7


def test_a_timer_fires_when_first_asked_never_twice_for_a_step_and_then_every_so_many_steps() -> None:
    timer = Timer(every_steps=3)
    fired = []
    for step in (4, 4, 5, 6, 7, 7, 8, 12, 13, 15):
        if timer.is_due(step):
            timer.record_firing(step)
            fired.append(step)
    assert fired == [4, 7, 12, 15]


def test_a_timer_may_count_seconds() -> None:
    fired: list[int] = []

    def main() -> None:
        timer = Timer(every_s=2.0)
        for step in range(10):
            if timer.is_due(step):
                timer.record_firing(step)
                fired.append(step)
                assert not timer.is_due(step)
            runtime().sleep(0.75)

    with World() as world:
        process = world.process("worker:0", main)
        world.run()
        assert process.error is None
    assert fired == [0, 3, 6, 9]


@pytest.mark.parametrize(("pushes", "saved"), [(7, [0, 3, 6, 7]), (6, [0, 3, 6])])
def test_the_saver_saves_at_creation_by_its_timer_and_at_the_end_what_is_unsaved(pushes: int, saved: list[int]) -> None:
    run = dps.simulate(loop, pushes, [dps.CheckpointSaver(steps=3)], "run", ps=2, **EXACT)
    assert [event.detail["step"] for event in happened(run, "saved")] == saved


def test_the_first_trigger_of_the_step_counter_reports_nothing() -> None:
    rates: list[float | None] = []

    class After(dps.Hook):
        def __init__(self, counter: dps.StepCounter) -> None:
            self.counter = counter

        def after_run(self, session: Any, push: Any, loss: Any) -> None:
            rates.append(self.counter.steps_per_s)

    counter = dps.StepCounter(steps=2)
    dps.simulate(loop, 4, [counter, After(counter)], **EXACT)
    assert rates[:2] == [None, None]
    assert rates[2] == pytest.approx(1.0, rel=0.01) and rates[3] == rates[2]


def test_a_number_of_steps_counts_from_the_step_at_session_creation_also_in_a_run_under_way() -> None:
    """The other worker makes three steps before the session opens, and one while it trains."""

    def train(server: Any) -> Any:
        if server.task == 0:
            server.runtime.sleep(20.0)
            hook = dps.StopAtStep(num_steps=4)
            return loop(server, 100, [hook]), hook.last_step
        with session(server) as s:
            for pause in (0.0, 0.0, 18.0, 0.0):
                s.push({"a": np.ones(2)})
                server.runtime.sleep(pause)
        return None

    assert dps.simulate(train, workers=2, compute=Compute(1.0), calibration=None).results == [(7, 7), None]


def test_in_bounded_mode_a_worker_that_hangs_no_longer_counts_when_the_deadline_has_passed() -> None:
    """Worker 1 stands still for 100 s after its first push; worker 0, whose calls take 10 s at most, goes on alone."""

    def train(server: Any) -> Any:
        values = {"optimizer": dps.optim.SGD(1.0), "update": dps.Bounded(1), "timeout": 10}
        with dps.Session(server, {"a": np.zeros(2)}, **values) as s:
            began = server.runtime.now()
            for step in range(5):
                s.pull()
                s.push({"a": np.ones(2)})
                if server.task == 1 and step == 0:
                    server.runtime.sleep(100.0)
            return server.runtime.now() - began

    first, second = dps.simulate(train, workers=2, compute=Compute(0.1), calibration=None).results
    assert 8.0 < first < 10.0 and second > 100.0
