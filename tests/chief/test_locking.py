"""The chief and the lock on its checkpoint_dir: refused, waiting, taken up again, lost to another run."""

from __future__ import annotations

import errno
import json
import logging
import os
from typing import Any

import pytest

from dps.actors.answers import Waiting
from dps.checkpoint import MemoryStorage
from dps.checkpoint.lock import BEAT_S, SILENT_S, LockTaken
from dps.errors import CheckpointError
from dps.messages.runs import CONFIGURE, FAILED, OPEN, RUN
from dps.transport.endpoint import ProcessLocation
from tests.chief.led import Led

LOCK = "run/run.lock"


def led(storage: Any = None, incarnation: int = 1, boot: str = "boot", **chief: Any) -> Led:
    made = Led(checkpoint_dir="run", storage=storage, **chief)
    made.desk.incarnation, made.desk.place = incarnation, ProcessLocation("box", boot, incarnation)
    return made


def phase(led: Led) -> tuple[str, int]:
    return led.chief.epochs.phase, led.chief.epochs.number


def files(led: Led) -> dict[str, bytes]:
    return dict(led.desk.storage._files)


def holder(led: Led) -> str:
    return str(json.loads(led.desk.storage.read(LOCK))["process"])


def test_a_second_run_is_refused_in_every_session_and_touches_nothing() -> None:
    first = led().train(0)
    second = led(first.desk.storage, 2).gather()
    before = files(first)
    for session in (0, 1):
        answer = second.open(session)
        assert isinstance(answer, LockTaken) and "another run, whose chief is 127.0.0.1:1 (process 1 on box)" in str(
            answer
        )
    assert phase(second) == (OPEN, 0) and second.ended == [] and files(first) == before
    first.chief.stop_run()
    second.open(0)
    assert phase(second) == (CONFIGURE, 2)


def test_the_end_of_a_run_gives_the_lock_back() -> None:
    for end in ("stop_run", "stopping", "fail"):
        run = led().train(0)
        assert LOCK in files(run)
        run.chief.fail_run("a reason") if end == "fail" else getattr(run.chief, end)()
        assert LOCK not in files(run)
        run.desk.pass_time(20.0)
        assert LOCK not in files(run)


def test_a_run_that_was_refused_gives_the_lock_back_to_whoever_wants_something_else() -> None:
    run = led().gather()
    run.open(0)
    run.desk.questions[0].answer(CheckpointError("no"))
    assert phase(run) == (OPEN, 1) and LOCK not in files(run)


def test_a_session_that_is_refused_after_the_lock_was_taken_leaves_none() -> None:
    storage = MemoryStorage()
    storage.write("run/journal.json", [b"no journal"])
    run = led(storage).gather()
    assert isinstance(run.open(0), CheckpointError)
    assert phase(run) == (OPEN, 0) and list(files(run)) == ["run/journal.json"]


def test_a_lock_from_elsewhere_is_not_waited_for_any_longer_once_the_session_that_wanted_it_is_gone() -> None:
    storage = led().train(0).killed()
    second = led(storage, 2, boot="another machine").gather()
    second.open(0)
    second.lose("worker", 0)
    second.desk.pass_time(2.0)
    assert "run.lock" not in second.chief.epochs.text()
    second.desk.pass_time(2 * SILENT_S)
    assert holder(second) == "1"


def test_a_lock_from_elsewhere_is_waited_for_and_broken_when_nobody_writes_to_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = led().train(0).killed()
    second = led(storage, 2, boot="another machine").gather()
    with caplog.at_level(logging.WARNING):
        answer = second.open(0)
    wanted = "run/run.lock is the lock of another run, whose chief is 127.0.0.1:1 (process 1 on box), since "
    assert isinstance(answer, Waiting) and wanted in answer.reason
    assert [wanted in text for text in caplog.messages] == [True]
    second.open(1)
    second.desk.pass_time(SILENT_S - 1)
    assert phase(second) == (OPEN, 0) and holder(second) == "1"
    second.desk.pass_time(1.5)
    assert phase(second) == (CONFIGURE, 2) and holder(second) == "2"


def test_a_lock_from_elsewhere_that_changes_while_it_is_waited_for_refuses_the_sessions() -> None:
    first = led().train(0)
    storage = first.killed()
    second = led(storage, 2, boot="another machine").gather()
    second.open(0)
    second.desk.pass_time(5.0)
    first.desk.pass_time(BEAT_S)
    second.desk.pass_time(1.5)
    assert isinstance(second.answered(0), LockTaken) and holder(second) == "1" and phase(second) == (OPEN, 0)


def test_a_restarted_chief_waits_for_a_lock_from_elsewhere_where_nobody_trains_meanwhile() -> None:
    storage = led().train(0).killed()
    again = led(storage, 2, boot="another machine", restarted=True).gather()
    again.desk.address = "127.0.0.1:3"
    before = dict(storage._files)
    assert isinstance(again.open(0), Waiting) and phase(again) == (OPEN, 0) and files(again) == before
    again.desk.pass_time(SILENT_S + 1.0)
    assert phase(again) == (CONFIGURE, 2) and holder(again) == "2"


def test_a_restarted_chief_takes_its_lock_up_again_also_on_a_full_disk() -> None:
    full: list[bool] = []

    def before_write(path: str, nbytes: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    first = led(MemoryStorage(before_write)).train(0)
    storage = first.killed()
    full.append(True)
    again = led(storage, 2, boot="started again", restarted=True).gather()
    again.open(0, epoch=1)
    body = json.loads(storage.read(LOCK))
    assert (body["run"], body["process"]) == ("1", "2")
    full.clear()
    again.desk.pass_time(BEAT_S)  # now the journal can be written, too
    assert phase(again) == (CONFIGURE, 2) and holder(again) == "2"


def test_a_restarted_chief_without_room_for_a_lock_goes_on_and_takes_it_when_there_is_some(
    caplog: pytest.LogCaptureFixture,
) -> None:
    full: list[bool] = []

    def before_write(path: str, nbytes: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    storage = led(MemoryStorage(before_write)).train(0).killed()
    storage.remove_tree(LOCK)
    full.append(True)
    again = led(storage, 2, restarted=True).gather()
    again.open(0, epoch=1)
    again.desk.pass_time(10.0)
    assert again.ended == [] and LOCK not in files(again)
    assert sum("lock of" in text for text in caplog.messages) == 1
    full.clear()
    again.desk.pass_time(BEAT_S)
    assert phase(again) == (CONFIGURE, 2) and holder(again) == "2"


def test_a_restarted_chief_whose_directory_another_run_has_taken_is_refused() -> None:
    storage = led().train(0).killed()
    other = led(storage, 3).gather()
    other.desk.address = "127.0.0.1:3"
    other.open(0)
    again = led(storage, 2, restarted=True).gather()
    before = files(other)
    assert isinstance(again.open(0, epoch=1), LockTaken) and files(other) == before


def test_a_run_whose_lock_another_one_has_broken_fails_and_writes_nothing_more() -> None:
    first = led().train(0)
    second = led(first.killed(), 2, boot="boot").gather()
    second.desk.address = "127.0.0.1:3"
    second.open(0)
    before = files(second)
    first.desk.pass_time(BEAT_S)
    assert phase(first) == (FAILED, 1) and files(second) == before
    reason = first.chief.ending.reason
    assert "another run has taken" in reason and "127.0.0.1:3 (process 2 on box)" in reason
    assert phase(second) == (CONFIGURE, 2)


def test_a_beat_that_fails_is_one_line_and_the_run_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = led().train(0)

    def refuse(self: object) -> bytes:
        raise CheckpointError("cannot read run/run.lock: Input/output error (EIO)")

    with monkeypatch.context() as patched:
        patched.setattr("dps.checkpoint.memory.MemoryClaim.read", refuse)
        run.desk.pass_time(4 * BEAT_S)
    assert phase(run) == (RUN, 1) and sum("EIO" in text for text in caplog.messages) == 1
    beats = json.loads(run.desk.storage.read(LOCK))["beat"]
    run.desk.pass_time(BEAT_S)
    assert json.loads(run.desk.storage.read(LOCK))["beat"] == beats + 1
