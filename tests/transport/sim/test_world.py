"""Replays, the clocks and the run of a whole world."""

from __future__ import annotations

from math import inf, nan

import pytest

from dps.transport.current import runtime
from dps.transport.endpoint import Delivery
from dps.transport.sim import (
    Compute,
    Fault,
    Kill,
    Network,
    Partition,
    Pause,
    Slow,
    World,
)

PS = "127.0.0.1:5000"


def echo() -> int:
    """Answer each message with its own header, for ever."""
    endpoint = runtime().endpoint(PS)
    while True:
        event = endpoint.receive(60.0)
        if isinstance(event, Delivery):
            runtime().record("served", header=event.header.decode())
            endpoint.send(event.route, event.header)


def asker(count: int) -> int:
    """Send `count` numbered messages a little apart and note what comes back."""
    endpoint = runtime().endpoint()
    for number in range(count):
        endpoint.send(PS, str(number).encode())
        event = endpoint.receive(0.01)
        runtime().record("got", event=type(event).__name__)
        runtime().sleep(runtime().random.random() * 0.01)
    return 0


def busy_world(seed: int) -> World:
    """Three askers, bad links, a kill and a pause: everything that is drawn at random."""
    world = World(
        seed=seed,
        network=Network(loss=0.1, double=0.1, reorder=0.1),
        compute=Compute(seconds=0.01, jitter=0.5),
        faults=[Kill("ps:0", at=0.1, restart_after=0.05), Pause("worker:1", at=0.05, seconds=0.1)],
        trace="all",
    )
    world.process("ps:0", echo)
    for index in range(3):
        world.process(f"worker:{index}", lambda: asker(20))
    world.run(until_s=5.0)
    world.close()
    return world


def test_the_same_seed_gives_the_same_trace_to_the_last_character() -> None:
    first, second = busy_world(7), busy_world(7)
    assert len(first.trace) > 200
    assert first.trace_text(None) == second.trace_text(None)
    assert first.counts == second.counts


def test_different_seeds_give_different_traces() -> None:
    assert busy_world(7).trace_text(None) != busy_world(8).trace_text(None)


def test_trace_text_is_the_last_lines() -> None:
    world = busy_world(7)
    assert world.trace_text(last=3).splitlines() == [str(event) for event in world.trace[-3:]]
    assert world.trace_text(last=0) == ""


def test_run_stops_at_the_deadline_or_when_told_and_goes_on_later() -> None:
    world = World()
    world.process("sleeper", lambda: runtime().sleep(10.0))
    world.run(until_s=4.0)
    assert world.now == 4.0
    world.at(5.0, lambda: None)
    world.at(6.0, lambda: None)
    world.run(stop=lambda: world.now >= 5.0)
    assert world.now == 5.0
    world.run()
    assert world.now == 10.0
    assert world.processes["sleeper"].state == "ended"


def test_run_returns_when_everybody_waits_for_ever() -> None:
    world = World()
    world.process("waiter", lambda: bool(runtime().endpoint().receive(float("inf"))))
    world.run()
    assert world.now == 0.0
    assert world.processes["waiter"].state == "running"
    world.close()


def test_processes_begin_in_an_order_that_depends_on_the_seed() -> None:
    def order(seed: int) -> tuple[str, ...]:
        world, seen = World(seed=seed), []
        for name in ("a", "b", "c"):
            world.process(name, lambda: seen.append(runtime().name))
        world.run()
        return tuple(seen)

    assert len({order(seed) for seed in range(30)}) > 3


def test_two_processes_of_one_name_are_refused() -> None:
    world = World()
    world.process("ps:0", lambda: 0)
    with pytest.raises(ValueError, match="'ps:0' already"):
        world.process("ps:0", lambda: 0)


def test_a_step_of_computing_takes_what_the_model_says() -> None:
    took: dict[str, float] = {}
    world = World(
        compute=Compute(seconds=0.1, slow={3: 10.0, "ps:0": 2.0}),
        faults=[Slow("worker:1", at=0.0, seconds=60.0, factor=5.0)],
    )

    def main() -> int:
        runtime().sleep(0.001)
        begin = world.now
        runtime().compute()
        took[runtime().name] = world.now - begin
        return 0

    for name in ("worker:0", "worker:1", "worker:3", "ps:0", "ps:3"):
        world.process(name, main)
    world.run()
    assert took == pytest.approx({"worker:0": 0.1, "worker:1": 0.5, "worker:3": 1.0, "ps:0": 0.2, "ps:3": 0.1})


def test_jitter_is_drawn_for_each_step_of_each_task_and_stays_in_its_bounds() -> None:
    compute = Compute(seconds=0.1, jitter=0.2)
    steps = [compute.step_s(7, task, step) for task in ("worker:0", "worker:1") for step in range(50)]
    assert len(set(steps)) == 100
    assert all(0.08 <= step <= 0.12 for step in steps)
    assert compute.step_s(7, "worker:0", 4) == steps[4]


def test_clocks_of_two_processes_differ_and_the_wall_clock_is_common() -> None:
    clocks: dict[str, tuple[float, float]] = {}
    world = World(seed=1)
    for name in ("a", "b"):
        world.process(name, lambda: clocks.update({runtime().name: (runtime().now(), runtime().wall())}))
    world.run()
    assert clocks["a"][0] != clocks["b"][0]
    assert clocks["a"][1] == clocks["b"][1] == 1_700_000_000.0


def test_an_error_of_the_harness_comes_out_of_run() -> None:
    def broken() -> None:
        raise RuntimeError("check failed")

    world = World()
    world.at(1.0, broken)
    with pytest.raises(RuntimeError, match="check failed"):
        world.run()


def test_a_world_can_be_closed_twice_and_frees_its_tasks() -> None:
    ends: list[str] = []

    def main() -> int:
        try:
            runtime().sleep(100.0)
        finally:
            ends.append(runtime().name)
        return 0

    with World() as world:
        world.process("a", main)
        world.run(until_s=1.0)
    world.close()
    assert ends == ["a"]
    assert world.processes["a"].state == "killed"


@pytest.mark.parametrize(
    "fault",
    [Kill("chief:1", 1.0), Pause("ps", 1.0, 1.0), Partition(("ps:0", "worker:9"), 1.0, 1.0), Slow("x", 1.0, 1.0, 2.0)],
)
def test_a_fault_that_names_nobody_is_an_error_before_anything_runs(fault: Fault) -> None:
    world = World(faults=[fault])
    for name in ("chief", "ps:0"):
        world.process(name, lambda: None)
    with pytest.raises(ValueError, match=r"there is no process .*; the processes are chief, ps:0") as error:
        world.run()
    assert type(fault).__name__ in str(error.value) and world.now == 0.0


def test_what_is_slow_or_has_a_link_of_its_own_must_be_there() -> None:
    for setting, what in (
        ({"compute": Compute(0.1, slow={9: 2.0})}, "'worker:9'"),
        ({"compute": Compute(0.1, slow={"worker0": 2.0})}, "'worker0'"),
        ({"network": Network(links={("worker:0", "ps:1"): Network()})}, "'ps:1'"),
    ):
        world = World(**setting)
        for name in ("ps:0", "worker:0"):
            world.process(name, lambda: None)
        with pytest.raises(ValueError, match=f"there is no process {what}; the processes are ps:0, worker:0"):
            world.run()


def test_numbers_that_no_clock_can_have_are_refused() -> None:
    for fault in (Kill("ps:0", nan), Kill("ps:0", 1.0, -1.0), Pause("ps:0", 1.0, nan), Slow("ps:0", 0.0, 1.0, -2.0)):
        with pytest.raises(ValueError, match="wanted 0 or more"):
            World(faults=[fault])
    for compute in ({"seconds": nan}, {"seconds": inf}, {"slow": {0: nan}}, {"slow": {0: -1.0}}):
        with pytest.raises(ValueError, match="wanted"):
            Compute(**compute)


def test_a_call_that_names_nobody_is_an_error() -> None:
    with World() as world:
        world.process("ps:0", lambda: None)
        for call in (world.kill, lambda name: world.pause(name, 1.0), world.partition):
            with pytest.raises(ValueError, match="there is no process 'ps:1'; the processes are ps:0"):
                call("ps:1")


@pytest.mark.parametrize("name", ["chief", "chief:0"])
def test_the_chief_has_two_names(name: str) -> None:
    faults = [Slow(name, 0.5, 0.1, 2.0), Partition(name, 0.7, 0.1), Pause(name, 1.0, 1.0), Kill(name, 3.0)]
    world = World(faults=faults)
    world.process("chief", lambda: runtime().sleep(10.0))
    world.run()
    assert [event.process for event in world.trace if event.what in ("slow", "pause", "kill")] == ["chief"] * 3
    assert world.counts["partition"] == 1 and world.now == 3.0
