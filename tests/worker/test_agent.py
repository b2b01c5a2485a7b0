"""The agent: what it takes for a sign of life from the chief."""

from __future__ import annotations

from typing import Any

from dps.actors.messages import Done
from dps.actors.ref import Ref
from dps.protocol import Registered, StopTask
from dps.worker.agent import BEAT_S, CHIEF_S, LEFT, Agent


class Desk:
    """A node whose clock stands where it is put, and which keeps what is asked."""

    address = "127.0.0.1:6000"

    def __init__(self) -> None:
        self.runtime = self
        self.time = 100.0
        self.asked: list[tuple[float, Any]] = []

    def now(self) -> float:
        return self.time

    def ask(self, to: Ref, message: Any, timeout_s: float, then: Any) -> None:
        self.asked.append((timeout_s, then))

    def after(self, seconds: float, call: Any) -> None:
        """The next beat is the test's to bring about."""


def test_an_answer_counts_however_long_a_busy_chief_took_for_it() -> None:
    desk, ends = Desk(), list[tuple[int, str]]()
    agent = Agent("worker", 0, "127.0.0.1:5000", 7, {}, lambda: 0, lambda *_: None, lambda *end: ends.append(end))
    agent.node = desk  # type: ignore[assignment]
    agent.started()
    assert desk.asked[0][0] == CHIEF_S  # not BEAT_S, after which the answer would find nobody who asks
    desk.time += 40.0
    desk.asked[0][1](Registered(0, {}))
    agent._register()
    assert desk.asked[1][0] == CHIEF_S > BEAT_S and not ends


def test_a_ps_that_is_told_to_end_before_the_chief_knows_it_ends_at_once() -> None:
    desk, ends = Desk(), list[tuple[int, str]]()
    agent = Agent("ps", 0, "127.0.0.1:5000", 7, {}, lambda: 0, lambda *_: None, lambda *end: ends.append(end))
    agent.node = desk  # type: ignore[assignment]
    agent.started()
    agent.leave("was told to end (SIGTERM)")
    assert ends == [(0, "")]


def test_a_ps_that_is_told_to_end_asks_the_chief_once_and_ends_as_that_says() -> None:
    for answer, end in ((StopTask(3, "gone"), (3, "gone")), (Done(), (LEFT, "was told; the run goes on without it"))):
        desk, ends = Desk(), list[tuple[int, str]]()
        agent = Agent("ps", 0, "127.0.0.1:5000", 7, {}, lambda: 0, lambda *_: None, lambda *end, e=ends: e.append(end))
        agent.node = desk  # type: ignore[assignment]
        agent.started()
        desk.asked[0][1](Registered(0, {}))
        agent.leave("was told")
        agent.leave("was told")
        agent._register()
        assert len(desk.asked) == 2 and not ends
        desk.asked[1][1](answer)
        assert ends == [end]
