"""Messages whose peer has no room: they wait in order, within bounds, and leave when there is room."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from dps.transport.sockets import upkeep as module
from dps.transport.sockets.upkeep import FIRST_S, LAST_S, Backlog


class Room:
    """What libzmq takes: so many messages of each peer; -1: the peer is gone."""

    def __init__(self) -> None:
        self.room: dict[bytes, int] = {}
        self.sent: list[tuple[bytes, bytes]] = []

    def send_message(self, socket: object, head: tuple[bytes, bytes], frames: Any, large: Any, done: Any) -> int:
        room = self.room.get(head[0], 0)
        if room <= 0:
            return errno.EHOSTUNREACH if room < 0 else errno.EAGAIN
        self.room[head[0]] = room - 1
        self.sent.append(head)
        if done is not None:
            done()
        return 0


def put(backlog: Backlog, route: bytes, *headers: bytes, done: Any = None) -> None:
    for header in headers:
        backlog.queue_message(route, header, [], [], done)


def test_what_waits_leaves_in_order_when_its_peer_has_room_and_no_peer_waits_for_another() -> None:
    room: Any = Room()
    backlog = Backlog(room)
    put(backlog, b"a", b"1", b"2", b"3")
    put(backlog, b"b", b"4")
    room.room = {b"a": 2, b"b": 1}
    backlog.send_waiting(room)
    assert room.sent == [(b"a", b"1"), (b"a", b"2"), (b"b", b"4")] and list(backlog.waiting) == [b"a"]
    waits = []
    for _ in range(7):
        waits.append(backlog.retry_s)
        backlog.send_waiting(room)
    assert waits[0] == FIRST_S and waits[-1] == LAST_S
    room.room = {b"a": 5}
    backlog.send_waiting(room)
    assert room.sent[-1] == (b"a", b"3") and not backlog.waiting and backlog.retry_s == FIRST_S


def test_the_messages_of_a_peer_that_is_gone_go_and_their_senders_are_told() -> None:
    room: Any = Room()
    backlog = Backlog(room)
    told: list[int] = []
    large = memoryview(bytes(10))
    for number in range(3):
        backlog.queue_message(b"a", b"header", [large], [True], lambda number=number: told.append(number))
    put(backlog, b"a", b"small", done=lambda: told.append(9))
    assert told == [9], "a message without large frames needs nothing of its sender any more"
    room.room = {b"a": -1}
    backlog.send_waiting(room)
    assert told == [9, 0, 1, 2] and not backlog.waiting


def test_what_is_beyond_the_bounds_is_dropped_counted_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MESSAGES", 3)
    monkeypatch.setattr(module, "NBYTES", 100)
    room: Any = Room()
    backlog = Backlog(room)
    put(backlog, b"a", *[b"x"] * 5)
    put(backlog, b"b", b"y" * 90, b"z" * 90, b"w")
    assert backlog.dropped == 3 and caplog.text.count("a peer does not read its answers") == 1
    backlog.queue_message(b"c", b"1", [memoryview(bytes(1000))], [True], None)
    assert backlog.dropped == 3, "large frames are not copied"
    room.room = dict.fromkeys((b"a", b"b", b"c"), 9)
    backlog.send_waiting(room)
    put(backlog, b"b", b"y" * 90)
    assert backlog.dropped == 3 and len(room.sent) == 6


def test_at_the_end_all_senders_are_told() -> None:
    room: Any = Room()
    backlog = Backlog(room)
    told: list[int] = []
    backlog.queue_message(b"a", b"1", [memoryview(bytes(10))], [True], lambda: told.append(1))
    backlog.close()
    assert told == [1] and not backlog.waiting
