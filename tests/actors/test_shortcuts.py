"""Shortcuts lead only those messages to a handler which all checks would let through, and answer as the long way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dps
from dps.actors.authorization import Authorization, Peer, digest
from dps.actors.caller import Caller
from dps.actors.node import Node
from dps.actors.ref import Sender
from dps.actors.shortcuts import MOST, Shortcuts
from dps.errors import DeadlineExceeded, DpsError, NotAuthenticated, ProtocolError, RemoteError
from dps.messages.sessions import SHARED, Credit, Enter, Push, Token
from dps.transport.endpoint import Delivery
from dps.transport.sim import World
from dps.transport.wire import Envelope, encode, read_head
from tests.actors.worlds import ECHO, Echo, with_echo
from tests.in_process import cluster


class Counting(Echo):
    """Takes Enter by its integers, too, and notes how each message came."""

    def __init__(self) -> None:
        super().__init__()
        self.ways: list[str] = []
        self.fails = False

    def on_Enter(self, message: Enter, sender: Sender) -> None:
        self.ways.append("message")
        super().on_Enter(message, sender)

    def take_Enter(self, sender: Sender, integers: tuple[int, ...]) -> None:
        if self.fails:
            raise {1: ValueError("one is refused"), 2: KeyError("two"), 3: ProtocolError("three")}[integers[1]]
        self.ways.append(f"integers of {sender.name}")
        self.node.answer_plain(sender, Token.form_of, (integers[1],))


def test_the_first_message_is_checked_and_the_next_ones_are_taken_by_their_integers() -> None:
    echo = Counting()

    def use(caller: Caller, world: World) -> None:
        assert [caller.ask(ECHO, Enter(n), 5.0) for n in range(3)] == [Token(0), Token(1), Token(2)]
        caller.name = "worker:1"
        assert caller.ask(ECHO, Enter(7), 5.0) == Token(7)

    with_echo(use, echo)
    assert echo.ways == ["message", "integers of worker:0", "integers of worker:0", "message"]


def test_what_a_handler_of_integers_raises_is_answered_as_on_the_long_way() -> None:
    echo = Counting()

    def use(caller: Caller, world: World) -> None:
        caller.ask(ECHO, Enter(0), 5.0)
        echo.fails = True
        with pytest.raises(ValueError, match="one is refused"):
            caller.ask(ECHO, Enter(1), 5.0)
        with pytest.raises(RemoteError, match="KeyError: 'two'"):
            caller.ask(ECHO, Enter(2), 5.0)
        with pytest.raises(ProtocolError, match="three"):
            caller.ask(ECHO, Enter(3), 5.0)

    with_echo(use, echo)


def test_a_message_without_a_handler_of_integers_goes_to_its_ordinary_one() -> None:
    echo = Counting()

    def use(caller: Caller, world: World) -> None:
        began = caller.now()
        for number in range(3):
            caller.ask(ECHO, Credit(1, number), 5.0)
        assert caller.now() - began >= 1.5

    with_echo(use, echo)


def delivered(node: Node, message: Any, more: bytes = b"") -> None:
    """A message of worker:0 over a connection arrives at a node."""
    header, _ = encode(Envelope(message, "echo", 5, "worker:0", 0))
    node._handle_event(Delivery(b"route", header + more, []))


def at_a_node(look: Callable[[Node, Counting, list[Any]], None]) -> None:
    """Look at a node on its own thread, after a first message. Its answers are noted."""
    echo, done, answers = Counting(), list[bool](), list[Any]()

    def use(caller: Caller, world: World) -> None:
        def work() -> None:
            node = echo.node
            node.answer = lambda sender, message=None, done=None: answers.append(message)  # type: ignore[method-assign]
            node.answer_plain = lambda sender, form, integers: answers.append(form.made(*integers))  # type: ignore[method-assign]
            try:
                delivered(node, Enter(1))
                look(node, echo, answers)
                done.append(True)
            finally:
                del node.answer, node.answer_plain

        caller.ask(ECHO, Enter(0), 5.0)
        echo.ways.clear()
        echo.node.post(work)
        caller.ask(ECHO, Enter(0), 5.0)
        caller.ask(ECHO, Enter(0), 5.0)

    with_echo(use, echo)
    assert done == [True]


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node.tickets.admit("sessions", [[digest(b"x"), "worker:3", "worker", [77]]]),
        lambda node: node.tickets.present(b"route", digest(b"x")),
        lambda node: node.tickets.present(b"other", digest(b"x")),
        lambda node: node.forget_shortcuts(),
    ],
)
def test_any_change_of_who_may_send_what_has_each_message_checked_again(change: Callable[[Node], object]) -> None:
    def look(node: Node, echo: Counting, answers: list[Any]) -> None:
        delivered(node, Enter(2))
        assert echo.ways[-2:] == ["message", "integers of worker:0"]
        change(node)
        delivered(node, Enter(3))
        delivered(node, Enter(4))
        assert echo.ways[-2:] == ["message", "integers of worker:0"]
        assert answers == [Token(1), Token(2), Token(3), Token(4)]

    at_a_node(look)


def test_a_head_that_is_known_lets_no_malformed_message_through() -> None:
    def look(node: Node, echo: Counting, answers: list[Any]) -> None:
        refused = node.refused_messages
        delivered(node, Enter(2), b"\0" * 8)
        header, _ = encode(Envelope(Enter(2), "echo", 5, "worker:0", 0))
        node._handle_event(Delivery(b"route", header[:-1], []))
        node._handle_event(Delivery(b"route", header, [memoryview(b"frame")]))
        assert node.refused_messages == refused + 3 and echo.ways[1:] == []

    at_a_node(look)


def test_a_change_of_whose_key_a_connection_has_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, told = Authorization("127.0.0.1:1"), list[int]()
    checks.changed = lambda: told.append(1)
    monkeypatch.setattr("dps.actors.authorization.user", lambda source: source)
    for source in ("worker", "worker", None, "reader joined", "reader joined", "worker"):
        checks.identify_sender(b"route", source)
    assert len(told) == 3 and checks.identify_sender(b"route", None) == ("worker", "worker")


def test_no_more_than_so_many_heads_are_remembered() -> None:
    found, read = Shortcuts(), read_head(encode(Envelope(Enter(1), "echo", 5, "worker:0", 0))[0][:23])
    sender = Sender(b"", 5, "worker:0", 0, Peer())
    for number in range(MOST + 1):
        found.remember(b"%d" % number, b"head", read, lambda sender, integers: None, sender, ("", ""))
    assert len(found) == 1


def test_another_process_gains_nothing_from_the_shortcuts_of_a_session() -> None:
    """It claims all that the session's messages say, on its own connection."""
    with (
        cluster(1, 1) as (worker,),
        dps.Session(worker, {"a": np.zeros(4, np.float32)}, optimizer=dps.optim.SGD(1.0)) as session,
    ):
        for _ in range(3):
            session.push({"a": np.ones(4, np.float32)})
        connection = session._connection
        with_claims = Caller(worker.runtime, "worker:0")
        with_claims.incarnation = connection.caller.incarnation
        push = Push(connection.membership.epoch, 4, 3, -1, SHARED, 16, [], [[1, 2, 3, 64], 0])
        with pytest.raises((DeadlineExceeded, NotAuthenticated)):
            with_claims.ask(connection.peers[0].ref, push, 0.4)
        with_claims.close()
        assert session.push({"a": np.ones(4, np.float32)}).step == 4
        assert session.pull()["a"].tolist() == [-4.0] * 4


def test_errors_of_a_shortcut_name_actor_and_message(caplog: pytest.LogCaptureFixture) -> None:
    echo = Counting()

    def use(caller: Caller, world: World) -> None:
        caller.ask(ECHO, Enter(0), 5.0)
        echo.fails = True
        with pytest.raises(DpsError):
            caller.ask(ECHO, Enter(2), 5.0)

    with_echo(use, echo)
    assert "where echo handles Enter" in caplog.text
