"""A node on the simulated clock: dispatch, answers, timers, losses, and an end in order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dps.actors.answers import Done
from dps.actors.caller import Caller
from dps.actors.node import Node
from dps.actors.ref import Ref, Sender, is_local
from dps.errors import DeadlineExceeded, Unavailable
from dps.messages.runs import AskState, AskStats, Init, Stats
from dps.messages.sessions import Enter, Token
from dps.transport.current import runtime
from dps.transport.endpoint import Delivery
from dps.transport.message import Message
from dps.transport.sim import World
from dps.transport.sim.world import Kill, Pause
from tests.actors.worlds import ADDRESS, ECHO, Echo, serve, with_echo

OTHER = "127.0.0.1:6000"


def inside(work: Callable[[], object], faults: Any = (), until_s: float = 60.0) -> World:
    """Run `work` as a process of its own; it must end well."""
    world = World(faults=faults)
    process = world.process("ps:0", lambda: 0 if work() is None else 1)
    with world:
        world.run(until_s)
        for problem in (process.error, *process.task_errors):
            if problem is not None:
                raise problem
        assert process.state == "ended"
    return world


def test_a_node_tells_its_actors_of_the_start_and_of_the_end() -> None:
    def work() -> None:
        echo = Echo()
        node = serve(echo)
        assert node.address == ADDRESS
        runtime().sleep(0.1)
        assert is_local(runtime(), ADDRESS, "echo") and not is_local(runtime(), ADDRESS, "other")
        node.stop()
        assert node.join(1.0)
        assert echo.events == ["started", "stopping"]
        assert not is_local(runtime(), ADDRESS, "echo")

    inside(work)


def test_a_taken_address_fails_at_construction_and_is_named() -> None:
    def work() -> None:
        node = serve(Echo())
        with pytest.raises(Unavailable, match=ADDRESS):
            Node(runtime(), ADDRESS, "ps:1")
        node.stop()
        node.join()

    inside(work)


def test_whoever_is_in_the_mailbox_at_the_end_is_answered() -> None:
    class Last(Echo):
        def on_Enter(self, message: Enter, sender: Sender) -> None:
            runtime().sleep(0.05)  # the next question has arrived when this one is done
            super().on_Enter(message, sender)
            self.node.stop()

    def use(caller: Caller, world: World) -> None:
        handled = caller.start(ECHO, Enter(1), lambda answer: answer == Token(1))
        with pytest.raises(Unavailable, match="ps:0 has stopped"):
            caller.ask(ECHO, Enter(2), 5.0)
        assert handled.complete

    echo = Last()
    with_echo(use, echo)
    assert echo.entered == [1] and echo.events == ["started", "stopping"]


def test_actors_of_one_node_write_to_one_another_without_the_network() -> None:
    def work() -> None:
        echo, other = Echo(), Echo()
        node = Node(runtime(), ADDRESS, "ps:0")
        node.host("echo", echo)
        node.host("other", other)
        node.start()
        answers: list[Message | Exception] = []
        array = np.array([1, 2, 3])
        node.post(lambda: answers.append(Done()))
        node.post(lambda: _ignore(node.ask(ECHO, Enter(3), 1.0, answers.append)))
        node.post(lambda: _ignore(node.ask(Ref(ADDRESS, "other"), Init(1, 0, [], b"", (array,)), 1.0, answers.append)))
        node.post(lambda: node.tell(Ref(ADDRESS, "other"), Enter(5)))
        runtime().sleep(0.01)
        assert answers == [Done(), Token(3), Stats({"sum": 6})]
        assert echo.entered == [3] and other.entered == [5]
        node.stop()
        node.join()

    inside(work)


def _ignore(_: object) -> None:
    return None


def test_questions_of_an_actor_end_in_an_answer_an_error_or_a_deadline() -> None:
    def work() -> None:
        echo = Echo()
        node = serve(echo)
        answers: list[Message | Exception] = []
        node.post(lambda: _ignore(node.ask(ECHO, AskState(1), 5.0, answers.append)))
        node.post(lambda: _ignore(node.ask(ECHO, AskStats(), 2.0, answers.append)))
        dropped: list[Message | Exception] = []
        node.post(lambda: node.ask(ECHO, Enter(1), 5.0, dropped.append)())
        runtime().sleep(1.9)
        assert len(answers) == 1 and isinstance(answers[0], ValueError)
        runtime().sleep(0.2)
        assert isinstance(answers[1], DeadlineExceeded)
        assert str(answers[1]) == f"echo at {ADDRESS} did not answer AskStats within 2.0 s"
        assert len(echo.kept) > 2  # it was asked again and again
        assert dropped == []
        node.stop()
        node.join()

    inside(work)


def test_timers_come_in_order_and_a_cancelled_one_not_at_all() -> None:
    def work() -> None:
        node = serve(Echo())
        seen: list[tuple[str, float]] = []
        begin = runtime().now()

        def note(what: str) -> Callable[[], None]:
            return lambda: seen.append((what, round(runtime().now() - begin, 3)))

        def set_timers() -> None:
            node.after(0.3, note("third"))
            node.after(0.1, note("first"))
            node.after(0.1, note("second"))
            node.after(0.2, note("never")).cancel()

        node.post(set_timers)
        runtime().sleep(1.0)
        assert seen == [("first", 0.1), ("second", 0.1), ("third", 0.3)]
        node.stop()
        node.join()

    inside(work)


def test_what_fails_on_the_nodes_thread_is_logged_and_the_node_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        echo = Echo()
        node = serve(echo)
        node.post(lambda: _ignore(1 // 0))
        node.post(lambda: _ignore(node.after(0.1, lambda: _ignore({}["no such key"]))))  # type: ignore[index]
        node.post(lambda: node.tell(ECHO, Enter(1)))
        runtime().sleep(0.5)
        node.post(lambda: node.tell(ECHO, Enter(2)))
        runtime().sleep(0.1)
        assert echo.entered == [1, 2]
        node.stop()
        node.join()

    with caplog.at_level(logging.ERROR, "dps"):
        inside(work)
    assert sum("ZeroDivisionError" in text or "no such key" in text for text in caplog.messages) == 2


def test_bytes_that_are_no_message_are_counted_and_their_sender_is_told_when_it_asked() -> None:
    echo = Echo()
    nodes: list[Node] = []

    def main() -> None:
        nodes.append(serve(echo))
        nodes[0].join()

    def body() -> None:
        endpoint = runtime().endpoint()
        endpoint.send(ADDRESS, b"garbage")
        caller = Caller(runtime(), "worker:0")
        assert caller.ask(ECHO, Enter(1), 5.0) == Token(1)
        assert nodes[0].refused_messages == 1 and not isinstance(endpoint.receive(0.0), Delivery)
        caller.close()
        nodes[0].stop()

    world = World()
    for name, run in (("ps:0", main), ("worker:0", body)):
        world.process(name, run)
    with world:
        world.run(60.0)
        assert [p.error for p in world.processes.values()] == [None, None]
        assert [p.state for p in world.processes.values()] == ["ended", "ended"]


# -- who is away --------------------------------------------------------------------------------------------------


def watching(grace_s: float, faults: Any, until_s: float, restarts: int = 0) -> list[str]:
    """What a node at ADDRESS is told of one at OTHER, for so many virtual seconds."""
    echo = Echo()

    def watch() -> None:
        node = serve(echo, "chief")
        node.post(lambda: node.watch(OTHER, grace_s))
        node.join()

    def other() -> None:
        serve(Echo(), "ps:0", OTHER).join()

    world = World(faults=faults)
    world.process("ps:0", other, restarts=restarts)
    world.process("chief", watch)
    with world:
        world.run(until_s)
    return echo.events[1:]


def test_a_watched_node_that_dies_is_lost_after_the_grace_and_told_when_it_is_back() -> None:
    events = watching(2.0, [Kill("ps:0", at=1.0, restart_after=5.0)], until_s=20.0)
    assert events[:2] == [f"back {OTHER}", f"lost {OTHER} after 2.0"]
    assert events[2:] == [f"back {OTHER}"]


def test_a_node_that_is_back_within_the_grace_is_never_lost() -> None:
    events = watching(2.0, [Kill("ps:0", at=1.0, restart_after=0.5)], until_s=20.0)
    assert set(events) == {f"back {OTHER}"}


def test_a_node_that_never_comes_is_lost() -> None:
    assert watching(2.0, [Kill("ps:0", at=0.0)], until_s=20.0) == [f"lost {OTHER} after 2.0"]


def test_a_watcher_that_stood_still_itself_holds_it_against_nobody() -> None:
    assert set(watching(2.0, [Pause("chief", at=1.0, seconds=10.0)], until_s=30.0)) == {f"back {OTHER}"}


def test_an_answer_to_nobody_gives_its_arrays_back_at_once() -> None:
    def work() -> None:
        node = serve(Echo())
        freed: list[int] = []
        node.post(lambda: node.answer(Sender(OTHER, 0, "x", 1), Done(), lambda: freed.append(1)))
        runtime().sleep(0.01)
        assert freed == [1]
        node.stop()
        node.join()

    inside(work)


def test_the_helper_world_serves() -> None:
    def use(caller: Caller, world: World) -> None:
        assert caller.ask(ECHO, Enter(1), 1.0) == Token(1)

    assert with_echo(use).processes["worker:0"].exit_code == 0
