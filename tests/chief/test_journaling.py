"""The journal is written at each change, and again where it could not be."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dps.checkpoint import Journal, MemoryStorage
from dps.chief.checkpoint_folder import AGAIN_S, Journaling
from dps.chief.members import RunMembers
from tests.chief.desk import Desk


class Disk:
    """Full while it is told so."""

    def __init__(self) -> None:
        self.full = False
        self.storage = MemoryStorage(self._before)
        self.desk, self.members, self.told = Desk(self.storage), RunMembers(["worker:0"]), list[str]()
        node: Any = self.desk
        self.journaling = Journaling(node, self.members, lambda: self.told.append("written"))

    def _before(self, path: str, nbytes: int) -> None:
        if self.full:
            raise OSError(28, "No space left on device")

    def epoch(self) -> int:
        state = Journal(self.storage, "run").load()
        return 0 if state is None else state.run_epoch


def test_a_full_disk_is_told_once_and_tried_again_until_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    disk.full = True
    assert not disk.journaling.write("run", 3) and not disk.journaling.write("run", 3)
    disk.desk.pass_time(10 * AGAIN_S)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    for words in ("cannot write run/journal.json: No space left", "free some space there", "no new run epoch begins"):
        assert words in record.getMessage()
    disk.full = False
    disk.members.admit_session(7, "worker:0", 0, True)
    disk.desk.pass_time(AGAIN_S)
    assert disk.epoch() == 3 and disk.told == ["written"] and disk.journaling.problem == ""
    state = Journal(disk.storage, "run").load()
    assert state is not None and state.members == {"worker:0": 1}  # what has changed since is in it


def test_a_later_write_that_goes_well_is_not_undone_by_an_earlier_one() -> None:
    disk = Disk()
    disk.full = True
    disk.journaling.write("run", 3)
    disk.full = False
    assert disk.journaling.write("run", 4)
    disk.desk.pass_time(10 * AGAIN_S)
    assert disk.epoch() == 4 and disk.told == []


def test_the_last_write_of_a_run_is_not_tried_again() -> None:
    disk = Disk()
    disk.full = True
    disk.journaling.write("run", 3)
    assert not disk.journaling.write("run", 3, ended=True)
    disk.full = False
    disk.desk.pass_time(10 * AGAIN_S)
    assert disk.epoch() == 0 and disk.told == []
