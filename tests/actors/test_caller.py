"""Requests from a user's thread, against an actor in another simulated process."""

from __future__ import annotations

import numpy as np
import pytest

from dps.actors.answers import Done, Failed, Waiting
from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.errors import DeadlineExceeded, RemoteError, Unavailable
from dps.messages.runs import AskState, AskStats, Init, Stats
from dps.messages.sessions import Credit, Enter, Token
from dps.transport.current import runtime
from dps.transport.message import Message
from dps.transport.sim import Network, World
from dps.transport.sim.world import Kill, Pause
from tests.actors.worlds import ECHO, Echo, with_echo


def test_a_question_gets_its_answer() -> None:
    def use(caller: Caller, world: World) -> None:
        assert caller.ask(ECHO, Enter(7), 5.0) == Token(7)
        arrays = (np.arange(4), np.ones((2, 3), np.float32))
        assert caller.ask(ECHO, Init(1, 0, [], b"", arrays), 5.0) == Stats({"sum": 12})

    with_echo(use)


@pytest.mark.parametrize(("epoch", "name"), [(7, "test"), (1 << 63, "test"), (7, "n" * 300)])
def test_a_message_that_is_told_by_its_integers_arrives_also_where_no_plain_header_holds_it(
    epoch: int, name: str
) -> None:  # fmt: skip
    def use(caller: Caller, world: World) -> None:
        caller.name = name
        number = caller.take_number()
        caller.post_plain(ECHO, Enter.form_of, (number, epoch))
        usual = epoch < 1 << 63
        assert caller.hear([number], Token.form_of, 5.0) == {number: (number, epoch) if usual else Token(epoch)}

    with_echo(use)


def test_other_answers_are_heard_as_messages_and_what_else_arrives_meanwhile_goes_on() -> None:
    def use(caller: Caller, world: World) -> None:
        answers: list[Message] = []
        asked = caller.start(ECHO, Enter(3), lambda answer: answers.append(answer) is None)
        usual, other, late = caller.take_number(), caller.take_number(), caller.take_number()
        caller.post_plain(ECHO, Enter.form_of, (usual, 7))
        caller.post(ECHO, AskState(1), other)
        caller.post(ECHO, AskStats(), late)
        heard = caller.hear([usual, other, late], Token.form_of, 0.3)
        assert list(heard) == [usual, other] and heard[usual] == (usual, 7)
        assert isinstance(heard[other], Failed) and asked.complete and answers == [Token(3)]
        assert caller.reached == {ECHO.address}

    with_echo(use)


def test_of_several_answers_to_a_posted_request_the_first_is_heard() -> None:
    def use(caller: Caller, world: World) -> None:
        number, never = caller.take_number(), caller.take_number()
        caller.post_plain(ECHO, Enter.form_of, (number, 5))
        caller.post_plain(ECHO, Enter.form_of, (number, 6))
        caller.post(ECHO, AskState(1), number)
        caller.post(ECHO, AskStats(), never)
        assert caller.hear([number, never], Token.form_of, 0.3) == {number: (number, 5)}

    with_echo(use)


def test_a_refusal_is_raised_where_it_was_asked_as_what_it_is() -> None:
    def use(caller: Caller, world: World) -> None:
        with pytest.raises(ValueError, match="one is refused"):
            caller.ask(ECHO, AskState(1), 5.0)
        with pytest.raises(RemoteError, match="KeyError: 'two' .on ps:0."):
            caller.ask(ECHO, AskState(2), 5.0)
        with pytest.raises(Unavailable, match=r"ps:0 hosts no 'nobody', only \['echo'\]"):
            caller.ask(Ref(ECHO.address, "nobody"), Enter(1), 5.0)

    with_echo(use)


def test_what_an_actor_does_not_understand_is_told() -> None:
    def use(caller: Caller, world: World) -> None:
        with pytest.raises(Exception, match="echo got Token, which it does not handle"):
            caller.ask(ECHO, Token(1), 5.0)

    with_echo(use)


def test_nobody_there_is_a_deadline_that_names_whom_and_what() -> None:
    def use(caller: Caller, world: World) -> None:
        before = runtime().now()
        with pytest.raises(DeadlineExceeded, match=r"echo at 127\.0\.0\.1:5001 did not answer Enter within 1\.5 s"):
            caller.ask(Ref("127.0.0.1:5001", "echo"), Enter(1), 1.5)
        assert runtime().now() - before == pytest.approx(1.5)

    with_echo(use)


def test_waiting_is_no_last_answer() -> None:
    def use(caller: Caller, world: World) -> None:
        before = runtime().now()
        assert caller.ask(ECHO, Credit(1, 1), 5.0) == Done()
        assert runtime().now() - before > 0.5

    with_echo(use)


@pytest.mark.parametrize("seed", range(5))
def test_over_a_network_that_loses_doubles_and_reorders_every_question_gets_its_own_answer(seed: int) -> None:
    echo = Echo()

    def use(caller: Caller, world: World) -> None:
        found: dict[int, list[Message]] = {}

        def ask(n: int) -> object:
            found[n] = []

            def feed(answer: Message) -> bool:
                found[n].append(answer)
                return True

            return caller.start(ECHO, Enter(n), feed)

        assert caller.wait([ask(n) for n in range(100)], 60.0)  # type: ignore[misc]
        caller.poll()
        assert found == {n: [Token(n)] for n in range(100)}  # each once

    with_echo(use, echo, Network(loss=0.2, double=0.2, reorder=0.3), seed=seed)
    assert set(echo.entered) == set(range(100)) and len(echo.entered) > 100


def test_several_answers_feed_one_request_until_it_is_complete() -> None:
    def use(caller: Caller, world: World) -> None:
        seen: list[Message] = []

        def feed(answer: Message) -> bool:
            seen.append(answer)
            return len(seen) == 3

        request = caller.start(ECHO, Enter(1), feed, resend=lambda: None)
        caller.send(request, Enter(2))
        caller.send(request, Credit(1, 1))
        assert caller.wait([request], 5.0)
        assert seen == [Token(1), Token(2), Waiting("waits a while")]

    with_echo(use)


def test_a_wait_ends_at_its_time_and_the_request_goes_on() -> None:
    def use(caller: Caller, world: World) -> None:
        request = caller.start(ECHO, Credit(1, 1), lambda answer: isinstance(answer, Done))
        assert not caller.wait([request], 0.1)
        assert caller.wait([request], 5.0)
        unanswered = caller.start(ECHO, AskStats(), lambda answer: True)
        asked = iter([False, False, True])
        assert not caller.wait([unanswered], 60.0, stop=lambda: next(asked))
        assert next(asked, None) is None

    with_echo(use)


def test_a_dropped_request_hears_nothing_more() -> None:
    def use(caller: Caller, world: World) -> None:
        heard: list[Message] = []

        def feed(answer: Message) -> bool:
            heard.append(answer)
            return True

        caller.drop(caller.start(ECHO, Enter(1), feed))
        caller.ask(ECHO, Enter(2), 5.0)
        assert heard == []

    with_echo(use)


def test_who_is_away_is_noted_and_asked_again_at_once_when_back() -> None:
    def use(caller: Caller, world: World) -> None:
        caller.ask(ECHO, Enter(1), 5.0)
        runtime().sleep(1.0)  # until after the kill
        caller.poll()
        assert list(caller.away) == [ECHO.address]
        assert caller.ask(ECHO, Enter(2), 20.0) == Token(2)
        assert caller.away == {}

    echo = Echo()
    with_echo(use, echo, faults=[Kill("ps:0", at=0.5, restart_after=3.0)])
    assert echo.events == ["started", "started"]


def test_a_stopped_actor_answers_when_it_goes_on() -> None:
    def use(caller: Caller, world: World) -> None:
        runtime().sleep(0.2)
        before = runtime().now()
        assert caller.ask(ECHO, Enter(1), 20.0) == Token(1)
        assert 2.5 < runtime().now() - before < 5.0

    with_echo(use, faults=[Pause("ps:0", at=0.1, seconds=3.0)])
