"""Asynchronous and bounded updates on one shard: the order of a session's pushes, results, and who may read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dps.actors.answers import Waiting
from dps.actors.ref import Sender
from dps.client.cargo import About, run_pieces
from dps.errors import Aborted
from dps.messages.runs import Members
from dps.messages.sessions import APPLIED, DROPPED, REFUSED, NotNewer, Pull, Pushed, Values
from dps.ps.intake.intake import Staged
from dps.ps.intake.receiving import receive
from dps.ps.modes.asynchronous import AsyncMode, BoundedMode
from dps.ps.shard import Shard
from dps.training import update_modes as update
from dps.training.update_modes import Async, Bounded, Update
from dps.transport.current import runtime
from dps.transport.message import Form
from dps.variables.plan import VariableSpec, make_plan
from tests.variables.models import SGD

PLAN = make_plan([VariableSpec("w", (2,), "<f8", SGD)], (0,), lambda *_: 0, None)
LAYOUT = PLAN.layouts[0]


class Desk:
    """Stands for the node: notes every answer, and runs its timers when a `moment` is over."""

    def __init__(self) -> None:
        self.name, self.runtime = "ps:0", runtime()
        self.tickets: Any = self
        self.answers: list[tuple[int, Any]] = []
        self.timers: list[Any] = []

    def admit(self, group: str, entries: Any) -> None:
        pass

    def is_near(self, incarnation: int) -> bool:
        return True

    def present(self, address: str) -> None:
        pass

    def expect(self, address: str, user: str) -> None:
        pass

    def after(self, seconds: float, call: Any) -> None:
        self.timers.append(call)

    def moment(self) -> list[tuple[int, Any]]:
        due, self.timers = self.timers, []
        for call in due:
            call()
        return self.take()

    def answer(self, sender: Sender, message: Any = None, done: Any = None) -> None:
        self.answers.append((sender.incarnation, message))
        if done is not None:
            done()

    def answer_now(self, sender: Sender, message: Any) -> None:
        self.answer(sender, message)

    def answer_plain(self, sender: Sender, form: Form, integers: Sequence[int]) -> None:
        self.answer_now(sender, form.made(*integers))

    def post(self, call: Any) -> None:
        call()

    def flush(self) -> None:
        """All is noted at once."""

    def take(self) -> list[tuple[int, Any]]:
        taken, self.answers = self.answers, []
        return taken


class Ps:
    """One shard with a variable of two zeros, and two workers, incarnations 1 and 2."""

    def __init__(self, mode: Update) -> None:
        self.desk = Desk()
        node: Any = self.desk
        self.shard = Shard(node, 1, PLAN, 0, {}, {"update": update.to_wire(mode)})
        self.mode = BoundedMode(self.shard, mode) if isinstance(mode, Bounded) else AsyncMode(self.shard, mode)  # type: ignore[arg-type]
        self.shard.mode = self.mode
        self.version = 0
        self.members(1, 2)

    def members(self, *incarnations: int) -> None:
        self.version += 1
        live = [[i, f"worker:{i - 1}", i - 1, True] for i in incarnations]
        self.shard.set_members(Members(1, self.version, live, [], [], 0))

    def push(self, incarnation: int, number: int, value: float = 1.0, counter: int = -1, step: int = 0) -> list[Any]:
        run = np.zeros(LAYOUT.nbytes, np.uint8)
        LAYOUT.views(run)[0][...] = value
        (piece,) = run_pieces(LAYOUT, run, 1000, About(1, number, step, counter))
        staged = receive(piece, self.shard.ledgers[incarnation], LAYOUT, True, self.mode.open_intake, {})
        assert isinstance(staged, Staged)
        self.mode.accept_push(staged, sender(incarnation))
        return self.desk.take()

    def pull(self, incarnation: int, clock: int = 0, newer_than: int = -1, after: int = 0) -> list[Any]:
        self.shard.reading.answer_pull(sender(incarnation, 50), Pull(1, 0, after, clock, newer_than, []))
        return self.desk.take()

    @property
    def value(self) -> float:
        return float(self.shard.store.part(PLAN.parts[0])[0])


def sender(incarnation: int, request: int = 1) -> Sender:
    return Sender(b"route %d" % incarnation, request, f"worker:{incarnation - 1}", incarnation)


def result(number: int, status: str = APPLIED, step: int = 1, staleness: int = 0, counter: int = 1) -> Pushed:
    return Pushed(number, status, step, staleness, counter, "")


def test_a_push_is_applied_on_arrival_and_its_result_says_step_and_version() -> None:
    ps = Ps(Async())
    assert ps.push(1, 1) == [(1, result(1))] and ps.value == -1.0
    assert ps.push(2, 1) == [(2, result(1, step=2, counter=2))] and ps.value == -2.0


def test_pushes_of_one_session_are_applied_in_the_order_of_their_numbers() -> None:
    ps = Ps(Async(max_staleness=0))
    assert ps.push(1, 2, value=10.0, counter=1) == [] and ps.value == 0.0
    first, second = ps.push(1, 1, value=1.0, counter=0)
    assert first == (1, result(1)) and second == (1, result(2, step=2, counter=2)) and ps.value == -11.0


def test_a_push_that_comes_again_is_answered_from_the_record_and_not_applied() -> None:
    ps = Ps(Async())
    ps.push(1, 1)
    ledger = ps.shard.ledgers[1]
    ps.mode.answer_repeated(ledger, 1, sender(1))
    assert ps.desk.take() == [(1, result(1))] and ps.value == -1.0
    ps.push(1, 3)
    ps.mode.answer_repeated(ledger, 3, sender(1))
    assert ps.desk.take() == [(1, Waiting("push 3 waits for push 2 of worker:0"))]


@pytest.mark.parametrize(
    ("counter", "status", "staleness"), [(3, APPLIED, 0), (2, APPLIED, 1), (1, DROPPED, 2), (0, DROPPED, 3)]
)
def test_above_the_bound_a_push_is_dropped_and_uses_up_its_number(counter: int, status: str, staleness: int) -> None:
    ps = Ps(Async(max_staleness=1))
    for number in range(1, 4):
        ps.push(1, number, counter=number - 1)
    (found,) = ps.push(2, 1, value=100.0, counter=counter)
    applied = status == APPLIED
    assert found == (2, result(1, status, 3 + applied, staleness, 3 + applied))
    assert ps.value == -103.0 if applied else ps.value == -3.0
    assert ps.shard.counts["dropped"] == (not applied)
    assert ps.push(2, 2, counter=99)[0][1].status == APPLIED


def test_a_gradient_computed_from_no_version_is_not_stale() -> None:
    ps = Ps(Async(max_staleness=0))
    ps.push(1, 1)
    assert ps.push(2, 1, counter=-1)[0][1].staleness == 0


def test_a_refused_gradient_is_an_answer_that_uses_up_its_number_and_is_counted() -> None:
    ps = Ps(Async())
    ((_, refused),) = ps.push(1, 1, value=np.nan)
    assert (
        refused.status == REFUSED
        and refused.reason == "the gradient of w has NaN or infinite values (first at element 0)"
    )
    assert (refused.step, refused.counter, ps.shard.counts["refused"], ps.value) == (0, 0, 1, 0.0)
    assert ps.push(1, 2) == [(1, result(2))]


def test_pushes_that_were_held_back_for_a_cut_are_not_held_back_again_by_the_same_order() -> None:
    ps = Ps(Async())
    ps.push(1, 1)
    assert ps.mode.hold_pushes("cut 1") == ps.mode.hold_pushes("cut 1") == [[1, 1], [2, 0]]
    assert ps.push(1, 2) == [] and ps.value == -1.0
    ps.mode.resume_pushes("cut 1")
    assert [answer.number for _, answer in ps.desk.take()] == [2] and ps.value == -2.0
    assert ps.mode.hold_pushes("cut 1") == [[1, 2], [2, 0]]  # the order comes again, late
    assert [answer.number for _, answer in ps.push(1, 3)] == [3] and ps.value == -3.0
    ps.mode.hold_pushes("cut 2")
    assert ps.push(1, 4) == []
    ps.mode.hold_pushes("cut 1")
    assert ps.push(1, 5) == []  # still held back for the second cut
    ps.mode.resume_pushes("cut 2")
    assert [answer.number for _, answer in ps.desk.take()] == [4, 5]


def test_damping_scales_the_rate() -> None:
    ps = Ps(Async(damping=1.0))
    ps.push(1, 1, counter=0), ps.push(1, 2, counter=0)
    assert ps.value == -1.5  # the second was one version old
    ps.push(2, 1, value=3.0, counter=0)
    assert ps.value == -2.5


def test_compensation_uses_what_that_session_pulled_last() -> None:
    ps = Ps(Async(compensation=0.1))
    ps.pull(1), ps.pull(2)
    ps.push(1, 1, value=-2.0)  # 0 to 2
    ps.pull(1)
    ps.push(2, 1, value=1.0)  # 1 + 0.1 * 1 * (2 - 0)
    np.testing.assert_allclose(ps.value, 2 - 1.2, rtol=1e-15)
    ps.push(1, 2, value=1.0)  # 1 + 0.1 * (0.8 - 2)
    np.testing.assert_allclose(ps.value, 0.8 - 0.88, rtol=1e-12)


def test_a_session_that_has_left_is_told_so() -> None:
    ps = Ps(Async())
    ps.members(2)
    with pytest.raises(Aborted, match="has not admitted incarnation 1 of worker:0"):
        ps.shard.ledger(sender(1))


def test_a_session_that_comes_before_the_members_is_told_so() -> None:
    ps = Ps(Async())
    ps.shard.members = None
    with pytest.raises(Aborted, match="ps:0 has no members in run epoch 1 yet; worker:0 is too early"):
        ps.shard.ledger(sender(1))


def test_older_news_of_the_members_is_no_news() -> None:
    ps = Ps(Async())
    ps.members(1, 2, 3)
    ps.shard.set_members(Members(1, 1, [], [], [], 0))
    assert set(ps.shard.ledgers) == {1, 2, 3}


def test_a_pull_that_has_the_version_moves_nothing() -> None:
    ps = Ps(Async())
    ps.push(1, 1)
    ((_, values),) = ps.pull(2)
    assert isinstance(values, Values) and (values.counter, values.step) == (1, 1)
    assert ps.pull(2, newer_than=1) == [(2, NotNewer(1, 1, 1))]


def test_a_pull_after_a_push_waits_for_its_result() -> None:
    ps = Ps(Async())
    assert ps.pull(1, after=1) == []
    assert ps.desk.moment() == []
    ((_, waits),) = ps.desk.moment()
    assert isinstance(waits, Waiting) and waits.reason == "push 1 has no result on ps:0: "
    pushed, values = ps.push(1, 1)
    assert pushed[1].status == APPLIED and isinstance(values[1], Values) and values[1].counter == 1


def test_bounded_lets_a_pull_wait_until_the_slowest_is_within_the_bound() -> None:
    ps = Ps(Bounded(1))
    for number in (1, 2):
        assert ps.push(1, number)[0][1].status == APPLIED
    assert ps.pull(1, clock=2) == []
    assert ps.desk.moment() == []
    assert ps.desk.moment() == [(1, Waiting("waits for worker:1 to come within 1 steps"))]
    assert [(who, type(what)) for who, what in ps.push(2, 1)] == [(2, Pushed), (1, Values)]
    assert [(who, type(what)) for who, what in ps.pull(2, clock=1)] == [(2, Values)]


def test_a_refused_gradient_moves_no_clock() -> None:
    ps = Ps(Bounded(0))
    ps.push(1, 1)
    assert ps.pull(1) == []
    ((_, refused),) = ps.push(2, 1, value=np.nan)
    assert refused.status == REFUSED and ps.mode.clocks.now() == {1: 1, 2: 0}  # type: ignore[attr-defined]
    assert [(who, type(what)) for who, what in ps.push(2, 2)] == [(2, Pushed), (1, Values)]


def test_bounded_lets_a_pull_go_on_when_the_slowest_leaves() -> None:
    ps = Ps(Bounded(0))
    ps.push(1, 1)
    ps.pull(1, clock=1)
    ps.members(1)
    assert [type(what) for _, what in ps.desk.take()] == [Values]
    assert [*ps.desk.moment(), *ps.desk.moment()] == []  # who was answered before is not told that it waits
