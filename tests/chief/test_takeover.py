"""A chief that finds a run another one led: what it asks, what it takes up, in which order things may come."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dps.actors.answers import Done, Waiting
from dps.chief.members import RunMembers
from dps.chief.run import write_journal
from dps.errors import DeadlineExceeded, TaskLost
from dps.messages.runs import (
    CONFIGURE,
    END,
    FAILED,
    GATHER,
    OPEN,
    RUN,
    AskServing,
    AskState,
    CloseSession,
    ConfiguredBefore,
    CutShard,
    Members,
    Register,
    RunState,
    Save,
    SessionOpened,
    StopTask,
)
from tests.chief.led import Led, plan

SETTINGS = {"update": {"mode": "async"}}
RESTORED = "step-000000000040-epoch-000004"


def told(*sessions: int, gone: tuple[int, ...] = ()) -> dict[str, Any]:
    """Notes of a chief that has let in these sessions, of workers with the same numbers; of `gone` some were lost."""
    members = RunMembers(["worker:0", "worker:1"])
    for session in sessions:
        members.admit_session(session, f"worker:{session}", session, True, True, f"worker:{session}", 1)
    for session in gone:
        members.give_up(f"worker:{session}")
    return members.notes()


class Second(Led):
    """The second chief of a run: its ps say that they have seen run epoch 5."""

    def __init__(self, checkpoint_dir: str = "run", **chief: Any) -> None:
        super().__init__(checkpoint_dir=checkpoint_dir, **chief)

    def come(self, job: str, task: int, epoch: int = 5, process: int = 1) -> None:
        self.tell(Register(job, task, f"{job}:{task}", process, epoch, {}), f"{job}:{task}")

    def serve(self, task: int, epoch: int = 5, trains: bool = True, notes: dict[str, Any] | None = None) -> None:
        """A ps answers what it was asked."""
        for question in self.desk.take(AskServing):
            if question.to.address == f"ps:{task}":
                about = {**SETTINGS, **self.settings}, self.settings.get("checkpoint_dir", "")
                served = (told(0, 1) if notes is None else notes) if trains else {}
                question.answer(ConfiguredBefore(epoch, trains, 47, plan(2), *about, RESTORED, served))
            else:
                self.desk.questions.append(question)

    def phase(self) -> tuple[str, int]:
        return self.chief.epochs.phase, self.chief.epochs.number

    def live(self) -> dict[int, str]:
        return {incarnation: member.name for incarnation, member in self.chief.members.live.items()}


def test_an_epoch_that_all_ps_serve_goes_on_and_nobody_is_asked_to_join_again() -> None:
    led = Second()
    led.come("ps", 0)
    led.come("ps", 1)
    led.serve(1)
    assert led.phase() == (GATHER, 5) and "waits for ps:0 to tell what it serves" in led.chief._text()
    led.serve(0)
    assert led.phase() == (RUN, 5) and led.live() == {1: "worker:0", 2: "worker:1"}
    members = [q.message for q in led.desk.take(Members)]
    assert [m.version for m in members if isinstance(m, Members)] == [3, 3]  # above what the ps have heard
    assert led.tell(AskState(0), "asks") == RunState(5, True, True, "training; the chief waits for ps:0, ps:1")
    assert led.desk.watched >= {"worker:0", "worker:1"}


def test_the_next_epoch_and_the_next_incarnation_are_above_all_that_were_used() -> None:
    led = Second()
    led.desk.storage = Led(checkpoint_dir="run").train(0).killed()  # there is a checkpoint
    for task in (0, 1):
        led.come("ps", task)
        led.come("worker", task, epoch=8)
        led.serve(task)
    led.lose("ps", 1)
    led.come("ps", 1, epoch=0, process=2)
    led.open(0, incarnation=1, epoch=5)
    assert led.phase() == (CONFIGURE, 9) and led.chief.members.next_incarnation >= 3


def test_the_lock_on_the_checkpoint_dir_is_taken_up_with_the_run() -> None:
    led = Second()
    led.desk.storage = Led(checkpoint_dir="run").train(0).killed()
    for task in (0, 1):
        led.come("ps", task)
        led.serve(task)
    assert led.phase() == (RUN, 5) and led.desk.storage.claim("run/run.lock") is None


def test_a_run_whose_checkpoint_dir_another_run_took_meanwhile_ends_and_changes_nothing() -> None:
    led, other = Second(), Led(checkpoint_dir="run")
    other.desk.address = "127.0.0.1:3"
    led.desk.storage = other.train(0).desk.storage
    before = dict(led.desk.storage._files)
    for task in (0, 1):
        led.come("ps", task)
        led.serve(task)
    assert led.phase()[0] == FAILED and "another run, whose chief is 127.0.0.1:3" in led.chief.ending.reason
    assert led.desk.storage._files == before


ORDERS = list(itertools.permutations(["ps:0", "ps:1", "worker", "session"]))


@pytest.mark.parametrize("order", ORDERS, ids=[" ".join(order) for order in ORDERS])
def test_in_whatever_order_they_come(order: tuple[str, ...]) -> None:
    """A session that asks again because a ps refused it gets a new incarnation, whether it asks early or late."""
    led = Second()
    come: dict[str, Any] = {
        "ps:0": lambda: (led.come("ps", 0), led.serve(0)),
        "ps:1": lambda: (led.come("ps", 1), led.serve(1)),
        "worker": lambda: led.register("worker", 0),
        "session": lambda: led.open(0, incarnation=1, epoch=5),
    }
    for what in order:
        come[what]()
    led.open(0, incarnation=1, epoch=5)  # it is sent again
    led.know()
    assert led.phase() == (RUN, 5) and led.live() == {2: "worker:1", 3: "worker:0"}
    assert led.incarnations(0) == [3]


def test_a_session_that_was_let_in_and_not_told_hears_of_the_same_incarnation() -> None:
    led = Second()
    led.register("worker", 0)
    led.open(0, incarnation=0, epoch=0)
    for task in (0, 1):
        led.come("ps", task)
        led.serve(task)
    led.know()
    answer = led.answered(0)
    assert isinstance(answer, SessionOpened) and (answer.incarnation, answer.epoch, answer.step) == (1, 5, 40)


def test_questions_of_sessions_wait_until_the_chief_knows() -> None:
    led = Second()
    led.come("ps", 0)
    led.serve(0)
    assert isinstance(led.tell(AskState(0), "state"), Waiting) and isinstance(led.tell(Save(0), "save"), Waiting)
    led.come("ps", 1)
    led.serve(1)
    assert isinstance(led.tell(AskState(0), "state"), RunState)
    led.tell(Save(0), "save")
    assert len(led.desk.take(CutShard)) == 2


def test_a_session_that_closes_before_the_chief_knows_it_has_finished() -> None:
    led = Second()
    led.come("ps", 0)
    assert led.tell(CloseSession(0, "", "worker", 0, "run"), "close") == Done()
    led.serve(0)
    led.come("ps", 1)
    led.serve(1)
    assert led.live() == {2: "worker:1"} and led.chief.members.finished == ["worker:0"]
    assert led.phase() == (RUN, 5)


def test_one_whose_process_has_been_replaced_is_gone() -> None:
    led = Second()
    led.register("worker", 1, process=2)
    for task in (0, 1):
        led.come("ps", task)
        led.serve(task)
    assert led.live() == {1: "worker:0"} and led.chief.members.given_up == ["worker:1"]
    led.register("worker", 0, process=3)
    assert led.live() == {}


def test_workers_that_were_given_up_stay_so() -> None:
    led = Second()
    for task in (0, 1):
        led.come("ps", task)
        led.serve(task, notes=told(0, gone=(1,)))
    assert led.chief.members.waiting() == [] and led.chief.members.given_up == ["worker:1"]


def test_the_newest_that_any_ps_was_told_counts() -> None:
    led = Second()
    led.come("ps", 0)
    led.come("ps", 1)
    led.serve(1, notes=told(0, 1))
    led.serve(0, notes=told(0))
    assert led.live() == {1: "worker:0", 2: "worker:1"}


def test_an_epoch_of_which_one_ps_was_told_and_the_other_not_yet_goes_on() -> None:
    led = Second()
    led.come("ps", 0)
    led.come("ps", 1)
    led.serve(0, trains=False)
    led.serve(1)
    assert led.phase() == (RUN, 5)


@pytest.mark.parametrize("other", ["another epoch", "none", "does not train"])
def test_where_not_all_ps_serve_one_epoch_that_trains_another_begins(other: str) -> None:
    led = Second()
    led.come("ps", 0)
    led.serve(0, trains=other != "does not train")
    if other == "none":
        led.come("ps", 1, epoch=0)
    else:
        led.come("ps", 1, epoch=6)
        led.serve(1, epoch=6 if other == "another epoch" else 5, trains=False)
    known = 5 if other == "none" else 6
    assert led.phase() == (OPEN, known) and led.live() == {}
    assert led.tell(AskState(0), "state") == RunState(known, False, False, "the chief waits for a session to come back")


def test_without_a_checkpoint_dir_a_ps_that_has_lost_its_values_fails_the_run() -> None:
    led = Second(checkpoint_dir="")
    led.come("ps", 0)
    led.serve(0)
    led.come("ps", 1, epoch=0)
    assert led.phase() == (FAILED, 5) and "ps:1 was lost with the chief and its values are gone" in led.chief._text()
    assert isinstance(led.open(0, incarnation=1, epoch=5), TaskLost)


def test_sessions_that_bring_a_run_whose_ps_have_all_lost_it_without_a_checkpoint_dir_fail() -> None:
    led = Second(checkpoint_dir="")
    for task in (0, 1):
        led.come("ps", task, epoch=0)
    led.register("worker", 0)
    assert isinstance(led.open(0, incarnation=1, epoch=5), TaskLost)
    assert "give the session a checkpoint_dir" in led.chief.ending.reason


def test_a_ps_that_is_lost_again_is_no_longer_asked_and_one_that_does_not_answer_is_asked_again() -> None:
    led = Second()
    led.come("ps", 0)
    led.desk.take(AskServing)[0].answer(DeadlineExceeded("silent"))
    assert len(led.desk.take(AskServing)) == 1
    led.lose("ps", 0)
    led.come("ps", 0, epoch=0, process=2)
    led.come("ps", 1, epoch=0)
    assert led.phase() == (OPEN, 5)


def test_ps_that_the_plan_needs_are_waited_for_where_their_number_is_not_known_and_fail_the_run_in_time() -> None:
    led = Second(ps=0, workers=0)
    led.come("ps", 0)
    led.serve(0)
    assert led.phase() == (GATHER, 5) and led.chief._text() == "the chief waits for ps:1 (0 s)"
    led.desk.pass_time(50.0)
    assert led.phase()[0] == FAILED and "ps:1 was lost with the chief and did not come back" in led.chief._text()


def test_a_session_that_comes_before_the_ps_of_its_plan_waits_for_them() -> None:
    led = Second(ps=0, workers=0)
    led.register("worker", 0)
    led.come("ps", 0, epoch=0)
    led.open(0, incarnation=1, epoch=5, plan=plan(2))
    assert led.phase() == (GATHER, 5) and "ps:1" in led.chief._text()


def test_a_run_that_had_ended_is_not_saved_again_and_ends_well() -> None:
    led = Second()
    write_journal(led.desk.storage, "run", 5, RunMembers(), ended=True)
    led.come("ps", 0)
    led.serve(0)  # ps:1 was told of the end before the chief died, and does not come
    assert led.phase()[0] == END and led.chief.ending.shutdown.message == StopTask(0, "")


@pytest.mark.parametrize(("epoch", "ended"), [(4, True), (5, False)])
def test_a_journal_of_another_epoch_or_of_a_run_that_did_not_end_does_not_end_this_one(epoch: int, ended: bool) -> None:
    led = Second()
    write_journal(led.desk.storage, "run", epoch, RunMembers(), ended)
    led.come("ps", 0)
    led.serve(0)
    assert led.phase()[0] == GATHER and led.chief.ending.shutdown.message is None
    led.come("ps", 1)
    led.serve(1)
    assert led.phase()[0] == RUN


def test_a_chief_that_leads_asks_nobody() -> None:
    led = Led(checkpoint_dir="run").train(0, 1)
    led.tell(Register("ps", 0, "ps:0", 1, 1, {}), "ps:0")
    assert led.desk.take(AskServing) == []


def test_a_close_in_the_name_of_a_session_that_the_chief_does_not_know_yet_counts_for_nothing() -> None:
    led = Second()
    led.come("ps", 0)
    assert led.tell(CloseSession(0, "", "worker", 0, "run"), "close", process=9) == Done()
    led.serve(0)
    led.come("ps", 1)
    led.serve(1)
    assert led.live() == {1: "worker:0", 2: "worker:1"} and led.chief.members.finished == []
