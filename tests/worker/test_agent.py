"""The agent: what it takes for a sign of life from the chief."""

from __future__ import annotations

from typing import Any

import pytest

from dps.actors.answers import Done
from dps.actors.ref import Ref
from dps.errors import DeadlineExceeded
from dps.messages.runs import Registered, StopTask
from dps.worker.agent import BEAT_S, CHIEF_S, LEFT, Agent, Told


class Desk:
    """A node whose clock stands where it is put, and which keeps what is asked."""

    address, name = "127.0.0.1:6000", "ps:0"

    def __init__(self) -> None:
        self.runtime: Any = self
        self.tickets: Any = self
        self.time = 100.0
        self.asked: list[tuple[float, Any]] = []
        self.due: list[tuple[float, Any]] = []

    def now(self) -> float:
        return self.time

    def secret(self) -> bytes:
        return bytes(16)

    def admit(self, group: str, entries: Any) -> None:
        pass

    def present(self, address: str) -> None:
        pass

    def ask(self, to: Ref, message: Any, timeout_s: float, then: Any, resend: Any = None, waits: Any = None) -> None:
        self.asked.append((timeout_s, then))
        self.waits = waits

    def after(self, seconds: float, call: Any) -> None:
        """The next beat is the test's to bring about, by `pass_time`."""
        self.due.append((self.time + seconds, call))

    def pass_time(self, seconds: float) -> None:
        until = self.time + seconds
        while (now := min((at for at, _ in self.due if at <= until), default=None)) is not None:
            (call, *_) = [call for at, call in self.due if at == now]
            self.due = [(at, other) for at, other in self.due if other is not call]
            self.time = now
            call()
        self.time = until


def test_an_answer_counts_however_long_a_busy_chief_took_for_it() -> None:
    desk, ends = Desk(), list[tuple[int, str]]()
    agent = Agent("worker", 0, "127.0.0.1:5000", 7, {}, Told(lambda: 0, lambda *_: None, lambda *end: ends.append(end)))
    agent.node = desk  # type: ignore[assignment]
    agent.started()
    assert desk.asked[0][0] == CHIEF_S  # not BEAT_S, after which the answer would find nobody who asks
    desk.time += 40.0
    desk.asked[0][1](Registered(0))
    agent._register()
    assert desk.asked[1][0] == CHIEF_S > BEAT_S and not ends


def test_a_ps_that_is_told_to_end_before_the_chief_knows_it_ends_at_once() -> None:
    desk, ends = Desk(), list[tuple[int, str]]()
    agent = Agent("ps", 0, "127.0.0.1:5000", 7, {}, Told(lambda: 0, lambda *_: None, lambda *end: ends.append(end)))
    agent.node = desk  # type: ignore[assignment]
    agent.started()
    agent.leave("was told to end (SIGTERM)")
    assert ends == [(0, "")]


def test_a_ps_that_is_told_to_end_asks_the_chief_once_and_ends_as_that_says() -> None:
    for answer, end in ((StopTask(3, "gone"), (3, "gone")), (Done(), (LEFT, "was told; the run goes on without it"))):
        desk, ends = Desk(), list[tuple[int, str]]()
        agent = Agent(
            "ps", 0, "127.0.0.1:5000", 7, {}, Told(lambda: 0, lambda *_: None, lambda *end, e=ends: e.append(end))
        )
        agent.node = desk  # type: ignore[assignment]
        agent.started()
        desk.asked[0][1](Registered(0))
        agent.leave("was told")
        agent.leave("was told")
        agent._register()
        assert len(desk.asked) == 2 and not ends
        desk.asked[1][1](answer)
        assert ends == [end]


def test_a_chief_that_is_missing_is_told_with_its_command_after_two_seconds_and_every_ten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk, command = Desk(), "python -m dps.role --job chief --chief 127.0.0.1:5000"
    nothing: Any = lambda *_: None  # noqa: E731
    agent = Agent("ps", 0, "127.0.0.1:5000", 7, {}, Told(lambda: 0, nothing, nothing), command)
    agent.node = desk  # type: ignore[assignment]
    agent.started()
    desk.pass_time(1.9)
    assert not caplog.messages
    desk.pass_time(11.0)
    assert caplog.messages == [f"ps:0: waits for the chief at 127.0.0.1:5000; start it with: {command}"] * 2
    desk.asked[0][1](Registered(0))
    desk.pass_time(1.9)  # the next beat
    assert len(caplog.messages) == 2
    desk.pass_time(2.2)
    assert len(caplog.messages) == 3  # which has no answer
    agent._end_task(0, "")
    desk.pass_time(60.0)
    assert len(caplog.messages) == 3


def test_who_is_told_to_wait_says_what_the_chief_says_and_not_that_it_is_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk, ends = Desk(), list[tuple[int, str]]()
    told = Told(lambda: 0, lambda *_: None, lambda *end: ends.append(end))
    agent = Agent("worker", 0, "127.0.0.1:5000", 7, {}, told, "python -m dps.role --job chief")
    agent.node = desk  # type: ignore[assignment]
    agent.started()
    for _ in range(35):
        desk.waits("another process is worker:0 at 127.0.0.1:7")
        desk.pass_time(2.0)
    says = "ps:0: the chief at 127.0.0.1:5000 says: another process is worker:0 at 127.0.0.1:7"
    assert set(caplog.messages) == {says} and 5 <= len(caplog.messages) <= 8
    desk.asked[0][1](DeadlineExceeded("late"))
    assert not ends and len(desk.asked) == 2  # it has heard of the chief all the time
