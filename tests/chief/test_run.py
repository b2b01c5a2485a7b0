"""What a run is, which checkpoint it begins with, and the journal that a new chief reads."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from dps.checkpoint import Journal, Manifest, MemoryStorage, SavedPart, SavedShard, SavedVariable, commit, write_shard
from dps.chief.members import RunMembers
from dps.chief.run import RESERVED, Run, ago, read_journal, write_journal
from dps.variables.plan import VariableSpec, make_plan
from tests.variables.models import SGD

DIR = "run"
PLAN = make_plan([VariableSpec("w", (2,), "<f4", SGD)], (0,), lambda *_: 0, None)


def save(storage: MemoryStorage, step: int, epoch: int) -> str:
    part = SavedPart(0, 0, 2, 0, step)
    variable = SavedVariable("w", "float32", (2,), (part,), SGD, ())
    folder = f"{DIR}/{Manifest(step, epoch, (), (), {}).name}"
    file = write_shard(storage, folder, 0, 1, {"w": np.zeros(2, np.float32)}, {})
    manifest = Manifest(step, epoch, (SavedShard(file, step),), (variable,), {})
    commit(storage, DIR, manifest)
    return manifest.name


def begin(storage: MemoryStorage, step: int = 0, wanted: str = "", checkpoint_dir: str = DIR) -> tuple[Run, int]:
    run = Run(PLAN, {}, checkpoint_dir, "", step, wanted)
    return run, run.begin_from(storage)


def test_a_run_without_a_checkpoint_dir_or_without_checkpoints_begins_fresh() -> None:
    for run, lost in (begin(MemoryStorage(), checkpoint_dir=""), begin(MemoryStorage())):
        assert (run.restore, run.step, lost) == ("", 0, 0)


def test_it_begins_from_the_newest_and_says_how_many_steps_are_lost() -> None:
    storage = MemoryStorage()
    save(storage, 4, 1)
    newest = save(storage, 8, 1)
    run, lost = begin(storage, step=11)
    assert (run.restore, run.step, lost) == (newest, 8, 3)


def test_what_it_begins_with_is_told_with_its_age_and_with_what_loses_less() -> None:
    run, lost = begin(MemoryStorage())
    assert (run.saved_at, lost) == (0.0, 0)
    run = Run(PLAN, {}, DIR, "step-1", 8, saved_at=1000.0)
    assert run.begins(0, 1005.4) == "step-1, saved 5 s ago"
    cure = "dps.CheckpointSaver(seconds=...) among a session's hooks sets how often checkpoints are saved"
    assert run.begins(3, 1599.0) == f"step-1, saved 10 min ago, at least 3 steps lost; {cure}"
    run.saved_at = 0.0  # written by an older version
    assert run.begins(3, 1599.0) == f"step-1, at least 3 steps lost; {cure}"
    assert [ago(s) for s in (-3.0, 119.0, 3000.0, 90000.0)] == ["0 s ago", "119 s ago", "50 min ago", "25 h ago"]


def test_a_checkpoint_that_a_session_asked_for_is_taken_once() -> None:
    storage = MemoryStorage()
    older, newest = save(storage, 4, 1), save(storage, 8, 1)
    run, _ = begin(storage, wanted=older)
    assert (run.restore, run.step) == (older, 4)
    run.begin_from(storage)
    assert run.restore == newest


def test_one_that_is_gone_when_its_turn_comes_is_replaced_by_the_newest(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    newest = save(storage, 8, 1)
    run, _ = begin(storage, wanted="step-000000000099-epoch-000001")
    assert run.restore == newest
    assert any("step-000000000099" in r.message for r in caplog.records if r.levelno == logging.ERROR)


def test_a_new_chief_knows_epoch_incarnations_and_who_has_finished() -> None:
    storage, before = MemoryStorage(), RunMembers(["worker:0", "worker:1"])
    first = before.admit_session(1, "worker:0", 0, True)
    before.admit_session(2, "worker:1", 1, True)
    before.end_incarnation(first, lost=False)
    write_journal(storage, DIR, 5, before, ended=False)
    state = Journal(storage, DIR).load()
    assert state is not None
    assert (state.run_epoch, state.ended, state.members) == (5, ((1, 1),), {"worker:1": 2})
    after = RunMembers(["worker:0", "worker:1"])
    assert read_journal(storage, DIR, after) == 5
    assert after.next_incarnation == 3 + RESERVED and after.finished == ["worker:0"] and after.waiting() == ["worker:1"]


def test_a_new_chief_knows_which_workers_have_come() -> None:
    storage, before = MemoryStorage(), RunMembers(["worker:0", "worker:1", "worker:2"])
    before.end_incarnation(before.admit_session(1, "worker:0", 0, True), lost=True)
    before.mark_come("worker:1")
    write_journal(storage, DIR, 5, before, ended=False)
    after = RunMembers(["worker:0", "worker:1", "worker:2"])
    read_journal(storage, DIR, after)
    for name in after.waiting():
        after.give_up(name)
    assert (after.gone(), after.absent()) == (2, ["worker:2"])


def test_who_was_given_up_is_not_waited_for_again_and_who_took_part_is_known() -> None:
    storage, before = MemoryStorage(), RunMembers()
    for task in range(3):
        before.admit_session(task, f"worker:{task}", task, True)
    before.give_up("worker:1")
    write_journal(storage, DIR, 5, before, ended=False)
    expected, unknown = RunMembers([f"worker:{task}" for task in range(3)]), RunMembers()
    for after in (expected, unknown):
        read_journal(storage, DIR, after)
        assert after.waiting() == ["worker:0", "worker:2"]
    assert expected.given_up == ["worker:1"]


def test_another_run_takes_only_the_numbers_of_one_that_crashed() -> None:
    storage, before = MemoryStorage(), RunMembers(["worker:0", "worker:1"])
    before.end_incarnation(before.admit_session(1, "worker:0", 0, True), lost=False)
    before.give_up("worker:1")
    write_journal(storage, DIR, 5, before, ended=False)
    after = RunMembers(["worker:0", "worker:1"])
    assert read_journal(storage, DIR, after, same_run=False) == 5
    assert after.next_incarnation == 2 + RESERVED and after.waiting() == ["worker:0", "worker:1"]


def test_of_a_run_that_ended_only_the_numbers_are_kept() -> None:
    storage, before = MemoryStorage(), RunMembers(["worker:0"])
    before.end_incarnation(before.admit_session(1, "worker:0", 0, True), lost=False)
    write_journal(storage, DIR, 2, before, ended=True)
    after = RunMembers(["worker:0"])
    assert read_journal(storage, DIR, after) == 2
    assert after.next_incarnation == 2 + RESERVED and after.waiting() == ["worker:0"]


def test_ended_incarnations_are_written_as_spans() -> None:
    storage, members = MemoryStorage(), RunMembers()
    numbers = [members.admit_session(i, f"worker:{i}", i, True) for i in range(6)]
    for number in (numbers[0], numbers[1], numbers[4]):
        members.end_incarnation(number, lost=True)
    write_journal(storage, DIR, 1, members, ended=False)
    state = Journal(storage, DIR).load()
    assert state is not None and state.ended == ((1, 2), (5, 5))


def test_the_highest_epoch_that_any_checkpoint_names_is_never_used_again() -> None:
    storage = MemoryStorage()
    save(storage, 4, 7)
    assert read_journal(storage, DIR, RunMembers()) == 7
    write_journal(storage, DIR, 9, RunMembers(), ended=True)
    assert read_journal(storage, DIR, RunMembers()) == 9
    assert read_journal(MemoryStorage(), DIR, RunMembers()) == 0


def test_the_settings_of_a_run_are_data() -> None:
    settings: dict[str, Any] = {"update": {"mode": "async"}}
    assert Run(PLAN, settings, DIR).settings is settings


def test_what_the_journal_knows_of_ends_counts_where_the_ps_were_told_less() -> None:
    storage, before = MemoryStorage(), RunMembers(["worker:0", "worker:1", "worker:2", "worker:3"])
    for name in ("worker:0", "worker:1", "worker:2"):
        before.admit_session(int(name[-1]), name, int(name[-1]), worker=True)
    told = before.notes()
    before.end_incarnation(1, lost=False)
    before.end_incarnation(2, lost=True)
    before.give_up("worker:3")
    write_journal(storage, DIR, 1, before, ended=False)

    after = RunMembers(before.expected)
    read_journal(storage, DIR, after)
    after.take_over_notes(told)
    assert list(after.live) == [3] and after.waiting() == []
    assert (after.finished, after.given_up) == (["worker:0"], ["worker:1", "worker:3"])


def test_what_the_ps_were_told_counts_where_the_journal_could_not_be_written() -> None:
    storage, before = MemoryStorage(), RunMembers(["worker:0", "worker:1", "worker:2"])
    before.end_incarnation(before.admit_session(0, "worker:0", 0, worker=True), lost=False)
    before.end_incarnation(before.admit_session(1, "worker:1", 1, worker=True), lost=True)
    before.give_up("worker:2")
    write_journal(storage, DIR, 1, before, ended=False)
    for task in (0, 1):
        before.admit_session(task, f"worker:{task}", task, worker=True)
    before.mark_come("worker:2")

    after = RunMembers(before.expected)
    read_journal(storage, DIR, after)
    after.take_over_notes(before.notes())
    assert list(after.live) == [3, 4] and after.waiting() == ["worker:2"]
    assert (after.finished, after.given_up) == ([], [])


def test_variables_of_a_checkpoint_that_the_program_does_not_have_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """A larger model was restored into a smaller one without a word."""
    storage, epoch = MemoryStorage(), 1
    names = ["w", *(f"layers/{n}" for n in range(6))]
    variables = tuple(SavedVariable(name, "float32", (2,), (SavedPart(0, 0, 2, 0, 4),), SGD, ()) for name in names)
    folder = f"{DIR}/{Manifest(4, epoch, (), (), {}).name}"
    file = write_shard(storage, folder, 0, 1, {name: np.zeros(2, np.float32) for name in names}, {})
    commit(storage, DIR, Manifest(4, epoch, (SavedShard(file, 4),), variables, {}))
    begin(storage)
    (said,) = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert said == (
        f"6 of the 7 variables in {folder} are not restored: this program does not have "
        "layers/0, layers/1, layers/2, layers/3, layers/4, ..."
    )


def test_a_checkpoint_whose_variables_all_have_a_place_is_restored_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = MemoryStorage()
    save(storage, 4, 1)
    begin(storage)
    assert not caplog.records
