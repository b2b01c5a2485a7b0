"""Synchronous steps on a ps that is not the step ps: whose memory a push lies in until its step is decided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dps import optim
from dps.client.cargo import About, shared_message
from dps.messages.runs import Members
from dps.messages.sessions import APPLIED, DROPPED, REFUSED, Decide, Pushed, PushHeld, PushStatus
from dps.ps.modes.sync import SyncMode
from dps.ps.server import PsActor
from dps.ps.serving.long_waits import LongWaits
from dps.ps.shard import Shard
from dps.training import update_modes as update
from dps.training.update_modes import SyncReplicas
from dps.transport.current import runtime
from dps.transport.endpoint import Memory
from dps.transport.tuning import ORDINARY
from dps.variables.plan import VariableSpec, make_plan
from tests.ps.test_modes import Desk, sender

SIZE = 4


class Told(Desk):
    """A desk that also notes what other ps are told, with a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []
        self.now, self.due = 0.0, list[tuple[float, Any]]()

    def ask(self, ref: Any, message: Any, timeout: float, done: Any) -> None:
        self.told.append(message)

    def after(self, seconds: float, call: Any) -> None:
        self.due.append((self.now + seconds, call))

    def wait(self, seconds: float) -> list[Any]:
        """What is answered in the time to come."""
        until = self.now + seconds
        while self.due and min(at for at, _ in self.due) <= until:
            place = min(range(len(self.due)), key=lambda n: self.due[n][0])
            self.now, call = self.due.pop(place)
            call()
        self.now = until
        return [answer for _, answer in self.take()]


class Ps:
    """ps:1 of two, with a variable of zeros, and workers of incarnations 1 to `workers`."""

    def __init__(self, workers: int = 2, mode: SyncReplicas | None = None, optimizer: Any = None) -> None:
        spec = (optimizer or optim.SGD(1.0)).to_wire()
        plan = make_plan(
            [VariableSpec(name, (SIZE,), "<f8", spec) for name in "ab"], (0, 1),
            lambda op, *_: "ab".index(op), None,
        )  # fmt: skip
        self.desk, self.actor, mode = Told(), PsActor(), mode or SyncReplicas()
        self.actor.node = self.desk  # type: ignore[assignment]
        self.layout, self.part = plan.layouts[1], plan.parts[1]
        self.shard = Shard(self.actor.node, 1, plan, 1, {0: "inproc://ps-0"}, {"update": update.to_wire(mode)})
        self.actor.shard, self.shard.mode = self.shard, SyncMode(self.shard, mode)
        self.memories: dict[int, Memory] = {}
        self.index = self.version = 0
        self.members(*range(1, workers + 1))

    def members(self, *incarnations: int) -> None:
        self.version += 1
        live = [[i, f"worker:{i - 1}", i - 1, True] for i in incarnations]
        self.shard.set_members(Members(1, self.version, live, [], [], 0))

    def push(self, incarnation: int, value: float, number: int = 1, step: int = 0, wait: float = 0.01) -> list[Any]:
        """Push `value` for all elements out of the session's own memory; what is answered while we `wait`."""
        memory = self.memories[incarnation] = runtime().share(self.layout.nbytes)
        memory.array.view(np.float64)[:] = value
        (message,) = shared_message(self.layout, memory.name, About(1, number, step, 0))
        self.actor.on_Push(message, sender(incarnation))
        return self.desk.wait(wait) if wait else [answer for _, answer in self.desk.take()]

    def decide(self, chosen: dict[int, int], step: int, **what: Any) -> list[tuple[int, Any]]:
        """A decision of ps:0: numbers of the chosen pushes by incarnation."""
        self.index += 1
        pushes = [[i - 1, i, number] for i, number in chosen.items()]
        given = {"dropped": [], "refused": [], "ended": [], **what}
        self.actor.on_Decide(Decide(1, self.index, step, pushes, *given.values(), ""), sender(9))
        return [answer for answer in self.desk.take() if answer[1] is not None]

    @property
    def value(self) -> float:
        values = self.shard.store.part(self.part)
        assert len(set(values.tolist())) == 1
        return float(values[0])


def applied(number: int, step: int) -> Pushed:
    return Pushed(number, APPLIED, step, 0, step, "")


def test_memory_that_a_session_gets_back_is_read_before() -> None:
    ps = Ps()
    ps.push(1, 2.0)
    ps.push(2, 4.0)
    ps.actor.on_PushStatus(PushStatus(1, 1), sender(1))
    assert [type(answer) for _, answer in ps.desk.take()] == [PushHeld]
    ps.memories[1].array.view(np.float64)[:] = 77.0
    ps.decide({1: 1, 2: 1}, 1)
    assert ps.value == -3.0


def test_only_the_pushes_of_the_set_are_applied() -> None:
    ps = Ps(3, SyncReplicas(2, 3))
    ps.push(1, 2.0)
    ps.push(2, 4.0)
    ps.push(3, 10.0)
    ps.decide({1: 1, 3: 1}, 1)
    assert ps.value == -6.0
    assert [r.status for _, r in ps.decide({}, 1, dropped=[[1, 2, 1]])] == []  # it was told that it is held
    assert ps.shard.ledgers[2].results[1].status == DROPPED


def test_a_session_that_ends_meanwhile_takes_its_push_along() -> None:
    ps = Ps()
    ps.push(1, 2.0)
    ps.push(2, 4.0)
    ps.members(1)
    ps.decide({}, 0, ended=[2])
    ps.decide({1: 1}, 1)
    assert ps.value == -2.0


def test_the_push_of_a_session_that_begins_anew_is_read_before_its_memory_is_written() -> None:
    ps = Ps()
    ps.push(1, 2.0)
    ps.push(2, 4.0)
    ps.members(2, 3)  # what ps:0 has decided before is on its way
    ps.memories[1].array.view(np.float64)[:] = 1000.0
    ps.decide({1: 1, 2: 1}, 1)
    assert ps.value == -3.0


def test_a_push_that_another_ps_refuses_is_not_applied() -> None:
    ps = Ps()
    ps.push(1, 2.0)
    ps.push(2, 4.0)
    ps.decide({}, 0, refused=[[[1, 2, 1], "not finite on ps:0"]])
    ps.decide({1: 1}, 1)
    assert ps.value == -2.0


def test_a_copy_for_which_there_is_no_memory_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(np.ndarray):  # type: ignore[type-arg]
        def copy(self, *_: Any) -> Any:
            raise MemoryError

    ps = Ps()
    ps.push(1, 2.0)
    staged = ps.shard.ledgers[1].staged[1]
    gradient = staged.sound()
    staged.gradient = replace(gradient, run=[array.view(Full) for array in gradient.flats()])
    with pytest.raises(MemoryError):
        ps.desk.wait(1.0)
    staged.gradient = gradient
    ps.actor.on_PushStatus(PushStatus(1, 1), sender(1))
    assert [type(answer) for _, answer in ps.desk.take()] == [PushHeld]
    ps.memories[1].array.view(np.float64)[:] = 1000.0
    ps.push(2, 4.0)
    ps.decide({1: 1, 2: 1}, 1)
    assert ps.value == -3.0


def test_a_shard_that_has_ended_says_nothing_more() -> None:
    ps = Ps()
    ps.push(1, 2.0)
    ps.shard.ended = True
    assert ps.desk.wait(1.0) == [] and ps.shard.ledgers[1].staged[1].sound().borrowed


def test_a_push_that_fell_out_of_the_window_long_ago_is_held() -> None:
    ps = Ps(1)
    for number in range(1, 4):
        ps.push(1, 0.0, number, number - 1)
        ps.decide({1: number}, number)
    ps.shard.ledgers[1].results.pop(1)
    assert [type(answer) for answer in ps.push(1, 0.0, 1, 0)] == [PushHeld]


def test_a_notice_that_fails_keeps_no_other_from_being_given() -> None:
    desk, said = Told(), list[int]()
    waits = LongWaits(desk, 0.25)  # type: ignore[arg-type]

    def fails() -> None:
        raise MemoryError

    waits.add_wait(fails)
    desk.wait(0.3)
    waits.add_wait(lambda: said.append(1))
    with pytest.raises(MemoryError):
        desk.wait(1.0)
    desk.wait(1.0)
    waits.add_wait(lambda: said.append(2))
    desk.wait(1.0)
    assert said == [1, 2]


def test_a_push_that_is_not_finite_is_reported_so() -> None:
    ps = Ps()
    ps.push(1, 2.0)
    ps.push(2, float("nan"))
    assert "NaN" in ps.desk.told[-1].pushes[0][3]
    assert ps.decide({}, 0, refused=[[[1, 2, 1], "bad"]])[0][1].status == REFUSED
    ps.decide({1: 1}, 1)
    assert ps.value == -2.0


def test_a_push_stays_in_the_sessions_memory_until_it_is_applied() -> None:
    ps = Ps(3)
    assert ps.push(1, 2.0) == []
    ps.memories[1].array.view(np.float64)[:] = 5.0
    ps.push(2, 4.0)
    ps.push(3, 0.0)
    assert ps.decide({1: 1, 2: 1, 3: 1}, 1)[0] == (1, applied(1, 1))
    assert ps.value == -3.0


def test_where_the_decision_takes_long_the_push_is_copied_and_the_session_told() -> None:
    ps = Ps()
    assert ps.push(1, 2.0) == [] and ps.desk.wait(ORDINARY.modes.held_s) == []
    (held,) = ps.desk.wait(ORDINARY.modes.held_s)
    assert isinstance(held, PushHeld) and held.reason == "ps:0 waits for the step ps, ps:0"
    ps.memories[1].array.view(np.float64)[:] = 5.0
    ps.push(2, 4.0)
    assert ps.decide({1: 1, 2: 1}, 1) == [(2, applied(1, 1))]
    assert ps.value == -3.0


@pytest.mark.parametrize("mode", [SyncReplicas(2), SyncReplicas(None, 2), SyncReplicas(initial_tokens=1)])
def test_where_sessions_go_on_before_the_step_the_push_is_copied_at_once(mode: SyncReplicas) -> None:
    ps = Ps(2, mode)
    (held,) = ps.push(1, 2.0)
    assert isinstance(held, PushHeld)
    ps.memories[1].array.view(np.float64)[:] = 5.0
    ps.push(2, 4.0)
    assert ps.decide({1: 1, 2: 1}, 1) == []
    assert ps.value == -3.0


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2), (2, 3, 1)])
def test_the_sum_is_taken_by_task_incarnation_and_number_not_by_arrival(order: tuple[int, ...]) -> None:
    values = {1: 1e17, 2: 3.0, 3: -1e17}
    wanted = ((values[1] + values[2]) + values[3]) / 3
    assert wanted != ((values[1] + values[3]) + values[2]) / 3, "the order can be seen"
    ps = Ps(3)
    for incarnation in order:
        ps.push(incarnation, values[incarnation])
    ps.decide(dict.fromkeys(order, 1), 1)
    assert ps.value == -wanted
