"""Run epochs: when one begins, what ends it, and races on the way, each a list of what comes in."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dps.actors.answers import Done, Waiting
from dps.checkpoint import Journal, candidates, load
from dps.checkpoint.manifest import encode
from dps.errors import Aborted, CheckpointError, ConfigError, DeadlineExceeded, TaskLost
from dps.messages.runs import (
    CONFIGURE,
    END,
    FAILED,
    GATHER,
    INITIALISE,
    OPEN,
    RUN,
    AskStatus,
    Configure,
    Configured,
    Members,
    Register,
    Restore,
    Save,
    Saved,
    SessionOpened,
    Stats,
)
from dps.variables.plan import VariableSpec, make_plan
from tests.chief.led import Led, plan
from tests.variables.models import SGD


def phase(led: Led) -> tuple[str, int]:
    return led.chief.epochs.phase, led.chief.epochs.number


def configures(led: Led) -> list[Configure]:
    return [q.message for q in led.desk.questions if isinstance(q.message, Configure)]


# -- to training ---------------------------------------------------------------------------------------------------


def test_from_the_first_ps_to_training() -> None:
    led = Led()
    led.register("ps", 0)
    assert phase(led) == (GATHER, 0)
    led.register("ps", 1)
    led.register("worker", 0)
    assert phase(led) == (OPEN, 0)
    led.open(0)
    assert phase(led) == (CONFIGURE, 1)
    assert led.configure(0) == [0, 1] and phase(led) == (CONFIGURE, 1)


def test_it_is_configured_when_the_last_ps_has_answered_and_the_first_session_is_asked_for_values() -> None:
    led = Led().gather()
    led.open(0)
    led.open(1)
    led.configure()
    asked = led.answered(0)
    assert phase(led) == (INITIALISE, 1) and isinstance(asked, SessionOpened) and asked.initialise
    assert asked.addresses == [[0, "ps:0"], [1, "ps:1"]] and "worker:0 to send the first values" in led.chief._text()
    led.initialise(1)  # not the one that was asked
    assert phase(led) == (INITIALISE, 1)
    led.initialise(0)
    assert phase(led) == (RUN, 1) and led.incarnations(0, 1) == [0, 0]
    led.know()
    assert led.incarnations(0, 1) == [1, 2]


def test_with_a_checkpoint_dir_nobody_trains_before_the_first_checkpoint() -> None:
    led = Led(checkpoint_dir="run").gather()
    led.open(0)
    led.configure()
    led.initialise(0)
    assert phase(led) == (CONFIGURE, 1) and led.chief._text() == "the chief waits for the first checkpoint"
    led.save()
    assert phase(led) == (RUN, 1)


def test_a_reader_that_comes_first_waits_for_one_that_brings_variables() -> None:
    led = Led().gather()
    led.open(0, plan={})
    assert phase(led) == (OPEN, 0) and "a session that brings variables" in led.chief._text()
    led.open(1)
    assert phase(led) == (CONFIGURE, 1)


def test_a_session_whose_plan_names_other_ps_is_refused_and_the_next_one_is_asked() -> None:
    led = Led()
    led.register("worker", 0)
    led.register("worker", 1)
    led.register("ps", 0)
    led.open(0, plan=plan(3, 0, 2))
    led.open(1)
    led.register("ps", 1)
    assert isinstance(led.answered(0), ConfigError) and "the cluster has [0, 1]" in str(led.answered(0))
    assert phase(led) == (CONFIGURE, 1) and list(led.chief.sessions.known) == [1]


# -- what goes wrong on the way ------------------------------------------------------------------------------------


def test_a_ps_that_is_lost_while_it_is_configured_begins_another_epoch_and_late_answers_do_nothing() -> None:
    led = Led().gather()
    led.open(0)
    first, second = led.desk.take(Configure)
    first.answer(Configured(1, 0))
    led.lose("ps", 1)
    assert phase(led) == (GATHER, 1) and led.chief._text() == "the chief waits for ps:1 (0 s)"
    led.register("ps", 1, process=2)
    assert phase(led) == (CONFIGURE, 2)
    second.answer(Configured(1, 0))
    led.configure(0)
    assert phase(led) == (CONFIGURE, 2)


def test_a_ps_that_was_restarted_before_its_loss_was_seen_begins_another_epoch_at_once() -> None:
    led = Led(checkpoint_dir="run").train(0, 1)
    led.register("ps", 1, process=2)
    assert phase(led) == (OPEN, 1)
    led.open(0, epoch=1)
    assert phase(led) == (CONFIGURE, 2)


def test_a_ps_that_cannot_take_what_the_sessions_want_refuses_them_and_others_may_want_something_else() -> None:
    led = Led().gather()
    led.open(0)
    led.desk.take(Configure)[1].answer(ConfigError("no GPU:3 here"))
    assert str(led.answered(0)) == "ps:1: no GPU:3 here" and phase(led) == (OPEN, 1)
    led.open(1, plan=plan(2, 1, 0))
    assert phase(led) == (CONFIGURE, 2)


def test_a_checkpoint_of_another_model_is_the_error_of_all_sessions_and_begins_nothing() -> None:
    led = Led(checkpoint_dir="run").train(0, 1)
    led.chief.stop_run()
    again = Led(checkpoint_dir="run", storage=led.desk.storage)
    files = dict(led.desk.storage._files)
    other = make_plan([VariableSpec("a", (3,), "<f4", SGD)], (0, 1), lambda *_: 0, None).to_wire()
    for job, task in (("worker", 0), ("worker", 1), ("ps", 0)):
        again.register(job, task)
    again.open(0, plan=other)
    again.open(1, plan=other)
    again.register("ps", 1)
    wanted = r"a is float32 \(2,\) in run/step-0+-epoch-000001 and float32 \(3,\) in this program; use the model that"
    for session in (0, 1):
        answer = again.answered(session)
        assert isinstance(answer, CheckpointError) and re.match(wanted, str(answer)), answer
    assert phase(again) == (OPEN, 1) and configures(again) == [] and led.desk.storage._files == files
    again.open(0)
    assert phase(again) == (CONFIGURE, 2)


def test_a_checkpoint_that_a_ps_cannot_read_is_the_error_of_all_sessions() -> None:
    led = Led(checkpoint_dir="run").gather()
    led.open(0)
    led.open(1)
    led.desk.take(Configure)[1].answer(CheckpointError("accumulator of a has 1 elements; use another checkpoint_dir"))
    for session in (0, 1):
        answer = led.answered(session)
        assert isinstance(answer, CheckpointError) and str(answer).startswith("ps:1: accumulator of a has 1 elements")
    assert phase(led) == (OPEN, 1) and led.ended == []


def test_a_restore_of_another_model_is_refused_to_who_asked_and_the_run_goes_on() -> None:
    led = Led(checkpoint_dir="run").train(0)
    manifest = load(led.desk.storage, "run", newest := candidates(led.desk.storage, "run")[0])
    variables = (manifest.variables[0], replace(manifest.variables[1], dtype="float64"))
    led.desk.storage.write(f"run/{newest}/manifest.json", [encode(replace(manifest, variables=variables))])
    answer = led.tell(Restore(0, 1, newest), "restore")
    assert isinstance(answer, CheckpointError) and "b is float64 (2,) in run/" in str(answer)
    assert phase(led) == (RUN, 1)


def test_a_ps_that_makes_first_values_is_asked_again_as_long_as_it_makes_some() -> None:
    led = Led().gather()
    led.open(0)

    def late() -> None:
        for question in led.desk.take(Configure):
            if question.to.address == "ps:1":
                question.answer(DeadlineExceeded("ps:1 did not answer Configure within 120.0 s"))

    for percent in 10, 20, 30:
        for question in led.desk.questions:
            if isinstance(question.message, Configure) and question.to.address == "ps:1":
                question.wait(f"makes first values, {percent} % of 99.0 MB")
        assert f"ps:1, which makes first values, {percent} % of 99.0 MB" in led.chief.epochs.text()
        late()
        assert phase(led) == (CONFIGURE, 1) and [message.shard for message in configures(led)] == [1]
    late()
    assert phase(led) == (FAILED, 1), "it has made none in the last time"


def test_a_ps_that_does_not_answer_fails_the_run() -> None:
    led = Led().gather()
    led.open(0)
    led.desk.take(Configure)[1].answer(DeadlineExceeded("silent"))
    assert phase(led) == (FAILED, 1) and isinstance(led.answered(0), TaskLost)
    assert "ps:1 cannot take run epoch 1" in str(led.answered(0))


def test_a_first_checkpoint_that_cannot_be_written_is_the_sessions_error() -> None:
    led = Led(checkpoint_dir="run").gather()
    led.open(0)
    led.configure()
    led.initialise(0)
    led.save(error=CheckpointError("No space left"))
    answer = led.answered(0)
    assert isinstance(answer, CheckpointError) and "the first checkpoint cannot be written" in str(answer)
    assert phase(led) == (OPEN, 1) and led.chief.epochs.run is None


def test_when_the_one_that_was_to_send_the_first_values_closes_another_one_is_asked() -> None:
    led = Led().gather()
    led.open(0)
    led.open(1)
    led.configure()
    led.close(0)
    assert phase(led) == (CONFIGURE, 2)
    led.configure()
    asked = led.answered(1)
    assert isinstance(asked, SessionOpened) and asked.initialise and asked.epoch == 2


def test_when_nobody_is_left_to_send_the_first_values_the_next_session_begins_anew() -> None:
    led = Led().gather()
    led.open(0)
    led.close(0)
    led.configure()
    assert phase(led) == (OPEN, 1) and led.chief._text() == "the chief waits for a session to come back"
    led.open(1)
    assert phase(led) == (CONFIGURE, 2)


# -- from one to the next ------------------------------------------------------------------------------------------


def test_a_lost_ps_rolls_back_to_the_checkpoint_and_sessions_come_in_under_new_incarnations() -> None:
    led = Led(checkpoint_dir="run").train(0, 1)
    assert led.incarnations(0, 1) == [1, 2]
    led.lose("ps", 0)
    assert phase(led) == (GATHER, 1)
    led.register("ps", 0, process=2)
    assert phase(led) == (OPEN, 1)
    led.open(1, incarnation=2, epoch=1)
    asked = configures(led)
    assert [(m.epoch, m.restore) for m in asked] == [(2, "step-000000000000-epoch-000001")] * 2
    led.configure()
    led.know()
    assert phase(led) == (RUN, 2) and led.incarnations(1) == [3]


def test_without_a_checkpoint_dir_a_lost_ps_fails_the_run() -> None:
    led = Led().train(0, 1)
    led.lose("ps", 1)
    assert phase(led) == (FAILED, 1) and "give the session a checkpoint_dir" in led.chief._text()


def test_a_ps_that_has_forgotten_the_epoch_is_a_lost_one() -> None:
    led = Led(checkpoint_dir="run").train(0)
    led.open(1)
    led.desk.take(Members)[0].answer(Aborted("serves none"))
    assert phase(led) == (CONFIGURE, 2)  # the ps is there, and worker:1 waits
    assert led.desk.recorded.count("ps lost") == 1


def test_a_ps_that_stays_away_fails_the_run_and_one_that_comes_back_does_not() -> None:
    led = Led(checkpoint_dir="run").train(0)
    led.lose("ps", 0)
    led.desk.pass_time(40.0)
    led.register("ps", 0, process=2)
    led.lose("ps", 1)
    led.desk.pass_time(49.0)
    assert phase(led) == (GATHER, 1)
    led.desk.pass_time(1.0)
    assert phase(led) == (FAILED, 1) and "ps:1 was silent for 1.0 s and did not come back" in led.chief._text()


def test_a_ps_that_serves_an_epoch_that_is_over_gets_another_though_no_session_asks() -> None:
    """It stood still, and so did the sessions: the two go on with each other, and know nothing of the loss."""
    led = Led(checkpoint_dir="run").train(0)
    led.lose("ps", 0)
    led.tell(Register("ps", 1, "ps:1", 1, 1, {}), "ps:1")
    assert phase(led) == (GATHER, 1)
    led.tell(Register("ps", 0, "ps:0", 1, 1, {}), "ps:0")
    assert led.configure() == [0, 1] and phase(led) == (RUN, 2)
    led.lose("ps", 1)
    led.register("ps", 1, process=2)
    assert phase(led) == (OPEN, 2)  # nobody serves the epoch that is over: it is not begun anew before somebody asks


def test_an_epoch_that_a_node_has_seen_is_never_used_again() -> None:
    led = Led().gather()
    led.chief.epochs.record_epoch(7)
    led.open(0)
    assert phase(led) == (CONFIGURE, 8)


def test_a_save_is_answered_and_one_that_a_rollback_cuts_short_too() -> None:
    led = Led(checkpoint_dir="run").train(0)
    led.tell(Save(0), "save")
    led.save(step=3)
    assert led.answered("save") == Saved("step-000000000003-epoch-000001", 3)
    led.tell(Save(0), "again")
    led.lose("ps", 0)
    assert isinstance(led.answered("again"), Aborted)
    assert isinstance(led.tell(Save(0), "now"), Aborted) and isinstance(led.tell(Save(9), "stranger"), Aborted)


def test_a_restore_rolls_back_once_and_one_of_an_epoch_that_is_over_does_nothing() -> None:
    led = Led(checkpoint_dir="run").train(0)
    assert isinstance(led.tell(Restore(0, 1, "step-000000000099-epoch-000001"), "gone"), CheckpointError)
    assert phase(led) == (RUN, 1)
    led.tell(Restore(0, 1, "step-000000000000-epoch-000001"), "restore")
    led.open(0, incarnation=1, epoch=1)
    led.configure()
    assert phase(led) == (RUN, 2)
    assert isinstance(led.tell(Restore(1, 1, ""), "late"), Aborted) and phase(led) == (RUN, 2)
    again = led.tell(Restore(0, 1, "step-000000000000-epoch-000001"), "again")  # its answer was lost
    assert isinstance(again, Done) and phase(led) == (RUN, 2)


def test_without_a_checkpoint_dir_there_is_nothing_to_save_to_or_to_restore_from() -> None:
    led = Led().train(0)
    assert "nothing to save to" in str(led.tell(Save(0), "save"))
    assert "nothing to restore from" in str(led.tell(Restore(0, 1, ""), "restore"))


# -- a ps that holds no variables ----------------------------------------------------------------------------------


def test_a_ps_that_holds_no_variables_is_in_no_plan_and_its_loss_is_none_of_the_runs() -> None:
    led = Led()
    led.gather()
    led.open(0, plan=plan(2, 1, 1))
    assert [m.shard for m in configures(led)] == [1] and configures(led)[0].addresses == [[1, "ps:1"]]
    led.configure()
    led.lose("ps", 0)
    led.initialise(0)
    led.know()
    assert phase(led) == (RUN, 1) and led.incarnations(0) == [1] and led.chief._text() == "training"
    led.desk.pass_time(100.0)
    led.register("ps", 0, process=2)
    assert phase(led) == (RUN, 1)
    led.lose("ps", 1)
    assert phase(led) == (FAILED, 1)


def test_until_there_is_a_run_every_ps_is_waited_for_again() -> None:
    led = Led().gather()
    led.open(0, plan=plan(2, 0, 0))
    led.lose("ps", 1)
    led.desk.take(Configure)[0].answer(ConfigError("no GPU:3 here"))
    assert phase(led) == (GATHER, 1) and led.chief._text() == "the chief waits for ps:1 (0 s)"


def test_where_the_number_of_ps_is_not_known_one_that_comes_later_may_go() -> None:
    led = Led(ps=0, workers=0)
    led.register("ps", 0)
    led.register("worker", 0)
    led.open(0)
    led.configure()
    led.register("ps", 1)
    led.lose("ps", 1)
    led.initialise(0)
    assert phase(led) == (RUN, 1)


@pytest.mark.parametrize("ends", [END, FAILED])
def test_when_the_run_is_over_late_answers_change_nothing(ends: str) -> None:
    led = Led().gather()
    led.open(0)
    led.chief.fail_run("a reason") if ends == FAILED else led.chief.stop_run()
    led.configure()
    led.initialise(0)
    led.lose("ps", 0)
    led.register("ps", 0, process=2)
    assert phase(led) == (ends, 1) and configures(led) == [] and led.chief.members.live == {}


# -- a journal that cannot be written --------------------------------------------------------------------------------


def full(path: str, nbytes: int) -> None:
    if path.endswith("journal.json"):
        raise OSError(28, "No space left on device")


def test_no_epoch_begins_before_its_number_is_in_the_journal() -> None:
    led = Led(checkpoint_dir="run").train(0, 1)
    storage = led.desk.storage
    storage.before_write = full
    led.lose("ps", 0)
    led.register("ps", 0, process=2)
    led.open(0, incarnation=1, epoch=1)
    led.open(1, incarnation=2, epoch=1)
    led.desk.pass_time(7.0)
    assert phase(led) == (OPEN, 1) and configures(led) == []
    said = "no run epoch begins while the chief cannot write its journal: cannot write run/journal.json: No space left"
    assert led.open(0, incarnation=1, epoch=1) == Waiting(led.chief._text()) and led.chief._text().startswith(said)
    storage.before_write = None
    led.desk.pass_time(2.0)
    assert phase(led) == (CONFIGURE, 2) and [m.epoch for m in configures(led)] == [2, 2]
    state = Journal(storage, "run").load()
    assert state is not None and state.run_epoch == 2


def test_a_run_that_has_not_begun_is_told_at_once_that_its_journal_cannot_be_written() -> None:
    led = Led(checkpoint_dir="run").gather()
    led.desk.storage.before_write = full
    answer = led.open(0)
    assert isinstance(answer, CheckpointError) and "the run cannot begin: cannot write run/journal.json" in str(answer)
    assert phase(led) == (OPEN, 0) and configures(led) == []
    led.desk.storage.before_write = None
    led.open(1)
    assert phase(led) == (CONFIGURE, 1)


def test_a_session_that_has_seen_a_higher_epoch_than_the_journal_says_begins_one_above_it() -> None:
    before = Led(checkpoint_dir="run").train(0)
    led = Led(checkpoint_dir="run", storage=before.killed(), restarted=True).gather()
    led.open(0, incarnation=1, epoch=4)
    assert [m.epoch for m in configures(led)] == [5, 5]


def test_after_a_rollback_the_log_and_the_status_tell_the_checkpoint_its_age_and_what_loses_less(
    caplog: pytest.LogCaptureFixture,
) -> None:
    led = Led(checkpoint_dir="run").train(0)
    name = "step-000000000000-epoch-000001"
    led.desk.pass_time(290.0)
    assert led.chief.epochs.run is not None
    led.chief.epochs.run.step = 40
    led.register("ps", 1, process=2)
    led.open(0, epoch=1)
    led.configure()
    wanted = f"run epoch 2 starts from {name}, saved 5 min ago, at least 40 steps lost; dps.CheckpointSaver(seconds="
    assert any(wanted in text for text in caplog.messages)
    led.desk.pass_time(10.0)
    answer = led.tell(AskStatus(), "status")
    assert isinstance(answer, Stats) and (answer.values["saved"], answer.values["saved_ago"]) == (name, "5 min ago")
