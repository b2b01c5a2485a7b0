"""Waits on ZeroMQ's sockets, whose descriptors tell of an event once."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import zmq

from dps.transport.sockets import wakeups as module
from dps.transport.sockets.wakeups import Poller, Socket

LONG_S = 60.0
Pair = tuple[Poller, Socket, Socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A poller that waits on the second of two sockets and has found nothing there."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as writes, context.socket(zmq.PAIR) as reads:
        reads.bind("inproc://pair")
        writes.connect("inproc://pair")
        made = Poller()
        made.register(reads)
        assert made.wait(0) == ([], [])
        yield made, writes, reads


def test_a_message_ends_a_wait_and_is_told_of_until_it_is_read(pair: Pair) -> None:
    made, writes, reads = pair
    writes.send(b"news")
    assert made.wait(LONG_S) == made.wait(LONG_S) == ([], [reads])
    made.used(reads)
    assert reads.recv(zmq.NOBLOCK) == b"news" and made.wait(0) == ([], [])


def test_the_second_of_two_messages_is_told_of_though_the_descriptor_is_silent(pair: Pair) -> None:
    made, writes, reads = pair
    for text in (b"first", b"second"):
        writes.send(text)
    for text in (b"first", b"second"):
        assert made.wait(LONG_S) == ([], [reads])
        made.used(reads)
        assert reads.recv(zmq.NOBLOCK) == text
    assert made.wait(0) == ([], [])


def test_what_a_use_of_the_socket_took_note_of_is_told(pair: Pair) -> None:
    made, writes, reads = pair
    writes.send(b"news")
    made.used(reads)
    assert reads.get(zmq.EVENTS) & zmq.POLLIN  # as a send does: the descriptor is silent from here on
    assert made.wait(LONG_S) == ([], [reads])


def test_an_interrupt_amid_a_wait_loses_no_message(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    made, writes, reads = pair
    readable = module._readable

    def interrupted(socket: Socket) -> bool:
        readable(socket)
        raise KeyboardInterrupt

    writes.send(b"news")
    with monkeypatch.context() as patch:
        patch.setattr(module, "_readable", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.wait(LONG_S)
    assert made.wait(LONG_S) == ([], [reads])


def test_a_plain_descriptor_is_told_of_beside_a_socket(pair: Pair) -> None:
    made, writes, reads = pair
    out, into = os.pipe()
    try:
        made.register_fd(out)
        os.write(into, b"1")
        assert made.wait(LONG_S) == ([out], [])
        writes.send(b"news")
        assert made.wait(LONG_S) == ([out], [reads])
    finally:
        os.close(out)
        os.close(into)


def test_a_socket_that_was_taken_away_is_not_told_of(pair: Pair) -> None:
    made, writes, reads = pair
    writes.send(b"news")
    made.unregister(reads)
    assert made.wait(0) == ([], [])
