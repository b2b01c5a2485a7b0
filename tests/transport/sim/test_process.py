"""How simulated processes end, are killed, stopped and started again."""

from __future__ import annotations

import sys

import pytest

from dps.transport.current import runtime
from dps.transport.endpoint import Delivery
from dps.transport.sim import (
    Kill,
    Pause,
    SimulationError,
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


def test_a_process_ends_with_what_main_returns() -> None:
    world = World()
    world.process("none", lambda: None)
    world.process("seven", lambda: 7)
    world.process("exit", lambda: sys.exit(3))
    world.process("text", lambda: sys.exit("a reason"))
    world.run()
    assert {name: process.exit_code for name, process in world.processes.items()} == {
        "none": 0, "seven": 7, "exit": 3, "text": 1,
    }  # fmt: skip
    assert all(process.state == "ended" and process.error is None for process in world.processes.values())
    assert world.now == 0.0


def test_a_process_that_raises_keeps_its_error_and_leaves_the_others_alone() -> None:
    def fails() -> int:
        raise ValueError("no such shard")

    def survives() -> int:
        runtime().sleep(1.0)
        return 0

    world = World()
    world.process("bad", fails)
    world.process("good", survives)
    world.run()
    bad = world.processes["bad"]
    assert (bad.state, bad.exit_code, str(bad.error)) == ("ended", 1, "no such shard")
    assert world.processes["good"].exit_code == 0
    assert world.now == 1.0


def test_a_killed_process_can_do_nothing_more_not_even_in_finally() -> None:
    done: list[str] = []

    def victim() -> int:
        endpoint = runtime().endpoint()
        try:
            try:
                runtime().sleep(10.0)
            finally:
                done.append("finally")
                endpoint.send(PS, b"last words")
                runtime().record("last words")
                try:
                    runtime().storage.write("last", [b"words"])
                finally:
                    done.append("write refused")
                    try:
                        runtime().sleep(1.0)
                    finally:
                        done.append("sleep refused")
                        endpoint.receive(1.0)
        finally:
            done.append("receive refused")
        return 0

    world = World()
    world.process("ps:0", echo)
    world.process("worker:0", victim)
    world.at(1.0, lambda: world.kill("worker:0"))
    world.run(until_s=20.0)
    assert done == ["finally", "write refused", "sleep refused", "receive refused"]
    assert world.processes["worker:0"].state == "killed"
    assert world.processes["worker:0"].exit_code is None
    assert not world.storage.exists("last")
    assert not [event for event in world.trace if event.what in ("served", "last words")]
    world.close()


def test_a_kill_ends_all_tasks_of_the_process_at_that_moment() -> None:
    ticks: list[float] = []
    world = World()

    def ticker() -> None:
        while True:
            runtime().sleep(1.0)
            ticks.append(world.now)

    def main() -> int:
        runtime().spawn("ticker", ticker)
        runtime().sleep(100.0)
        return 0

    world.process("ps:0", main)
    world.at(2.5, lambda: world.kill("ps:0"))
    world.run()
    assert ticks == [1.0, 2.0]
    assert world.now == 2.5


def test_a_task_that_kills_its_own_process_does_not_go_on() -> None:
    world, after = World(), []

    def main() -> int:
        world.kill("ps:0")
        after.append("went on")
        return 0

    world.process("ps:0", main)
    world.run()
    assert after == []
    assert world.processes["ps:0"].state == "killed"


def test_a_task_that_swallows_its_end_for_ever_is_named() -> None:
    def immortal() -> int:
        while True:
            try:
                runtime().sleep(1.0)
            except BaseException:
                continue

    world = World()
    world.process("ps:0", immortal)
    world.at(1.5, lambda: world.kill("ps:0"))
    with pytest.raises(SimulationError, match=r"'main' of ps:0 .* GreenletExit"):
        world.run()


def test_a_killed_process_starts_again_as_often_as_allowed() -> None:
    starts: list[tuple[float, int]] = []
    world = World()

    def main() -> int:
        process = world.processes["ps:0"]
        starts.append((world.now, process.incarnation))
        assert runtime() is process.runtime
        runtime().storage.write(f"life{process.incarnation}", [b"x"])
        runtime().sleep(10.0)
        return 0

    process = world.process("ps:0", main, restarts=1, restart_delay_s=0.5)
    first = process.runtime
    world.at(1.0, lambda: world.kill("ps:0"))
    world.at(1.2, lambda: world.kill("ps:0"))
    world.at(2.0, lambda: world.kill("ps:0"))
    world.run()
    assert starts == [(0.0, 0), (1.5, 1)]
    assert process.runtime is not first
    assert process.state == "killed"
    assert world.storage.names("") == ["life0", "life1"]
    assert [event.what for event in world.trace] == ["kill", "kill ignored", "restart", "kill"]


def test_a_kill_may_say_when_the_process_starts_again() -> None:
    world = World(faults=[Kill("ps:0", at=1.0, restart_after=3.0)])
    world.process("ps:0", lambda: runtime().sleep(2.0))
    world.run()
    assert world.now == 6.0
    assert (world.processes["ps:0"].state, world.processes["ps:0"].incarnation) == ("ended", 1)


def test_each_life_has_random_numbers_of_its_own_and_the_seed_decides_them() -> None:
    def draws(seed: int) -> list[float]:
        drawn: list[float] = []
        world = World(seed=seed, faults=[Kill("a", at=1.0, restart_after=0.0)])

        def main() -> int:
            drawn.append(runtime().random.random())
            runtime().sleep(2.0)
            return 0

        for name in ("a", "b"):
            world.process(name, main)
        world.run()
        return sorted(drawn)

    assert len(set(draws(1))) == 3
    assert draws(1) == draws(1)
    assert draws(1) != draws(2)


def test_a_paused_process_does_not_run_and_its_messages_wait() -> None:
    got: list[tuple[float, bytes]] = []
    world = World(faults=[Pause("ps:0", at=1.0, seconds=2.0)])

    def server() -> int:
        endpoint = runtime().endpoint(PS)
        while len(got) < 2:
            event = endpoint.receive(60.0)
            if isinstance(event, Delivery):
                got.append((world.now, event.header))
        return 0

    def client() -> int:
        endpoint = runtime().endpoint()
        for header in (b"before", b"during"):
            endpoint.send(PS, header)
            runtime().sleep(1.5)
        return 0

    world.process("ps:0", server)
    world.process("worker:0", client)
    world.run()
    assert [header for _, header in got] == [b"before", b"during"]
    assert got[0][0] < 0.01
    assert got[1][0] == 3.0


def test_overlapping_pauses_last_until_the_last_one_ends() -> None:
    world = World(faults=[Pause("a", at=1.0, seconds=3.0), Pause("a", at=2.0, seconds=1.0)])
    world.process("a", lambda: runtime().sleep(1.5))
    world.run()
    assert world.now == 4.0


def test_the_other_tasks_end_when_main_returns() -> None:
    ends: list[str] = []

    def background() -> None:
        try:
            runtime().sleep(100.0)
        finally:
            ends.append("ended")

    def main() -> int:
        runtime().spawn("background", background)
        runtime().sleep(1.0)
        return 0

    world = World()
    world.process("ps:0", main)
    world.run()
    assert ends == ["ended"]
    assert world.now == 1.0
