"""Small synchronous steps that a ps makes in one go: the outcome of reporting each push, and the way back to that."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np
import pytest

from dps.actors.ref import Sender
from dps.errors import Aborted, DpsError, Unavailable
from dps.messages.runs import AskStats, Configure, Members
from dps.messages.sessions import (
    APPLIED,
    REFUSED,
    SHARED,
    Enter,
    Push,
    Pushed,
    PushHeld,
    PushMissing,
    PushStatus,
    Token,
)
from dps.ps.intake.ledger import Ledger
from dps.ps.modes import whole_pushes
from dps.ps.modes.sync import SyncMode
from dps.ps.server import PsActor
from dps.training.update_modes import SyncReplicas, to_wire
from dps.transport.current import runtime
from dps.transport.sockets.connections import Connections
from dps.variables.plan import VariableSpec, make_plan
from tests.ps.test_modes import Desk, sender
from tests.tuned import tune
from tests.variables.models import SGD

PLAN = make_plan([VariableSpec("w", (4,), "<f4", SGD), VariableSpec("b", (2,), "<f4", SGD)], (0,), lambda *_: 0, None)
LAYOUT = PLAN.layouts[0]
this = sys.modules[__name__]


class Node(Desk):
    """Stands for the ps's node."""

    refused_messages = 0
    accepted = Connections()
    answered_now = 0

    def __init__(self, actor: PsActor) -> None:
        super().__init__()
        actor.node, actor.name = self, "ps"  # type: ignore[assignment]
        self.actor = actor

    def handle(self, name: str, message: Any, sender: Sender) -> None:
        try:
            self.actor.handle(message, sender)
        except DpsError as error:
            self.answer(sender, error)

    def answer_now(self, sender: Sender, message: Any) -> None:
        self.answered_now += 1
        self.answer(sender, message)


def nothing_is_usual(books: Any, row: Ledger, number: int, step: int, is_whole: bool) -> str:
    """As `admit_push`, of books in which something unusual is always under way."""
    return "again" if row.is_complete(number) else "unusual"


class Ps:
    """A ps with two variables of zeros in one arena, and workers 0 and 1, whose incarnations are 1 and 2."""

    def __init__(self, update: SyncReplicas | None = None, workers: int = 2) -> None:
        self.actor = PsActor()
        self.node = Node(self.actor)
        settings = {"update": to_wire(update or SyncReplicas()), "check_finite": True, "shards": 1}
        chief = Sender("chief", 1, "chief", 0)
        self.node.handle("ps", Configure(1, PLAN.to_wire(), 0, settings, [[0, "127.0.0.1:1"]], "", ""), chief)
        self.members(*range(1, workers + 1))
        self.memories = {i: runtime().share(LAYOUT.nbytes) for i in range(1, workers + 1)}
        for incarnation in self.memories:
            self.node.handle("ps", Enter(1), sender(incarnation))
        self.number = 1
        self.together: list[int] = []
        """The steps that were made in one go."""
        self._note_steps()
        self.node.take()
        self.steps(dict.fromkeys(self.memories, 0.0), ordinary=True)  # the quorum hands out tokens from now on

    def members(self, *incarnations: int) -> None:
        live = [[i, f"worker:{i - 1}", i - 1, True] for i in incarnations]
        members = None if self.actor.shard is None else self.actor.shard.members
        version = 1 if members is None else members.version + 1
        self.node.handle("ps", Members(1, version, live, [], [], 0), Sender("chief", 2, "chief", 0))

    def _note_steps(self) -> None:
        pushes, apply = self.shard.pushes, self.shard.pushes._apply

        def noted(kept: Any) -> None:
            before = self.shard.store.step
            apply(kept)
            if before < self.shard.store.step:
                self.together.append(self.shard.store.step)

        pushes._apply = noted

    def step(
        self, incarnation: int, value: float, ordinary: bool = False, number: int | None = None, released: int = 0,
        **changes: Any,
    ) -> list[tuple[int, Any]]:  # fmt: skip
        """A worker's push, under a request number that is its own; what the ps answers to anybody. `ordinary`: it is
        reported at once."""
        number = self.number if number is None else number
        memory = self.memories[incarnation]
        memory.array.view(np.float32)[:] = value
        step = changes.pop("step", self.shard.store.step)
        place = [changes.pop("memory", memory.name), 0]
        assert not changes
        message = Push(1, number, step, 0, SHARED, LAYOUT.gradient_nbytes, [], place, 0, True, released)
        with pytest.MonkeyPatch.context() as patch:
            if ordinary:
                patch.setattr(whole_pushes, "admit_push", nothing_is_usual)
            self.node.handle("ps", message, sender(incarnation, 10 * number))
        return self.node.take()

    def steps(self, values: dict[int, float], ordinary: bool = False) -> dict[int, list[Any]]:
        """One step of all; what each was answered."""
        answers: dict[int, list[Any]] = {}
        for incarnation, value in values.items():
            for to, answer in self.step(incarnation, value, ordinary):
                answers.setdefault(to, []).append(answer)
        self.number += 1
        return answers

    @property
    def shard(self) -> Any:
        assert self.actor.shard is not None
        return self.actor.shard

    @property
    def values(self) -> list[float]:
        return [float(v) for v in self.shard.store.arenas[0].values[:6]]

    def books(self) -> dict[str, Any]:
        """All that is known of pushes and steps."""
        mode = self.shard.mode
        assert isinstance(mode, SyncMode) and mode.quorum is not None
        q = mode.quorum
        return {
            "ledgers": {i: (found.done, found.results, found.staged) for i, found in self.shard.ledgers.items()},
            "quorum": (q.step, [*q.tokens], q._next, q._held, [*q._waiting], q._reports, q._started, q.counted),
            "granted": mode._granted, "askers": mode._askers, "counts": self.shard.counts, "values": self.values,
            "version": (self.shard.store.counter, self.shard.store.step, self.shard.store.leased()),
        }  # fmt: skip


@pytest.fixture(autouse=True)
def everything_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, shard_nbytes=1)


def test_a_step_in_one_go_is_the_mean_of_all_and_tells_where_the_values_are() -> None:
    ps = Ps()
    assert ps.step(2, 6.0) == []
    answers = dict(ps.step(1, 2.0))
    assert ps.values == [-4.0] * 6  # a rate of 1, and the mean of 2 and 6
    (memory,) = ps.shard.store.hold_shared().memories
    assert answers == {i: Pushed(2, APPLIED, 2, 0, 2, "", [2, 2, [memory]]) for i in (1, 2)}
    assert ps.node.answered_now == 2


def test_the_books_are_those_of_the_ordinary_way() -> None:
    at_once, ordinary = Ps(), Ps()
    for step in range(12):  # more than results are kept
        values = {2 - step % 2: 1.0 + step, 1 + step % 2: 2.0}
        got = at_once.steps(values)
        wanted = ordinary.steps(values, ordinary=True)
        for incarnation, (answer,) in got.items():
            result = wanted[incarnation][-1]
            assert (answer.number, answer.step, answer.counter) == (result.number, result.step, result.counter)
        assert at_once.books() == ordinary.books()
    assert at_once.together == list(range(2, 14)) and not ordinary.together


def test_what_is_read_is_given_back_with_the_next_step() -> None:
    ps = Ps()
    for _ in range(4):
        ps.steps({1: 1.0, 2: 1.0})
    held = ps.shard.store.leased()
    assert [ps.shard.reading.lending.is_over(i, 20) for i in (1, 2)] == [False, False]
    for incarnation in (1, 2):
        ps.step(incarnation, 1.0, released=51)
    assert ps.shard.store.leased() == 2 and held > 2  # those of this step


def test_a_question_has_the_kept_push_reported() -> None:
    ps = Ps()
    assert ps.step(1, 2.0) == []
    ps.node.handle("ps", PushStatus(1, 2), sender(1, 21))
    assert [(to, type(answer)) for to, answer in ps.node.take()] == [(1, PushHeld)]
    answers = dict(ps.step(2, 4.0))
    assert {to: (a.number, a.status, a.step) for to, a in answers.items()} == dict.fromkeys((1, 2), (2, APPLIED, 2))
    assert ps.values == [-3.0] * 6 and ps.shard.store.counter == 2
    ps.number += 1
    ps.steps({1: 0.0, 2: 0.0})
    assert ps.together == [3]  # and back again


def test_whatever_else_comes_does_so_too() -> None:
    ps = Ps()
    ps.step(1, 2.0)
    ps.node.handle("ps", AskStats(), Sender("someone", 1, "someone", 0))
    (_, stats), *_ = ps.node.take()
    assert stats.values["waits"] == "step 2 waits for worker:1"


def test_the_push_that_comes_after_its_step_is_the_same_push() -> None:
    ps = Ps()
    ps.step(1, 2.0)
    assert ps.step(1, 2.0, ordinary=True) != []  # told that it is held
    answers = dict(ps.step(2, 4.0))
    assert ps.values == [-3.0] * 6 and answers.keys() == {1, 2}
    ((_, again),) = ps.step(1, 2.0, ordinary=True)
    assert (again.number, again.status, again.step) == (2, APPLIED, 2) and ps.values == [-3.0] * 6


def test_a_step_that_comes_twice_is_applied_once() -> None:
    ps = Ps()
    for _ in range(2):
        ps.step(1, 2.0)
    ps.step(2, 4.0)
    ((_, again),) = ps.step(1, 2.0, step=1)
    assert isinstance(again, Pushed) and again.status == APPLIED and again.lent
    assert ps.values == [-3.0] * 6 and ps.shard.store.counter == 2


def test_a_gradient_with_NaN_is_refused_on_the_ordinary_way_and_the_others_go_on() -> None:
    ps = Ps()
    ps.step(1, 2.0)
    ps.memories[2].array.view(np.float32)[5] = 0.0
    answers = [answer for to, answer in ps.step(2, np.nan) if to == 2]
    assert answers[-1].status == REFUSED and "the gradient of w has NaN" in answers[-1].reason
    assert ps.values == [-2.0] * 6 and ps.shard.store.step == 2


def test_a_worker_that_ends_in_the_middle_of_a_step_takes_nothing_with_it() -> None:
    ps = Ps()
    ps.step(1, 2.0)
    ps.members(1)
    answers = [answer for to, answer in ps.node.take() if to == 1]
    assert (answers[-1].status, answers[-1].step) == (APPLIED, 2) and ps.values == [-2.0] * 6
    ps.step(1, 1.0, number=3)
    assert ps.together == [3]  # it makes steps alone now


def test_the_push_of_a_worker_that_ends_is_forgotten() -> None:
    ps = Ps()
    ps.step(2, 8.0)
    ps.members(1)
    ps.node.take()
    ps.step(1, 2.0)
    assert ps.together == [2] and ps.values == [-2.0] * 6


def test_a_worker_that_joins_in_the_middle_of_a_step_is_in_the_next_one() -> None:
    ps = Ps()
    ps.step(1, 2.0)
    ps.members(1, 2, 3)
    ps.memories[3] = runtime().share(LAYOUT.nbytes)
    ps.node.handle("ps", Enter(1), sender(3))
    ps.node.take()
    ps.step(2, 4.0)
    assert ps.values == [-3.0] * 6
    ps.number += 1
    assert ps.step(1, 3.0) == [] and ps.step(2, 3.0) == []
    answers = dict(ps.step(3, 3.0, number=1))
    assert answers.keys() == {1, 2, 3} and ps.values == [-6.0] * 6


def test_memory_that_cannot_be_reached_is_told_to_its_owner_alone() -> None:
    ps = Ps()
    ps.step(1, 2.0)
    ((to, error),) = ps.step(2, 1.0, memory=[1 << 22, 3, 4, LAYOUT.nbytes])
    assert to == 2 and isinstance(error, Unavailable)
    assert dict(ps.step(2, 4.0)).keys() == {1, 2} and ps.values == [-3.0] * 6


def test_memory_that_is_too_short_is_refused() -> None:
    ps = Ps()
    short = runtime().share(8)
    ((to, error),) = ps.step(2, 1.0, memory=short.name)
    assert to == 2 and "are not in a memory of 8 bytes" in str(error) and ps.shard.store.counter == 1


@pytest.mark.parametrize("number", [0, 40, 1 << 60])
def test_a_number_out_of_reach_is_no_step(number: int) -> None:
    ps = Ps()
    ps.step(1, 2.0)
    answers = [answer for to, answer in ps.step(2, 1.0, number=number) if to == 2]
    assert len(answers) == 1 and not ps.together and ps.shard.store.counter == 1
    if number:
        assert isinstance(answers[0], Aborted)


def test_a_stranger_is_no_part_of_a_step() -> None:
    ps = Ps()
    ps.memories[7] = runtime().share(LAYOUT.nbytes)
    ps.step(1, 2.0)
    ((_, error),) = [a for a in ps.step(7, 1.0) if a[0] == 7]
    assert isinstance(error, Aborted) and "has not admitted incarnation 7" in str(error)


@pytest.mark.parametrize("update", [SyncReplicas(1, 2), SyncReplicas(3, 2), SyncReplicas(initial_tokens=2)])
def test_with_quotas_of_their_own_each_push_is_reported(update: SyncReplicas) -> None:
    ps = Ps(update)
    for _ in range(3):
        ps.steps({1: 1.0, 2: 1.0})
    assert not ps.together


def test_where_no_memory_can_be_lent_the_result_alone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ps = Ps()
    monkeypatch.setattr(ps.shard.store, "hold_shared", lambda: None)
    answers = ps.steps({1: 2.0, 2: 4.0})
    assert answers == {i: [Pushed(2, APPLIED, 2, 0, 2, "")] for i in (1, 2)} and ps.together == [2]


def test_a_worker_is_not_let_in_by_a_step() -> None:
    """A restarted ps, or a session that has not entered: only who was granted a step takes part in the next."""
    ps = Ps()
    ps.members(1, 2, 3)
    ps.memories[3] = runtime().share(LAYOUT.nbytes)
    ps.step(1, 2.0)
    ps.node.handle("ps", PushStatus(1, 1), sender(3, 5))
    assert [a for a in ps.node.take() if a[0] == 3] == [(3, PushMissing(1))]
    ps.node.handle("ps", Enter(1), sender(3, 6))
    assert not [a for _, a in ps.node.take() if isinstance(a, Token)]  # in the middle of a step that has begun


def test_no_numbers_of_a_peer_make_a_step_or_leave_a_trace() -> None:
    ps, most = Ps(), (1 << 63) - 1
    before, (process, descriptor, inode, nbytes) = ps.books(), ps.memories[2].name
    names = [
        [-1] * 4, [0] * 4, [most] * 4, [process, -1, inode, nbytes], [process, 0, inode, nbytes],
        [process, descriptor, inode + 1, nbytes], [process, descriptor, inode, most], [process, descriptor, inode, 0],
    ]  # fmt: skip
    for name, number, step in itertools.product(names, (2, 1, 0, -1, most), (1, 0, -1, most)):
        ps.step(2, 1.0, number=number, step=step, released=-most, memory=name)
    assert ps.books() == before and not ps.together


def test_a_shard_of_which_nothing_is_trained_makes_no_steps_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan([VariableSpec("w", (6,), "<f4", None)], (0,), lambda *_: 0, None)
    monkeypatch.setattr(this, "PLAN", plan)
    monkeypatch.setattr(this, "LAYOUT", plan.layouts[0])
    ps = Ps(workers=1)
    answers = [answer for _, answer in ps.step(1, 1.0)]
    assert [(a.status, a.step, bool(a.lent)) for a in answers] == [(APPLIED, 2, True)] and ps.values == [0.0] * 6


def test_values_that_were_lent_under_one_number_again_and_again_all_come_back() -> None:
    ps = Ps(workers=1)
    for number in range(2, 8):
        place = [ps.memories[1].name, 0]
        message = Push(1, number, number - 1, 0, SHARED, LAYOUT.gradient_nbytes, [], place, 0, True)
        ps.node.handle("ps", message, sender(1, 99))
        assert [type(answer) for _, answer in ps.node.take()] == [Pushed]
    ps.members()
    assert ps.shard.store.leased() == 0


def test_a_step_whose_answers_do_not_leave_was_made_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ps = Ps()
    ps.step(1, 2.0)
    with monkeypatch.context() as patch:
        patch.setattr(ps.node, "answer_now", _no_way_out)
        with pytest.raises(OSError, match="no way out"):
            ps.step(2, 4.0)
    ps.node.take()
    ((_, again),) = ps.step(1, 2.0, ordinary=True, step=1)
    assert (again.number, again.status, again.step) == (2, APPLIED, 2) and ps.values == [-3.0] * 6


def _no_way_out(sender: Sender, message: Any) -> None:
    raise OSError("no way out")


def test_values_are_made_ready_to_be_read_before_they_are_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those on a GPU have to be."""
    ps = Ps()
    store, ready = ps.shard.store, []
    hold = store.hold
    monkeypatch.setattr(store, "refresh", lambda parts: ready.append(store.counter))
    monkeypatch.setattr(store, "hold", lambda **how: hold(**how) if store.counter in ready else None)
    assert all(answer.lent for (answer,) in ps.steps({1: 1.0, 2: 1.0}).values())
