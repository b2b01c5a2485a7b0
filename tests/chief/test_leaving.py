"""A ps that leaves while the run goes on: nobody trains while its values are saved, and what happens meanwhile."""

from __future__ import annotations

from dps.actors.answers import Done
from dps.chief.takeover import AppliedPushes
from dps.messages.runs import (
    END,
    GATHER,
    HOLD,
    RUN,
    SETTLE,
    CutShard,
    Drain,
    Leave,
    Members,
    MembersKnown,
    OpenSession,
    SessionOpened,
    StopTask,
)
from dps.training.update_modes import SyncReplicas, to_wire
from tests.chief.led import Led, plan


def leaves(led: Led, *tasks: int) -> None:
    """These ps ask to leave, and the chief decides."""
    for task in tasks:
        led.tell(Leave("ps", task, "was told to end"), ("leave", task))
    led.desk.pass_time(1.1)


def settling() -> Led:
    """Two workers train, and are to complete their pushes because ps:1 leaves."""
    led = Led(checkpoint_dir="run").train(0, 1)
    leaves(led, 1)
    told = led.desk.take(Members)
    assert led.chief.epochs.phase == SETTLE and [question.message.settles for question in told] == [True, True]  # type: ignore[attr-defined]
    for question in told:
        question.answer()
    return led


def held() -> Led:
    """The same, when they have not come in time."""
    led = settling()
    led.desk.pass_time(5.1)
    assert led.chief.epochs.phase == HOLD and not led.desk.take(CutShard)
    return led


def has_left(led: Led, task: int) -> bool:
    return isinstance(led.answered(("leave", task)), Done)


def test_nothing_is_saved_before_all_ps_know_that_nobody_trains_and_nobody_is_admitted_meanwhile() -> None:
    led = held()
    told = led.desk.take(Members)
    assert [question.message.live for question in told] == [[], []]  # type: ignore[attr-defined]
    told[0].answer()
    led.open(0, incarnation=1, epoch=1)
    assert not led.desk.take(CutShard)
    told[1].answer()
    led.know()
    assert led.chief.members.live == {} and not has_left(led, 1)
    led.save(step=7)
    assert has_left(led, 1) and led.chief.epochs.phase == GATHER
    led.register("ps", 1, process=2)
    assert led.chief.epochs.number == 2 and led.chief.epochs.run is not None and led.chief.epochs.run.step == 7


def test_sessions_that_have_completed_their_pushes_are_not_waited_for() -> None:
    led = settling()
    led.open(0, incarnation=1, epoch=1)
    led.desk.pass_time(1.0)
    assert led.chief.epochs.phase == SETTLE
    led.close(1)
    led.know()
    led.desk.pass_time(0.1)
    assert led.chief.epochs.phase == HOLD


def test_a_synchronous_run_has_no_pushes_to_complete() -> None:
    led = Led(checkpoint_dir="run")
    led.settings["update"] = to_wire(SyncReplicas())
    led.train(0, 1)
    leaves(led, 1)
    assert led.chief.epochs.phase == HOLD


def test_a_ps_that_is_lost_while_pushes_are_completed_begins_the_next_epoch() -> None:
    led = settling()
    led.lose("ps", 0)
    led.desk.pass_time(0.1)
    assert has_left(led, 1) and led.chief.epochs.phase == GATHER


def test_if_the_last_worker_finishes_when_all_is_saved_the_ps_stays_for_the_end_of_the_run() -> None:
    led = held()
    led.open(0, incarnation=1, epoch=1)
    led.open(1, incarnation=2, epoch=1)
    led.know()
    led.close(0)
    led.close(1)
    led.save(step=7)
    assert not has_left(led, 1)
    led.know()
    led.save(step=7)
    assert led.chief.epochs.phase == END and led.ended == []


def test_if_the_last_worker_finishes_when_the_ps_has_left_the_run_ends_well() -> None:
    led = held()
    led.open(0, incarnation=1, epoch=1)
    led.open(1, incarnation=2, epoch=1)
    led.know()
    led.save(step=7)
    assert has_left(led, 1)
    led.close(0)
    led.close(1)
    assert led.chief.epochs.phase == END and led.chief.ending.reason == ""


def test_a_session_that_comes_back_hears_which_of_its_pushes_the_values_have() -> None:
    led = held()
    for ps, question in enumerate(led.desk.take(Members)):
        question.answer(MembersKnown([[1, 5 - ps, [3]]]))
    led.save(step=7)
    led.register("ps", 1, process=2)
    led.tell(again(led, 0, 1), 0)
    led.configure()
    led.know()
    opened = led.answered(0)
    assert isinstance(opened, SessionOpened) and opened.kept == [[0, 5, [3]], [1, 4, [3]]]


def test_an_earlier_checkpoint_has_none_of_them() -> None:
    kept = AppliedPushes()
    kept.record_ended(0, [[1, 5, []]])
    kept.mark_saved("step-000000000007-epoch-000001")
    kept.begin_epoch("step-000000000007-epoch-000001-values-000001")
    kept.begin_epoch("step-000000000003-epoch-000002")
    assert kept.pushes_of(1) == [[0, 5, []]] and kept.pushes_of(2) == []
    kept.begin_epoch("step-000000000006-epoch-000001")
    assert kept.pushes_of(1) == []


def again(led: Led, session: int, last: int) -> OpenSession:
    """A session that took part as `last` asks to join again."""
    name = f"worker:{session}"
    return OpenSession(session, "worker", session, 1, name, 1, plan(2), led.settings, 7, last, 0, last)


def test_two_ps_leave_with_one_checkpoint() -> None:
    led = held()
    leaves(led, 0)
    led.know()
    led.save(step=7)
    assert has_left(led, 0) and has_left(led, 1) and not led.desk.take(CutShard)


def test_a_ps_leaves_even_if_its_values_cannot_be_saved() -> None:
    led = held()
    led.know()
    led.save(error=OSError("the disk is full"))  # type: ignore[arg-type]
    assert has_left(led, 1) and led.chief.epochs.phase == GATHER


def test_a_ps_that_is_lost_meanwhile_begins_the_next_epoch() -> None:
    for knows in (False, True):
        led = held()
        if knows:
            led.know()
        led.lose("ps", 0)
        assert has_left(led, 1) and led.chief.epochs.phase == GATHER
        led.open(0, incarnation=1, epoch=1)
        led.register("ps", 0, process=2)
        led.register("ps", 1, process=3)
        led.configure()
        assert led.chief.epochs.number == 2 and led.chief.epochs.phase == RUN


def test_if_the_run_is_told_to_end_meanwhile_the_ps_stays_and_the_workers_come_back_to_stop() -> None:
    led = held()
    led.open(0, incarnation=1, epoch=1)
    led.chief.drain("the chief was told to end")
    led.know()
    assert [type(message) for _, message in led.desk.told] == [Drain, Drain] and led.chief.epochs.phase == HOLD
    led.save(step=7)
    led.know()
    assert led.chief.epochs.phase == RUN and led.chief.epochs.number == 1 and led.incarnations(0) == [3]
    led.close(0)
    led.close(1)
    led.know()
    led.save(step=8)
    assert led.chief.epochs.phase == END and not has_left(led, 1)


def test_if_all_workers_are_done_meanwhile_the_run_ends_well() -> None:
    led = held()
    led.close(0)
    led.close(1)
    assert led.chief.epochs.phase == HOLD
    led.know()
    led.save(step=7)
    led.save(step=7)
    told = {question.to.address: question.message for question in led.desk.take(StopTask)}
    assert set(told.values()) == {StopTask(0, "")} and led.chief.epochs.phase == END
