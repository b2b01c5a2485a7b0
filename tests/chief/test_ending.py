"""How a run ends: who is waited for, what is saved, who is told."""

from __future__ import annotations

import pytest

from dps.actors.answers import Done
from dps.chief.ending import LAST_SAVE_TRIES
from dps.errors import CheckpointError, TaskLost
from dps.messages.runs import END, FAILED, RUN, SERVED, CloseSession, CutShard, Leave, Register, StopTask
from tests.chief.led import Led


def stopped(led: Led) -> dict[str, StopTask]:
    """Who was told to stop, and how; all have heard it then."""
    questions = led.desk.take(StopTask)
    told = {q.to.address: q.message for q in questions if isinstance(q.message, StopTask)}
    for question in questions:
        question.answer()
    led.desk.pass_time(0.0)
    return told


ALL = ["ps:0", "ps:1", "worker:0", "worker:1"]


def test_when_all_workers_have_closed_and_every_ps_knows_everybody_is_told_to_end() -> None:
    led = Led().train(0, 1)
    led.close(0)
    led.know()
    assert stopped(led) == {}
    led.close(1)
    assert stopped(led) == {}  # the ps do not know yet who has left
    led.know()
    assert sorted(told := stopped(led)) == ALL and set(told.values()) == {StopTask(0, "")}
    assert led.ended == [(0, "")]


def test_the_last_step_is_saved_first() -> None:
    led = Led(checkpoint_dir="run").train(0, 1)
    led.close(0)
    led.close(1)
    led.know()
    assert led.chief.epochs.phase == END and stopped(led) == {}
    led.save(step=5)
    assert sorted(stopped(led)) == ALL and led.ended == [(0, "")]
    assert "step-000000000005-epoch-000001" in led.desk.storage.names("run")


def test_a_full_disk_gets_six_tries_at_the_last_checkpoint() -> None:
    led = Led(checkpoint_dir="run").train(0)
    led.tell(Leave("worker", 1, "it is over"), "leave")
    led.close(0)
    led.know()
    for _ in range(LAST_SAVE_TRIES - 1):
        led.save(step=5, error=CheckpointError("No space left"))
        assert stopped(led) == {}
        led.desk.pass_time(2.0)
    assert LAST_SAVE_TRIES == 6
    led.save(step=5, error=CheckpointError("No space left"))
    assert set(stopped(led).values()) == {StopTask(2, "the last checkpoint could not be written: No space left")}
    assert led.ended == [(2, "the last checkpoint could not be written: No space left")]


def test_a_disk_that_has_room_again_ends_the_run_well() -> None:
    led = Led(checkpoint_dir="run").train(0, 1)
    led.close(0)
    led.close(1)
    led.know()
    led.save(step=5, error=CheckpointError("No space left"))
    led.desk.pass_time(2.0)
    led.save(step=5)
    stopped(led)
    assert led.ended == [(0, "")]


def test_a_ps_that_is_lost_during_the_last_checkpoint_fails_the_run_and_says_what_is_kept() -> None:
    led = Led(checkpoint_dir="run").train(0, 1)
    led.close(0)
    led.close(1)
    led.know()
    led.lose("ps", 1)
    assert led.chief.epochs.phase == FAILED
    words = (
        "ps:1 was silent for 1.0 s during the last checkpoint; the steps after step-000000000000-epoch-000001 are lost"
    )
    assert stopped(led)["ps:0"] == StopTask(3, words)


def test_an_expected_worker_is_waited_for_until_it_has_been_away_for_a_minute() -> None:
    led = Led(workers=3).train(0, 1)
    led.close(0)
    led.close(1)
    led.know()
    led.desk.pass_time(60.0)
    assert led.chief.epochs.phase == RUN and led.chief.members.waiting() == ["worker:2"]
    led.desk.pass_time(6.0)
    led.know()
    assert set(stopped(led).values()) == {StopTask(0, "")}


def test_a_program_that_made_no_session_is_not_waited_for() -> None:
    led = Led().train(0)
    led.close(0)
    led.know()
    assert led.chief.epochs.phase == RUN
    led.tell(Leave("worker", 1, "it ended with an error"), "leave")
    led.know()
    assert led.chief.epochs.phase == END


def test_when_all_workers_are_lost_and_none_has_finished_they_have_fifty_seconds_to_come_back() -> None:
    led = Led().train(0, 1)
    led.lose("worker", 0)
    led.lose("worker", 1)
    led.know()
    led.desk.pass_time(49.0)
    assert led.chief.epochs.phase == RUN
    led.register("worker", 0, process=2)
    led.open(0, process=2, epoch=1)
    led.know()
    led.desk.pass_time(100.0)
    assert led.chief.epochs.phase == RUN  # somebody trains again
    led.lose("worker", 0)
    led.know()
    led.desk.pass_time(50.2)
    assert led.chief.epochs.phase == END


def test_lost_workers_whose_programs_are_over_do_not_come_back() -> None:
    led = Led().train(0, 1)
    led.lose("worker", 0)
    led.lose("worker", 1)
    led.know()
    led.tell(Leave("worker", 0, "it was killed"), "leave")
    assert led.chief.epochs.phase == RUN
    led.tell(Leave("worker", 1, "it was killed"), "leave")
    assert led.chief.epochs.phase == END


def test_a_run_whose_workers_were_all_lost_saves_its_last_step_and_is_3_with_their_names() -> None:
    led = Led(checkpoint_dir="run").train(0, 1)
    led.lose("worker", 0)
    led.tell(Leave("worker", 1, "was killed (SIGKILL)", -9), "leave")
    led.know()
    led.desk.pass_time(50.2)
    led.save(step=5)
    words = "no worker finished: worker:0 was silent for 1.0 s, worker:1 was killed (SIGKILL)"
    assert set(stopped(led).values()) == {StopTask(3, words)}
    assert led.ended == []  # worker:0 may be on its way back, and is to hear of it
    assert led.tell(Register("worker", 0, "worker:0", 1, 0, {}), "late") == StopTask(3, words)
    told = led.open(0)
    assert isinstance(told, TaskLost) and str(told) == words
    led.desk.pass_time(5.0)
    assert led.ended == [(3, words)]


def test_one_worker_that_finished_makes_the_run_end_well_whatever_became_of_the_others() -> None:
    led = Led(workers=3).train(0, 1)
    led.lose("worker", 0)
    led.close(1)
    led.know()
    led.tell(Leave("worker", 2, "ended with exit code 7", 7), "leave")
    led.know()
    assert set(stopped(led).values()) == {StopTask(0, "")} and led.ended == [(0, "")]


def test_sessions_that_all_closed_with_an_error_make_the_run_end_with_1_and_their_names() -> None:
    led = Led().train(0, 1)
    for session in (0, 1):
        led.close(session, error="ValueError: no data here")
        led.know()
    reason = "no worker finished: worker:0 ended with an error, worker:1 ended with an error"
    assert set(stopped(led).values()) == {StopTask(1, reason)}


def test_one_worker_that_finished_is_enough_where_the_session_of_the_other_closed_with_an_error() -> None:
    led = Led().train(0, 1)
    led.close(0, error="ValueError: no data here")
    led.close(1)
    led.know()
    assert set(stopped(led).values()) == {StopTask(0, "")}


@pytest.mark.parametrize(
    ("codes", "told"),
    [
        ((0, 0), StopTask(0, "")),
        ((0, 7), StopTask(0, "")),
        ((7, 7), StopTask(1, "no worker finished: worker:0 ended so, worker:1 ended so")),
        ((7, -9), StopTask(3, "no worker finished: worker:0 ended so, worker:1 ended so")),
    ],
)
def test_programs_that_opened_no_session_end_the_run_as_they_ended(codes: tuple[int, int], told: StopTask) -> None:
    led = Led().gather()
    for task, code in enumerate(codes):
        led.tell(Leave("worker", task, "ended so", code), "leave")
    assert set(stopped(led).values()) == {told}


def test_a_worker_that_is_known_to_be_killed_is_lost_at_once_and_never_called_silent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    led = Led().train(0, 1)
    led.tell(Leave("worker", 1, "was killed (SIGKILL)", -9), "leave")
    assert led.chief.members.given_up == ["worker:1"]
    led.lose("worker", 1)
    led.tell(Leave("worker", 0, "was killed (SIGKILL)", -9), "leave")
    assert caplog.messages == [
        "chief: worker:1 was killed (SIGKILL); the others go on without it", "chief: worker:0 was killed (SIGKILL)",
    ]  # fmt: skip


def test_a_worker_that_comes_back_is_said_to_join_again(caplog: pytest.LogCaptureFixture) -> None:
    led = Led().train(0, 1)
    led.register("worker", 1, process=2)
    assert caplog.messages == ["chief: worker:1 came back and joins again"]


def test_the_only_program_that_opened_no_session_is_said_to_have_finished(caplog: pytest.LogCaptureFixture) -> None:
    led = Led(workers=1).gather()
    led.tell(Leave("worker", 0, "ended with exit code 0"), "leave")
    assert caplog.messages == ["chief: worker:0 finished without taking part in the training"]


@pytest.mark.parametrize("served", [True, False])
def test_of_workers_that_have_served_nothing_is_said(served: bool, caplog: pytest.LogCaptureFixture) -> None:
    led = Led().gather()
    for task in range(2):
        led.tell(Leave("worker", task, SERVED if served else "ended with exit code 0"), "leave")
    assert set(stopped(led).values()) == {StopTask(0, "")}
    assert bool(caplog.messages) is not served


@pytest.mark.parametrize(("has_ps", "launched"), [(False, False), (False, True), (True, False)])
def test_a_worker_alone_that_has_left_is_not_waited_for(
    has_ps: bool, launched: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """With ps it may be started again, and its launcher says how it has ended."""
    led = Led(ps=2 if has_ps else 0, launched=launched)
    if not has_ps:
        led.chief.cluster.use_no_ps()
    led.gather()
    led.tell(Leave("worker", 1, ""), "leave")
    assert (led.chief.members.given_up == ["worker:1"]) is (not has_ps and not launched)
    if led.chief.members.given_up:
        assert caplog.messages == [
            "chief: worker:1 has left before it took part in the training; the others go on without it"
        ]
        led.chief.handle_program_over("worker:0", "its program is over")
        assert led.chief.ending.shutdown.message == StopTask(0, "")


def test_a_worker_that_has_left_without_a_session_is_said_to_have_left_when_its_node_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    led = Led().train(0)
    led.tell(Leave("worker", 1, ""), "leave")
    led.lose("worker", 1)
    assert caplog.messages == [
        "chief: worker:1 has left before it took part in the training; the others go on without it"
    ]
    led.register("worker", 1, process=2)
    led.lose("worker", 1)
    assert led.chief.members.given_up == ["worker:1"]
    assert len(caplog.messages) == 2 and "worker:1 came back and joins again" in caplog.messages[1]


def test_workers_whose_nodes_have_said_that_they_end_are_not_told_and_those_that_say_nothing_are() -> None:
    led = Led().train(0, 1)
    led.close(0)
    led.close(1)
    led.tell(Leave("worker", 0, ""), "goodbye", process=1)
    led.know()
    told = led.desk.take(StopTask)
    assert sorted(question.to.address for question in told) == ["ps:0", "ps:1", "worker:1"]
    for question in told:
        if question.to.address != "worker:1":
            question.answer()
    led.desk.pass_time(0.0)
    assert led.ended == []  # worker:1 may be there, and is to hear of the end
    led.lose("worker", 1)
    led.desk.pass_time(0.0)
    assert led.ended == [(0, "")]


def test_workers_that_say_so_while_the_others_are_told_hold_up_nobody() -> None:
    led = Led().train(0, 1)
    led.close(0)
    led.close(1)
    led.know()
    for question in led.desk.take(StopTask):
        if question.to.address.startswith("ps"):
            question.answer()
    for task in (0, 1):
        assert led.ended == []
        led.tell(Leave("worker", task, ""), "goodbye", process=1)
    led.desk.pass_time(0.0)
    assert led.ended == [(0, "")]


def test_what_a_process_said_that_is_gone_does_not_hold_for_the_one_in_its_place() -> None:
    led = Led().train(0, 1)
    led.close(0)
    led.close(1)
    led.register("worker", 0, process=2)
    led.tell(Leave("worker", 0, ""), "goodbye", process=1)
    led.know()
    assert "worker:0" in stopped(led)


def test_a_node_that_ends_with_its_session_open_is_lost_as_one_that_says_nothing() -> None:
    led = Led().train(0, 1)
    led.tell(Leave("worker", 0, ""), "goodbye", process=1)
    led.close(1)
    led.know()
    assert led.chief.epochs.phase == RUN and "worker:0" in [m.name for m in led.chief.members.live.values()]
    led.lose("worker", 0)
    led.know()
    assert led.chief.epochs.phase == END


def test_a_worker_that_leaves_and_never_had_a_session_or_a_node_is_given_up_by_its_reason_alone() -> None:
    led = Led(workers=3).train(0, 1)
    assert isinstance(led.tell(Leave("worker", 2, ""), "goodbye", process=7), Done)
    assert led.chief.members.waiting() == ["worker:2"]
    led.tell(Leave("worker", 2, "exit code 0"), "leave")
    assert led.chief.members.given_up == ["worker:2"]


def test_a_restarted_chief_does_not_wait_for_workers_that_came_to_it_and_left() -> None:
    led = Led(restarted=True).train(0, 1)
    for task in (0, 1):
        led.close(task)
        led.tell(Leave("worker", task, ""), "goodbye", process=1)
    led.know()
    assert sorted(stopped(led)) == ["ps:0", "ps:1"] and led.ended == [(0, "")]


def test_readers_from_outside_keep_nobody_and_are_told() -> None:
    led = Led().train(0, 1)
    led.open(5, job="client", plan={})
    led.close(0)
    led.close(1)
    led.know()
    assert "client:5" in stopped(led)


def test_an_owned_run_ends_by_a_stop_only() -> None:
    led = Led(owned=True).train(0, 1)
    led.close(0)
    led.close(1)
    led.know()
    led.desk.pass_time(100.0)
    assert led.chief.epochs.phase == RUN
    led.chief.stop_run()
    led.chief.stop_run()
    assert sorted(stopped(led)) == ALL and led.ended == [(0, "")]


def test_nodes_that_come_when_it_is_over_are_told_why_and_a_missing_one_is_given_some_time() -> None:
    led = Led(restarted=True, workers=3).train(0, 1)
    led.tell(Leave("worker", 2, "it is over"), "leave")
    led.close(0)
    led.close(1)
    led.know()
    stopped(led)
    assert led.ended == []
    assert led.tell(Register("worker", 2, "worker:2", 1, 0, {}), "late") == StopTask(0, "")
    led.desk.pass_time(5.0)
    assert led.ended == [(0, "")]


def test_a_restarted_chief_to_which_nobody_comes_fails_after_a_minute() -> None:
    led = Led(restarted=True)
    led.desk.pass_time(59.0)
    assert not led.chief.epochs.end_phase
    led.desk.pass_time(1.0)
    assert led.chief.epochs.phase == FAILED and "no task of the run came" in led.chief.ending.reason


def test_what_is_missed_after_everybody_was_told_of_the_end_does_not_change_how_it_ended() -> None:
    led = Led().gather()
    led.lose("ps", 0)
    led.desk.pass_time(46.0)
    for task in (0, 1):
        led.tell(Leave("worker", task, "ended with exit code 0"), "leave")
    stopped(led)
    led.desk.pass_time(4.5)  # by now ps:0 has been away for too long
    assert led.tell(Register("ps", 0, "ps:0", 1, 0, {}), "late") == StopTask(0, "")
    led.desk.pass_time(1.0)
    assert led.ended == [(0, "")] and led.chief.epochs.phase == END


@pytest.mark.parametrize(("step", "code"), [(0, 0), (1, 3)])
def test_steps_that_were_lost_with_chief_and_ps_before_the_only_session_closed_fail_the_run(
    step: int, code: int
) -> None:
    first = Led(workers=1, checkpoint_dir="run").train(0)
    again = Led(workers=1, checkpoint_dir="run", storage=first.killed(), restarted=True).gather()
    again.tell(CloseSession(0, "", "worker", 0, "run", step), ("close", 0))
    stopped(again)
    again.desk.pass_time(10.0)
    assert [code for code, _ in again.ended] == [code]
    lost = "the last checkpoint could not be written: its ps was lost with the chief; the steps after "
    assert again.ended[0][1].startswith(lost if code else "")


@pytest.mark.parametrize("twice", [False, True])
def test_a_failure_is_told_to_those_that_wait_and_its_first_reason_stays(twice: bool) -> None:
    led = Led().gather()
    led.open(0)
    led.chief.fail_run("the first")
    if twice:
        led.chief.fail_run("the second")
    assert isinstance(led.answered(0), TaskLost) and str(led.answered(0)) == "the first"
    assert set(stopped(led).values()) == {StopTask(3, "the first")} and led.ended == [(3, "the first")]
    assert led.desk.take(CutShard) == []


def test_a_chief_that_was_started_again_and_met_no_ps_of_the_run_says_what_it_cannot_know() -> None:
    led = Led().gather()
    led.chief.epochs.restarted = True
    led.tell(Leave("worker", 0, "ended so", 7), "leave")
    led.tell(Leave("worker", 1, "ended so", -9), "leave")
    (told,) = set(stopped(led).values())
    note = "; this chief was started again, and no ps knows how the run had gone before"
    assert told == StopTask(3, f"no worker finished: worker:0 ended so, worker:1 ended so{note}")
