"""Requests as a state machine: numbers, resends, deadlines and answers, on a clock that the test moves."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dps.actors.ref import Ref
from dps.actors.requests import Question, Request, Requests
from dps.messages.sessions import Enter, Token
from dps.transport.message import Message
from dps.transport.tuning import ORDINARY

FIRST_RESEND_S, LAST_RESEND_S = ORDINARY.nodes.first_resend_s, ORDINARY.nodes.last_resend_s

PS = Ref("127.0.0.1:1", "ps")


class Asker:
    """Requests with notes of what was fed and what expired."""

    def __init__(self) -> None:
        self.requests = Requests()
        self.fed: list[Message] = []
        self.expired: list[int] = []

    def open(self, now: float = 0.0, deadline: float = 100.0, wanted: int = 1, to: Ref = PS, **more: Any) -> Request:
        left = [wanted]

        def feed(answer: Message) -> bool:
            self.fed.append(answer)
            left[0] -= 1
            return left[0] == 0

        number = self.requests._last + 1
        again = more.pop("again", lambda: Enter(number))
        request = Question(feed, again, lambda: self.expired.append(number))
        self.requests.open_request(now, to, request, deadline, **more)
        return request


def test_numbers_are_dense_from_one() -> None:
    asker = Asker()
    assert [asker.open().number for _ in range(3)] == [1, 2, 3]
    assert len(asker.requests) == 3


def test_a_request_ends_when_its_feed_has_all_it_wants_and_late_answers_are_dropped() -> None:
    asker = Asker()
    request = asker.open(wanted=2)
    asker.requests.feed_answer(1, Token(1), 0.1)
    assert not request.complete
    asker.requests.feed_answer(1, Token(2), 0.2)
    asker.requests.feed_answer(1, Token(3), 0.3)
    asker.requests.feed_answer(99, Token(4), 0.3)
    assert request.complete and len(asker.requests) == 0
    assert asker.fed == [Token(1), Token(2)]


def test_while_nothing_comes_it_is_sent_again_at_doubled_intervals_up_to_two_seconds() -> None:
    asker = Asker()
    asker.open()
    sent_at: list[float] = []
    while len(sent_at) < 7:
        at = asker.requests.next_at()
        assert at is not None
        assert asker.requests.take_due(at - 1e-6) == []
        sent_at += [at for _ in asker.requests.take_due(at)]
    assert (FIRST_RESEND_S, LAST_RESEND_S) == (0.25, 2.0)
    assert sent_at == [0.25, 0.75, 1.75, 3.75, 5.75, 7.75, 9.75]


def test_while_its_answer_comes_in_parts_a_request_is_not_sent_again() -> None:
    asker = Asker()
    request = asker.open(wanted=100)
    for number in range(1, 100):
        asker.requests.feed_answer(request.number, Token(1), 0.2 * number)
        assert asker.requests.take_due(0.2 * number) == []
    assert [again.number for again, _ in asker.requests.take_due(0.2 * 99 + FIRST_RESEND_S)] == [1], (
        "the rest does not come"
    )


def test_a_first_interval_of_its_own_that_is_longer_never_shrinks() -> None:
    asker = Asker()
    asker.open(resend_s=3.0)
    assert [asker.requests.take_due(at) != [] for at in (2.9, 3.0, 5.9, 6.0)] == [False, True, False, True]


def test_a_resend_may_be_another_message_or_nothing() -> None:
    asker = Asker()
    messages = [None, Enter(7)]
    request = asker.open(again=lambda: messages.pop(0))
    assert asker.requests.take_due(0.25) == []
    assert asker.requests.take_due(0.75) == [(request, Enter(7))]


def test_past_its_deadline_a_request_is_told_once_and_forgotten() -> None:
    asker = Asker()
    asker.open(deadline=0.5)
    assert len(asker.requests.take_due(0.25)) == 1
    assert asker.requests.next_at() == 0.5
    assert asker.requests.take_due(0.5) == [] and asker.requests.take_due(9.0) == []
    assert asker.expired == [1] and asker.requests.next_at() == math.inf


def test_a_request_is_sent_again_though_ctrl_c_came_while_it_was_sent_again() -> None:
    """It had no timer any more: it was never sent again, and all later pushes of its session waited for it."""
    asker, interrupts = Asker(), [True]

    def again() -> Message:
        if interrupts and interrupts.pop():
            raise KeyboardInterrupt
        return Enter(7)

    asker.open(again=again)
    with suppress(KeyboardInterrupt):
        asker.requests.take_due(FIRST_RESEND_S)
    assert [message for _, message in asker.requests.take_due(FIRST_RESEND_S)] == [Enter(7)]


def test_a_closed_request_is_neither_sent_nor_fed_nor_expired() -> None:
    asker = Asker()
    asker.requests.forget_request(asker.open(deadline=1.0))
    asker.requests.feed_answer(1, Token(1), 0.1)
    assert asker.requests.take_due(5.0) == [] and asker.requests.next_at() == math.inf
    assert asker.fed == [] and asker.expired == []


def test_when_a_connection_is_back_what_waits_for_that_address_is_sent_at_once() -> None:
    asker = Asker()
    here, _, also_here = asker.open(), asker.open(to=Ref("127.0.0.1:2", "ps")), asker.open(to=Ref(PS.address, "chief"))
    asker.open(again=lambda: None)
    assert asker.requests.resends_to(PS.address) == [(here, Enter(1)), (also_here, Enter(3))]


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens: an answer is fed at most once a request, and each request ends in exactly one way."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.asker = Asker()
        self.open: dict[int, Request] = {}
        self.answered: set[int] = set()
        self.closed: set[int] = set()

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.25, 1.0, 5.0]), wanted=st.integers(1, 2))
    def ask(self, seconds: float, wanted: int) -> None:
        request = self.asker.open(self.now, self.now + seconds, wanted)
        self.open[request.number] = request

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        before = len(self.asker.fed)
        over = number in self.answered | self.closed | set(self.asker.expired)
        self.asker.requests.feed_answer(number, Token(number), self.now)
        assert len(self.asker.fed) == before + (not over)
        if self.open[number].complete:
            self.answered.add(number)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        if number not in self.answered and number not in self.asker.expired:
            self.closed.add(number)
        self.asker.requests.forget_request(self.open[number])

    @rule(seconds=st.sampled_from([0.05, 0.25, 0.6, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        over = self.answered | self.closed
        for request, message in self.asker.requests.take_due(self.now):
            assert request.number not in over and request.deadline > self.now
            assert message == Enter(request.number)
        assert all(self.now >= self.open[n].deadline for n in self.asker.expired)

    @invariant()
    def each_has_ended_once_or_is_open(self) -> None:
        expired = set(self.asker.expired)
        assert len(expired) == len(self.asker.expired)
        assert not self.answered & self.closed and not (self.answered | self.closed) & expired
        assert len(self.asker.requests) == len(self.open) - len(self.answered | self.closed | expired)
        next_at = self.asker.requests.next_at()
        assert (next_at == math.inf) == (len(self.asker.requests) == 0)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=30)


def first_resend_s(asker: Asker, now: float, to: Ref = PS) -> float:
    """After how long a request that nobody answers is sent again for the first time."""
    request = asker.open(now, deadline=now + 100.0, to=to)
    asker.requests.forget_request(request)
    return request.next_at - now


def test_a_node_that_usually_takes_long_is_given_time_before_it_is_asked_again() -> None:
    asker, now = Asker(), 0.0
    for _ in range(60):
        request = asker.open(now)
        now += 0.5
        asker.requests.feed_answer(request.number, Token(1), now)
    assert 1.4 < first_resend_s(asker, now) <= 1.5  # three times the half second
    assert first_resend_s(asker, now, Ref("127.0.0.1:2", "ps")) == FIRST_RESEND_S  # nothing is known of another
    for _ in range(60):
        request = asker.open(now)
        asker.requests.feed_answer(request.number, Token(1), now + 0.001)
    assert first_resend_s(asker, now) == FIRST_RESEND_S


def test_it_is_asked_again_after_two_seconds_however_slow_it_is() -> None:
    asker = Asker()
    for number in range(20):
        asker.open(0.0)
        asker.requests.feed_answer(number + 1, Token(1), 60.0)
    assert first_resend_s(asker, 60.0) == LAST_RESEND_S


def test_only_what_comes_first_says_how_long_a_node_takes() -> None:
    """A push that waits for others is answered with a notice at once and with its result much later."""
    asker = Asker()
    for number in range(20):
        asker.open(0.0, wanted=2)
        asker.requests.feed_answer(number + 1, Token(1), 0.01)
        asker.requests.feed_answer(number + 1, Token(1), 90.0)
    assert first_resend_s(asker, 90.0) == FIRST_RESEND_S
