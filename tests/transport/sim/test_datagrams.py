"""Datagrams between the endpoints of one simulated machine: the rules of the real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dps.transport.current import runtime
from dps.transport.endpoint import Delivery, Endpoint
from dps.transport.sim import Fault, Kill, Network, Partition, Pause, World
from dps.transport.sim.datagrams import ROOM

PS = "127.0.0.1:5000"
NAMES: dict[str, bytes] = {}
"""What the tasks of the world of now tell each other beside it."""


def with_room(room: int) -> int:
    """A seed of a world whose queues hold so many."""
    for seed in range(100):
        with World(seed, shared_memory=True) as world:
            if world._supervisor._setting.sockets.room == room:  # type: ignore[attr-defined]
                return seed
    raise AssertionError(f"none of 100 seeds has room for {room}")


class Talk:
    """ps:0 notes what it hears, and when; worker:0 is paired with it."""

    def __init__(self, use: Callable[[Endpoint], None], faults: list[Fault] | None = None, **world: Any) -> None:
        self.heard: list[tuple[float, bytes]] = []
        self.names = NAMES
        self.names.clear()
        settings: dict[str, Any] = {"shared_memory": True, "network": Network(latency_s=1e-3, jitter=0.0), **world}
        self.world = World(faults=faults or [], **settings)
        self.use = use
        self.world.process("ps:0", self._serve)
        worker = self.world.process("worker:0", self._work)
        with self.world:
            self.world.run(60.0)
        if worker.error is not None:
            raise worker.error

    def _serve(self) -> None:
        endpoint = runtime().endpoint(PS)
        self.names["ps:0"] = endpoint.direct
        while (event := endpoint.receive(30.0)) is not None:
            if isinstance(event, Delivery):
                self.heard.append((self.world.now, event.header))
                if event.header == b"pair":
                    self.names["paired"] = b"yes" if endpoint.pair(event.route, bytes(event.frames[0]), False) else b""
                    endpoint.send(event.route, b"paired")

    def _work(self) -> None:
        endpoint = runtime().endpoint()
        endpoint.send(PS, b"pair", [endpoint.direct])
        while not isinstance(endpoint.receive(5.0), Delivery):
            pass
        endpoint.pair(PS, self.names["ps:0"], True)
        self.use(endpoint)


def headers(talk: Talk) -> list[bytes]:
    return [header for _, header in talk.heard if header != b"pair"]


def test_a_message_comes_past_the_connection_and_its_sender_has_its_frames_back_at_once() -> None:
    done: list[int] = []

    def use(endpoint: Endpoint) -> None:
        endpoint.send(PS, b"one", [b"frame"], lambda: done.append(1))
        assert done == [1]
        runtime().sleep(0.1)
        endpoint.send(PS, b"too long for it", [bytes(100_000)], lambda: done.append(2))
        assert done == [1]
        runtime().sleep(0.1)

    talk = Talk(use, trace="all")
    assert headers(talk) == [b"one", b"too long for it"] and talk.world.counts["datagram"] == 1


@pytest.mark.parametrize("world", [{"datagrams": False}, {"shared_memory": False}])
def test_a_world_may_have_none(world: dict[str, Any]) -> None:
    talk = Talk(lambda endpoint: endpoint.send(PS, b"one"), trace="all", **world)
    assert talk.names == {"ps:0": b"", "paired": b""} and "datagram" not in talk.world.counts
    assert headers(talk) == [b"one"]


def test_no_partition_stops_it() -> None:
    def use(endpoint: Endpoint) -> None:
        runtime().sleep(2.0)
        endpoint.send(PS, b"small")
        endpoint.send(PS, b"large", [bytes(100_000)])
        runtime().sleep(1.0)

    assert headers(Talk(use, [Partition("ps:0", at=1.0, seconds=3.0)])) == [b"small"]


def test_it_waits_while_its_receiver_is_stopped_though_the_connection_has_been_cut() -> None:
    def use(endpoint: Endpoint) -> None:
        runtime().sleep(2.0)
        endpoint.send(PS, b"small")
        runtime().sleep(18.0)

    talk = Talk(use, [Pause("ps:0", at=1.0, seconds=10.0)], seed=with_room(10))
    assert talk.heard[1:] == [(11.0, b"small")] and talk.world.counts["disconnected"] >= 1


def test_it_goes_with_its_receiver_and_what_is_sent_after_goes_over_the_connection() -> None:
    def use(endpoint: Endpoint) -> None:
        runtime().sleep(2.0)
        endpoint.send(PS, b"lost with it")
        runtime().sleep(2.0)
        endpoint.send(PS, b"nobody has that name")
        runtime().sleep(2.0)

    talk = Talk(use, [Pause("ps:0", at=1.0, seconds=5.0), Kill("ps:0", at=3.0, restart_after=1.5)], seed=with_room(10))
    assert headers(talk) == [b"nobody has that name"]


def test_the_end_of_a_process_that_is_killed_while_it_is_stopped_is_noticed_at_once() -> None:
    talk = Talk(lambda _: runtime().sleep(4.0), [Pause("ps:0", at=1.0, seconds=5.0), Kill("ps:0", at=2.0)])
    assert [event.time_s for event in talk.world.trace if event.what == "disconnected"] == [pytest.approx(2.02)]


def test_a_full_queue_sends_it_over_the_connection() -> None:
    def use(endpoint: Endpoint) -> None:
        for number in range(20):
            endpoint.send(PS, b"%d" % number)
        runtime().sleep(0.1)

    assert sorted(ROOM) == [1, 10, 512]
    talk = Talk(use, seed=with_room(10), trace="all")
    assert talk.world.counts["datagram"] == 10 and sorted(map(int, headers(talk))) == list(range(20))


def test_strangers_are_not_heard_and_are_counted() -> None:
    def use(endpoint: Endpoint) -> None:
        stranger = runtime().endpoint()
        stranger.pair(PS, NAMES["ps:0"], True)
        stranger.send(PS, b"stranger")
        runtime().sleep(1.0)

    talk = Talk(use)
    assert headers(talk) == [] and talk.world.counts["unheard"] == 1
