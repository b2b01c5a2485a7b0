"""How sessions get in and leave, through the whole chief."""

from __future__ import annotations

import pytest

from dps.actors.answers import Done, Waiting
from dps.actors.authorization import Peer
from dps.actors.ref import Sender
from dps.errors import Aborted, ConfigError, TaskLost, Unavailable
from dps.messages.runs import AskState, CloseSession, Members, Register, Registered, RunState, SessionOpened
from dps.training.update_modes import Async, SyncReplicas, to_wire
from tests.chief.led import Led, plan


def live(led: Led) -> dict[int, str]:
    return {incarnation: member.name for incarnation, member in led.chief.members.live.items()}


def test_a_session_of_a_process_that_has_not_registered_waits_and_is_not_known() -> None:
    led = Led().gather()
    assert led.open(0, process=9) == Waiting("worker:0 has not registered yet")
    assert led.chief.sessions.known == {}
    led.register("worker", 0, process=9)
    led.open(0, process=9)
    assert list(led.chief.sessions.known) == [0]


def test_a_session_that_asks_again_while_it_waits_is_told_for_whom() -> None:
    led = Led()
    led.register("ps", 0)
    led.register("worker", 0)
    assert led.open(0) == Waiting("the chief waits for ps:1")


def test_the_one_that_is_to_send_the_first_values_is_asked_again_when_it_asks_again() -> None:
    led = Led().gather()
    led.open(0)
    led.configure()
    before = led.answered(0)
    assert led.open(0) == before and isinstance(before, SessionOpened) and before.initialise


def test_nobody_is_told_before_every_ps_knows() -> None:
    led = Led().train(0)
    led.open(1)
    first, second = led.desk.take(Members)
    first.answer()
    assert led.incarnations(1) == [0]
    second.answer()
    assert led.incarnations(1) == [2]


def test_a_session_that_wants_another_layout_is_refused_and_forgotten() -> None:
    led = Led().train(0)
    answer = led.open(1, settings={"checkpoint_dir": "other"})
    assert isinstance(answer, ConfigError) and list(led.chief.sessions.known) == [0]
    assert isinstance(led.tell(AskState(1), "state"), RunState)


def test_one_that_a_ps_has_refused_gets_another_incarnation_in_the_same_epoch() -> None:
    led = Led().train(0, 1)
    led.open(0, incarnation=1, epoch=1)
    led.know()
    assert led.incarnations(0, 1) == [3, 2] and live(led) == {2: "worker:1", 3: "worker:0"}


def test_a_late_copy_of_an_old_request_ends_no_incarnation() -> None:
    led = Led().train(0, 1)
    led.open(0, incarnation=0, epoch=0)
    led.know()
    assert led.incarnations(0) == [1] and live(led) == {1: "worker:0", 2: "worker:1"}


def test_closing_is_done_once_and_a_late_request_of_a_closed_session_is_refused() -> None:
    led = Led().train(0, 1)
    led.close(0)
    led.close(0)
    assert led.answered(("close", 0)) == Done() and led.chief.members.finished == ["worker:0"]
    assert isinstance(led.open(0), Aborted) and live(led) == {2: "worker:1"}


def test_a_worker_that_closes_between_two_epochs_has_finished() -> None:
    led = Led(checkpoint_dir="run").train(0, 1)
    led.lose("ps", 0)
    led.close(0)
    assert led.chief.members.finished == ["worker:0"] and led.chief.members.waiting() == ["worker:1"]


def test_a_close_for_an_earlier_chief_counts_here() -> None:
    led = Led().gather()
    led.tell(CloseSession(77, "", "worker", 0, ""), "close")
    assert led.chief.members.finished == ["worker:0"]


@pytest.mark.parametrize("how", ["lost", "restarted"])
def test_a_worker_that_is_gone_takes_its_sessions_with_it(how: str) -> None:
    led = Led().train(0, 1)
    if how == "lost":
        led.lose("worker", 0)
    else:
        led.register("worker", 0, process=2)
    assert live(led) == {2: "worker:1"} and list(led.chief.sessions.known) == [1]
    assert led.chief.members.given_up == ["worker:0"]
    assert [q.message.live for q in led.desk.take(Members) if isinstance(q.message, Members)] == [
        [[2, "worker:1", 1, True]]
    ] * 2
    led.register("worker", 0, process=2)
    led.open(0, process=2, epoch=1)
    assert live(led) == {2: "worker:1", 3: "worker:0"}


def test_a_reader_from_outside_needs_no_registration_and_brings_nothing() -> None:
    led = Led().train(0)
    led.open(5, job="client", plan={})
    led.know()
    assert led.incarnations(5) == [2] and "client:5" in led.desk.watched
    led.chief.lost("client:5", 1.0)
    assert live(led) == {1: "worker:0"} and "client:5" not in led.desk.watched


def test_when_the_run_is_over_nobody_gets_in() -> None:
    led = Led().train(0)
    led.chief.stop_run()
    assert isinstance(led.open(1), Unavailable)
    led = Led().train(0)
    led.lose("ps", 0)
    assert isinstance(led.open(1), TaskLost)


def test_a_task_without_a_number_that_wants_another_mode_is_named_by_its_address() -> None:
    led = Led()
    led.tell(Register("ps", -1, "a:1", 1, 0, to_wire(SyncReplicas())), "first")
    answer = led.tell(Register("ps", -1, "b:1", 2, 0, to_wire(Async())), "second")
    assert isinstance(answer, ConfigError)
    assert "the ps at b:1 wants Async(), the ps at a:1 has SyncReplicas()" in str(answer)


def test_the_plan_that_sessions_get_is_the_runs() -> None:
    led = Led().gather()
    led.open(0, plan=plan(2, 1, 1))
    led.configure()
    asked = led.answered(0)
    assert isinstance(asked, SessionOpened) and asked.plan["ps"] == [1] and asked.addresses == [[1, "ps:1"]]


def test_a_process_whose_ticket_comes_after_its_first_message_keeps_its_place() -> None:
    led, register = Led(), Register("worker", 0, "worker:0", 7, 0, {})
    proven = Peer("T")
    led.chief.handle(register, Sender("early", 1, "worker:0", 0))
    assert isinstance(led.answered("early"), Registered)
    led.desk.up["worker:0"] = led.chief.cluster.workers.known[0].connection = 5
    led.chief.handle(register, Sender("late", 1, "worker:0", 0, proven))
    assert isinstance(led.answered("late"), Registered) and led.chief.cluster.workers.known[0].ticket == "T"
    led.chief.handle(register, Sender("other", 1, "worker:0", 0, Peer("X")))
    assert isinstance(led.answered("other"), Waiting)
