"""Tasks and the virtual clock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial

import pytest

from dps.transport.current import current_runtime, runtime
from dps.transport.endpoint import TaskHandle
from dps.transport.sim import SimulationError, World

scope: ContextVar[str] = ContextVar("scope", default="none")


def run(main: Callable[[], None], seed: int = 0, preempt: float = 0.1) -> World:
    """A world with one process that must end well."""
    world = World(seed, preempt=preempt)

    def body() -> int:
        main()
        return 0

    process = world.process("ps:0", body)
    world.run()
    if process.error is not None:
        raise process.error
    assert process.state == "ended"
    return world


def test_sleep_takes_virtual_time_only() -> None:
    assert run(lambda: runtime().sleep(500.0)).now == 500.0


def test_a_wait_shorter_than_the_clock_can_tell_still_moves_the_clock() -> None:
    world = World(steps_at_one_instant=1000)

    def main() -> int:
        runtime().sleep(500.0)
        deadline = runtime().now() + 0.1
        while runtime().now() < deadline:
            runtime().sleep(max(deadline - runtime().now(), 1e-30))
        return 0

    world.process("a", main)
    world.run()
    assert world.processes["a"].exit_code == 0


def test_join_waits_for_the_end_of_a_task() -> None:
    seen: list[object] = []

    def main() -> None:
        task = runtime().spawn("child", lambda: runtime().sleep(2.0))
        seen.extend([task.name, task.alive, task.join(0.5), task.alive])
        seen.extend([task.join(), task.alive, task.join(0.0)])

    assert run(main).now == 2.0
    assert seen == ["child", True, False, True, True, False, True]


def test_several_tasks_may_join_one() -> None:
    ends: list[str] = []

    def main() -> None:
        child = runtime().spawn("child", lambda: runtime().sleep(1.0))

        def wait(name: str) -> None:
            child.join()
            ends.append(name)

        tasks: list[TaskHandle] = [runtime().spawn(name, partial(wait, name)) for name in "abc"]
        for task in tasks:
            task.join()

    assert run(main).now == 1.0
    assert sorted(ends) == ["a", "b", "c"]


def test_a_task_that_fails_is_noted_and_the_process_goes_on() -> None:
    def fails() -> None:
        raise ValueError("bad frame")

    def main() -> None:
        task = runtime().spawn("listener", fails)
        assert task.join()
        runtime().sleep(1.0)

    world = run(main)
    assert [str(error) for error in world.processes["ps:0"].task_errors] == ["bad frame"]
    assert [event.what for event in world.trace] == ["task failed", "exit"]


def test_context_variables_are_copied_at_spawn_and_belong_to_each_task() -> None:
    seen: dict[str, list[str]] = {}

    def child(name: str) -> None:
        seen[name] = [scope.get()]
        scope.set(name)
        runtime().sleep(1.0)
        seen[name].append(scope.get())

    def main() -> None:
        scope.set("main")
        for name in ("a", "b"):
            runtime().spawn(name, partial(child, name))
        scope.set("changed later")
        runtime().sleep(2.0)
        seen["main"] = [scope.get()]

    scope.set("outside")
    try:
        run(main)
        assert seen == {"a": ["main", "a"], "b": ["main", "b"], "main": ["changed later"]}
        assert scope.get() == "outside"
        assert current_runtime.get() is None
    finally:
        scope.set("none")


def test_every_life_of_a_process_begins_with_the_context_of_who_added_it() -> None:
    seen: list[str] = []

    def main() -> int:
        seen.append(scope.get())
        scope.set("dirty")
        runtime().sleep(1.0)
        return 0

    scope.set("given")
    try:
        world = World()
        world.process("a", main, restarts=1)
        scope.set("changed later")
        world.at(0.5, lambda: world.kill("a"))
        world.run()
        assert seen == ["given", "given"]
    finally:
        scope.set("none")


@pytest.mark.parametrize("step", ["sleep", "receive"])
def test_a_task_that_spins_is_named(step: str) -> None:
    def main() -> int:
        endpoint = runtime().endpoint()
        while True:
            runtime().sleep(0.0) if step == "sleep" else endpoint.receive(0.0)

    world = World(steps_at_one_instant=1000)
    world.process("worker:0", main)
    with pytest.raises(SimulationError, match=r"does not move; task 'main' of worker:0 ran last"):
        world.run()
    world.close()


def test_waiting_outside_of_all_tasks_is_refused() -> None:
    world = World()
    process = world.process("a", lambda: 0)
    world.at(0.0, lambda: process.runtime.sleep(1.0))
    with pytest.raises(SimulationError, match="only a simulated task may wait"):
        world.run()


def test_run_inside_the_simulation_comes_out_as_an_error() -> None:
    world = World()
    world.process("a", lambda: world.run())
    with pytest.raises(SimulationError, match="run was called from inside"):
        world.run()


def test_preempt_lets_other_tasks_of_the_process_run() -> None:
    def interleaved(seed: int, preempt: float) -> bool:
        order: list[str] = []

        def long_pass() -> None:
            for _ in range(20):
                order.append("pass")
                runtime().preempt()

        def main() -> None:
            runtime().spawn("pass", long_pass)
            for _ in range(20):
                runtime().sleep(50e-6)
                order.append("other")

        run(main, seed=seed, preempt=preempt)
        return "other" in order[order.index("pass") : 20 + order.index("pass")]

    assert all(interleaved(seed, 1.0) for seed in range(5))
    assert not any(interleaved(seed, 0.0) for seed in range(5))


def test_without_greenlet_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['greenlet'] = None\nimport dps.transport.sim"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stderr.strip().splitlines()[-1] == (
        "dps.errors.MissingExtra: the simulator needs greenlet, which is not installed: pip install 'dps[sim]'"
    )
