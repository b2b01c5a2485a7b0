"""Links that lose, double, delay and queue."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest

from dps.transport.current import runtime
from dps.transport.endpoint import Connected, Delivery, Disconnected
from dps.transport.sim import Kill, Network, Partition, Pause, Slow, World

PS = "127.0.0.1:5000"


def flood(network: Network, count: int = 1000, seed: int = 7) -> tuple[World, list[int], list[int], list[int]]:
    """worker:0 sends numbers, ps:0 answers each; the world, what arrived, what came back, and the calls of done."""
    world = World(seed=seed, network=network)
    arrived, answered, done = list[int](), list[int](), list[int]()

    def server() -> int:
        endpoint = runtime().endpoint(PS)
        while (event := endpoint.receive(5.0)) is not None:
            if isinstance(event, Delivery):
                arrived.append(int(event.header))
                endpoint.send(event.route, event.header)
        return 0

    def client() -> int:
        endpoint = runtime().endpoint()
        for number in range(count):
            endpoint.send(PS, b"%d" % number, [b"frame"], partial(done.append, number))
            runtime().sleep(1e-4)
        while (event := endpoint.receive(1.0)) is not None:
            if isinstance(event, Delivery):
                answered.append(int(event.header))
        return 0

    world.process("ps:0", server)
    world.process("worker:0", client)
    world.run()
    assert [process.error for process in world.processes.values()] == [None, None]
    return world, arrived, answered, done


def test_without_faults_everything_arrives_once_and_in_order() -> None:
    world, arrived, answered, done = flood(Network())
    assert arrived == answered == list(range(1000))
    assert sorted(done) == list(range(1000))
    assert {"lost", "doubled", "late", "dropped"}.isdisjoint(world.counts)


def test_lost_messages_and_answers_are_counted_and_give_their_frames_back() -> None:
    world, arrived, answered, done = flood(Network(loss=0.1))
    assert 50 < 1000 - len(arrived) < 150
    assert 40 < len(arrived) - len(answered) < 150
    assert world.counts["lost"] == 1000 - len(answered)
    assert arrived == sorted(arrived)
    assert sorted(done) == list(range(1000))


def test_doubled_messages_come_twice_and_give_their_frames_back_once() -> None:
    world, arrived, answered, done = flood(Network(double=0.1))
    assert set(arrived) == set(range(1000))
    assert 50 < len(arrived) - 1000 < 150
    assert world.counts["doubled"] == (len(arrived) - 1000) + (len(answered) - len(arrived))
    assert sorted(done) == list(range(1000))


def test_late_messages_are_overtaken_and_none_is_missing() -> None:
    world, arrived, answered, _ = flood(Network(reorder=0.1))
    assert sorted(arrived) == sorted(answered) == list(range(1000))
    assert arrived != sorted(arrived)
    assert 100 < world.counts["late"] < 300


def test_a_copy_of_a_doubled_message_is_read_when_it_arrives() -> None:
    got: list[tuple[float, bytes]] = []
    world = World(network=Network(double=1.0, reorder_delay_s=0.05))
    state = bytearray(b"0")

    def server() -> int:
        endpoint = runtime().endpoint(PS)
        while (event := endpoint.receive(1.0)) is not None:
            if isinstance(event, Delivery):
                got.append((world.now, bytes(event.frames[0])))
        return 0

    def client() -> int:
        endpoint = runtime().endpoint()
        endpoint.send(PS, b"h", [state], lambda: runtime().record("done"))
        while len(got) < 2:
            endpoint.receive(1e-3)
            state[0] = ord("0") + len(got)
        endpoint.receive(1e-3)
        return 0

    world.process("ps:0", server)
    world.process("worker:0", client)
    world.run()
    (_, first), (second_s, second) = got
    assert (first, second) == (b"0", b"1")
    assert [event.time_s >= second_s for event in world.trace if event.what == "done"] == [True]


def test_messages_within_a_process_are_never_lost() -> None:
    world, got = World(network=Network(loss=1.0)), list[Delivery]()

    def main() -> int:
        endpoint = runtime().endpoint(PS)
        endpoint.send(PS, b"h")
        while not got:
            event = endpoint.receive(1.0)
            got.extend([event] if isinstance(event, Delivery) else [])
        return 0

    world.process("ps:0", main)
    world.run()
    assert len(got) == 1


def test_links_may_differ_by_direction_and_the_names_go_before_the_stars() -> None:
    network = Network()
    slow, lossy = replace(network, latency_s=1.0), replace(network, loss=0.5)
    network = replace(network, links={("a", "b"): slow, ("*", "b"): lossy})
    assert network.between("a", "b") is slow
    assert network.between("c", "b") is lossy
    assert network.between("b", "a") is network


def test_slow_tasks_have_slow_links_while_it_lasts() -> None:
    network = Network(latency_s=0.001, jitter=0.0)
    trips: list[float] = []
    world = World(network=network, faults=[Slow("worker:0", at=1.0, seconds=1.0, factor=10.0)])

    def server() -> int:
        endpoint = runtime().endpoint(PS)
        while (event := endpoint.receive(5.0)) is not None:
            if isinstance(event, Delivery):
                endpoint.send(event.route, b"back")
        return 0

    def client() -> int:
        endpoint = runtime().endpoint()
        endpoint.connect(PS)
        assert endpoint.receive(1.0) == Connected(PS)
        for begin in (0.5, 1.5, 2.5):
            runtime().sleep(begin - world.now)
            endpoint.send(PS, b"there")
            assert isinstance(endpoint.receive(1.0), Delivery)
            trips.append(world.now - begin)
        return 0

    world.process("ps:0", server)
    world.process("worker:0", client)
    world.run()
    assert trips == pytest.approx([0.002, 0.02, 0.002], abs=1e-6)


def watch(world: World, until_s: float) -> list[tuple[str, float]]:
    """What worker:0 sees of ps:0, which receives for ever: (event, virtual seconds, two digits)."""
    seen: list[tuple[str, float]] = []

    def server() -> int:
        endpoint = runtime().endpoint(PS)
        while True:
            endpoint.receive(60.0)

    def client() -> int:
        endpoint = runtime().endpoint()
        endpoint.connect(PS)
        while True:
            event = endpoint.receive(60.0)
            if isinstance(event, Connected | Disconnected):
                seen.append((type(event).__name__, round(world.now, 2)))

    world.process("ps:0", server)
    world.process("worker:0", client)
    world.run(until_s=until_s)
    world.close()
    return seen


def test_a_partition_longer_than_the_heartbeat_breaks_the_connection_until_it_heals() -> None:
    world = World(faults=[Partition("ps:0", at=1.0, seconds=8.0)])
    assert watch(world, 20.0) == [("Connected", 0.0), ("Disconnected", 6.0), ("Connected", 9.0)]


def test_a_short_partition_is_not_noticed() -> None:
    world = World(faults=[Partition("ps:0", at=1.0, seconds=4.0), Partition("ps:0", at=5.5, seconds=4.0)])
    assert watch(world, 20.0) == [("Connected", 0.0)]


def test_heartbeats_need_both_ways() -> None:
    world = World(faults=[Partition(("ps:0",), at=1.0, seconds=8.0, one_way=True)])
    assert watch(world, 20.0) == [("Connected", 0.0), ("Disconnected", 6.0), ("Connected", 9.0)]


def test_heal_ends_all_partitions() -> None:
    world = World()
    world.at(1.0, lambda: world.partition({"ps:0"}, {"worker:0"}))
    world.at(2.0, lambda: world.partition("worker:0"))
    world.at(12.0, world.heal)
    assert watch(world, 20.0) == [("Connected", 0.0), ("Disconnected", 6.0), ("Connected", 12.0)]


def test_a_partition_of_other_tasks_does_not_matter() -> None:
    world = World()
    world.process("worker:1", lambda: runtime().sleep(20.0))
    world.at(1.0, lambda: world.partition({"ps:0"}, {"worker:1"}))
    assert watch(world, 20.0) == [("Connected", 0.0)]


def test_a_stopped_process_falls_silent_and_comes_back() -> None:
    world = World(faults=[Pause("ps:0", at=1.0, seconds=8.0)])
    assert watch(world, 20.0) == [("Connected", 0.0), ("Disconnected", 6.0), ("Connected", 9.0)]


def test_who_was_stopped_itself_learns_of_it_when_it_goes_on() -> None:
    world = World(faults=[Pause("worker:0", at=1.0, seconds=8.0)])
    assert watch(world, 20.0) == [("Connected", 0.0), ("Disconnected", 9.0), ("Connected", 9.0)]


def test_a_death_behind_a_partition_is_noticed_by_silence() -> None:
    world = World(faults=[Partition("ps:0", at=1.0, seconds=30.0), Kill("ps:0", at=2.0)])
    assert watch(world, 20.0) == [("Connected", 0.0), ("Disconnected", 7.0)]


def test_messages_are_lost_in_a_partition_and_with_one_way_only_those() -> None:
    def counts(one_way: bool) -> tuple[int, int]:
        faults = [Partition("worker:0", at=0.5, seconds=1.0, one_way=one_way)]
        world, got = World(faults=faults), {"ps:0": 0, "worker:0": 0}

        def main() -> int:
            mine = runtime().name
            here, there = ("127.0.0.1:1", "127.0.0.1:2") if mine == "ps:0" else ("127.0.0.1:2", "127.0.0.1:1")
            endpoint = runtime().endpoint(here)
            for _ in range(20):
                endpoint.send(there, b"h")
                end = runtime().now() + 0.1
                while runtime().now() < end:
                    got[mine] += isinstance(endpoint.receive(end - runtime().now()), Delivery)
            return 0

        world.process("ps:0", main)
        world.process("worker:0", main)
        world.run()
        assert world.counts["partitioned"] == 40 - got["ps:0"] - got["worker:0"]
        return got["ps:0"], got["worker:0"]

    assert counts(one_way=False) == (10, 10)
    assert counts(one_way=True) == (10, 20)


def test_impossible_networks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"loss=1.5.*probability"):
        Network(loss=1.5)
    with pytest.raises(ValueError, match="bytes_per_s"):
        Network(bytes_per_s=0.0)
    with pytest.raises(ValueError, match="bytes_per_s=nan"):
        Network(bytes_per_s=math.nan)
    for latency_s in (-1.0, math.nan):
        with pytest.raises(ValueError, match="latency_s"):
            Network(latency_s=latency_s)
