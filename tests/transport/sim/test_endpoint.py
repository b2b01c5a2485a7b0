"""What a simulated endpoint does with frames and waits."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from dps.errors import Unavailable
from dps.transport.current import runtime
from dps.transport.endpoint import (
    Connected,
    Delivery,
    Endpoint,
)
from dps.transport.sim import Network, SimulationError, World
from tests.transport.sim.worlds import EXACT, PS, alone, delivery, pair


def test_a_message_goes_there_and_an_answer_comes_back() -> None:
    def server(world: World, endpoint: Endpoint) -> None:
        got = delivery(endpoint)
        assert isinstance(got.route, bytes)
        assert len(got.route) == 16
        assert (got.header, [bytes(frame) for frame in got.frames]) == (b"hello", [b"\x01\x00\x02\x00", b""])
        endpoint.send(got.route, b"answer", [b"frame"])

    def client(world: World, endpoint: Endpoint) -> None:
        endpoint.send(PS, b"hello", [np.array([1, 2], np.int16), b""])
        assert delivery(endpoint) == Delivery(PS, b"answer", [memoryview(b"frame")])

    pair(server, client)


def test_a_message_takes_its_bytes_over_the_bandwidth_plus_the_latency() -> None:
    def server(world: World, endpoint: Endpoint) -> None:
        # Sent at 0.001 with the connection up; 1,000 bytes at 1e6 a second are 1 ms, and 1 ms of latency.
        delivery(endpoint)
        assert world.now == pytest.approx(0.003)
        delivery(endpoint)
        assert world.now == pytest.approx(0.004)

    def client(world: World, endpoint: Endpoint) -> None:
        assert world.now == pytest.approx(0.001)
        endpoint.send(PS, b"h", [bytes(999)])
        endpoint.send(PS, b"h", [bytes(999)])

    pair(server, client, network=EXACT)


def test_messages_of_one_sender_arrive_in_order_without_faults() -> None:
    def server(world: World, endpoint: Endpoint) -> None:
        assert [delivery(endpoint).header for _ in range(500)] == [b"%d" % n for n in range(500)]

    def client(world: World, endpoint: Endpoint) -> None:
        for n in range(500):
            endpoint.send(PS, b"%d" % n, [bytes(n % 7)])
            if n % 50 == 0:
                runtime().sleep(1e-5)

    pair(server, client, network=Network(jitter=20.0))


def test_an_endpoint_may_write_to_itself() -> None:
    def main(world: World) -> None:
        endpoint = runtime().endpoint("inproc://node")
        endpoint.send("inproc://node", b"to myself")
        got = delivery(endpoint)
        endpoint.send(got.route, b"back")
        assert (got.header, delivery(endpoint)) == (b"to myself", Delivery("inproc://node", b"back", []))
        assert world.now < 1e-5

    alone(main)


def test_a_frame_is_read_when_it_arrives_and_not_before() -> None:
    def server(world: World, endpoint: Endpoint) -> None:
        got = delivery(endpoint)
        assert np.frombuffer(got.frames[0]).tolist() == [2.0, 2.0]
        runtime().sleep(1.0)
        assert np.frombuffer(got.frames[0]).tolist() == [2.0, 2.0]

    def client(world: World, endpoint: Endpoint) -> None:
        array = np.array([1.0, 1.0])
        endpoint.send(PS, b"push", [array])
        array[:] = 2.0
        runtime().sleep(0.5)
        array[:] = 3.0

    pair(server, client)


def test_done_is_called_by_a_later_send_or_receive_once_the_frames_were_read() -> None:
    calls: list[str] = []

    def client(world: World, endpoint: Endpoint) -> None:
        endpoint.send(PS, b"one", [bytes(8)], lambda: calls.append("one"))
        endpoint.send(PS, b"two", [bytes(8)], lambda: calls.append("two"))
        assert endpoint.receive(0.0) is None
        assert calls == []
        runtime().sleep(0.1)
        assert calls == []
        endpoint.send(PS, b"three", [], lambda: calls.append("three"))
        assert calls == ["one", "two"]
        assert endpoint.receive(0.1) is None
        assert calls == ["one", "two", "three"]

    def server(world: World, endpoint: Endpoint) -> None:
        for _ in range(3):
            delivery(endpoint)
        runtime().sleep(10.0)

    pair(server, client)


def test_a_blocked_receive_calls_done_without_returning() -> None:
    def client(world: World, endpoint: Endpoint) -> None:
        called: list[float] = []
        endpoint.send(PS, b"h", [bytes(8)], lambda: called.append(world.now))
        assert endpoint.receive(1.0) is None
        assert called == [pytest.approx(0.002, abs=1e-4)]
        assert world.now == pytest.approx(1.001)

    def server(world: World, endpoint: Endpoint) -> None:
        delivery(endpoint)
        runtime().sleep(10.0)

    pair(server, client, network=EXACT)


def test_close_gives_all_frames_back_and_what_was_sent_still_arrives_unchanged() -> None:
    calls: list[str] = []

    def server(world: World, endpoint: Endpoint) -> None:
        assert bytes(delivery(endpoint).frames[0]) == b"aaaa"

    def client(world: World, endpoint: Endpoint) -> None:
        frame = bytearray(b"aaaa")
        endpoint.send(PS, b"h", [frame], lambda: calls.append("up"))
        endpoint.send("127.0.0.1:9999", b"h", [frame], lambda: calls.append("nobody there"))
        endpoint.close()
        assert sorted(calls) == ["nobody there", "up"]
        frame[:] = b"bbbb"
        endpoint.close()
        with pytest.raises(Unavailable, match=r"worker:0 cannot send: .* is closed"):
            endpoint.send(PS, b"h")
        with pytest.raises(Unavailable, match="cannot receive"):
            endpoint.receive(0.0)

    pair(server, client)


def test_messages_that_do_not_leave_within_the_linger_are_lost() -> None:
    def server(world: World, endpoint: Endpoint) -> None:
        assert delivery(endpoint).header == b"first"
        assert endpoint.receive(10.0) is None

    def client(world: World, endpoint: Endpoint) -> None:
        endpoint.send(PS, b"first", [bytes(100_000)])
        endpoint.send(PS, b"second", [bytes(100_000)])
        endpoint.close(linger_s=0.15)

    world = pair(server, client, network=EXACT)
    assert world.counts["dropped"] == 1


def test_dropped_messages_give_their_frames_back_too() -> None:
    calls: list[int] = []

    def main(world: World) -> None:
        endpoint = runtime().endpoint(PS)
        for n in range(4):
            endpoint.send("127.0.0.1:9999", b"h", [bytes(8)], partial(calls.append, n))
        assert endpoint.receive(1.0) is None
        assert calls == [0, 1]
        endpoint.disconnect("127.0.0.1:9999")
        endpoint.send(bytes(16), b"to a stranger", [], lambda: calls.append(4))
        assert endpoint.receive(0.0) is None
        assert calls == [0, 1, 2, 3, 4]

    assert alone(main, Network(queue_messages=2)).counts["dropped"] == 5


def test_receive_waits_its_timeout_in_virtual_time() -> None:
    def main(world: World) -> None:
        endpoint = runtime().endpoint()
        for timeout_s, now in ((2.5, 2.5), (0.0, 2.5), (-1.0, 2.5), (0.25, 2.75), (60.0, 62.75)):
            assert endpoint.receive(timeout_s) is None
            assert world.now == now

    alone(main)


def test_many_waits_with_different_timeouts_end_at_their_own() -> None:
    def main(world: World) -> None:
        endpoint = runtime().endpoint(PS)
        endpoint.connect(PS)
        assert endpoint.receive(60.0) == Connected(PS)
        begin = world.now
        for timeout_s in (5.0, 1.0, 3.0, 0.5, 9.0):
            endpoint.send(PS, b"cuts the first wait short")
            assert endpoint.receive(timeout_s) is not None
            assert endpoint.receive(timeout_s) is None
        assert world.now - begin == pytest.approx(18.5, abs=1e-4)

    alone(main)


def test_wake_ends_the_wait_that_goes_on_or_else_the_next_one() -> None:
    def main(world: World) -> None:
        endpoint = runtime().endpoint()

        def waker() -> None:
            runtime().sleep(1.0)
            endpoint.wake()

        runtime().spawn("waker", waker)
        assert endpoint.receive(60.0) is None
        assert world.now == 1.0
        endpoint.wake()
        assert endpoint.receive(60.0) is None
        assert world.now == 1.0
        assert endpoint.receive(2.0) is None
        assert world.now == 3.0

    alone(main)


def test_two_tasks_that_receive_from_one_endpoint_are_named() -> None:
    world = World()

    def main() -> int:
        endpoint = runtime().endpoint()

        def second() -> None:
            runtime().sleep(1.0)
            endpoint.receive(1.0)

        runtime().spawn("second", second)
        endpoint.receive(60.0)
        return 0

    world.process("ps:0", main)
    with pytest.raises(SimulationError, match="tasks 'main' and 'second' of ps:0"):
        world.run()
