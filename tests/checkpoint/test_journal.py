from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from dps.checkpoint import Journal, JournalState, LocalStorage, MemoryStorage
from dps.checkpoint.files import seal
from dps.errors import CheckpointError
from dps.process.record import replace
from tests.checkpoint.damage import corrupt, truncate

STATE = JournalState(
    run_epoch=3,
    next_incarnation=12,
    ended=((1, 4), (7, 7)),
    members={"worker:0": 9, "ps:1": 11},
    finished=("worker:2",),
    settings={"update": {"mode": "sync", "replicas": 4}},
    given_up=("worker:3",),
)


def test_before_the_first_run_there_is_no_journal(tmp_path: Path) -> None:
    assert Journal(LocalStorage(), str(tmp_path / "run")).load() is None


def test_a_journal_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    Journal(LocalStorage(), str(tmp_path / "run")).save(STATE)
    assert Journal(LocalStorage(), str(tmp_path / "run")).load() == STATE
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["journal.json"]


def test_a_journal_that_does_not_say_who_was_given_up_is_read_all_the_same() -> None:
    storage = MemoryStorage()
    Journal(storage, "run").save(STATE)
    body = json.loads(bytes(storage.read("run/journal.json")))
    del body["given_up"]
    storage.write("run/journal.json", [seal({key: value for key, value in body.items() if key != "checksum"})])
    assert Journal(storage, "run").load() == replace(STATE, given_up=())


def test_the_last_save_counts() -> None:
    journal = Journal(MemoryStorage(), "run")
    journal.save(JournalState())
    assert journal.load() == JournalState()
    journal.save(STATE)
    assert journal.load() == STATE


def test_a_journal_damaged_anywhere_is_refused_with_what_to_try() -> None:
    storage = MemoryStorage()
    journal = Journal(storage, "run")
    journal.save(STATE)
    size = storage.size("run/journal.json")
    for offset in [0, size // 2, size - 1]:
        journal.save(STATE)
        corrupt(storage, "run/journal.json", offset)
        with pytest.raises(CheckpointError, match=r"altered.*stop every task of the earlier run and then delete it"):
            journal.load()
        journal.save(STATE)
        truncate(storage, "run/journal.json", offset)
        with pytest.raises(CheckpointError, match=r"truncated.*put back a copy"):
            journal.load()


@pytest.mark.parametrize(
    "body",
    [
        {"format_version": 1},
        {"format_version": 1, "run_epoch": "3", "next_incarnation": 1, "ended": [], "members": {}, "finished": [],
         "settings": {}},
        {"format_version": 1, "run_epoch": 3, "next_incarnation": 1, "ended": [[4, 2]], "members": {}, "finished": [],
         "settings": {}},
        {"format_version": 1, "run_epoch": 3, "next_incarnation": 1, "ended": [], "members": [7], "finished": [],
         "settings": {}},
    ],
)  # fmt: skip
def test_a_sealed_document_that_is_no_journal_is_refused(body: dict[str, object]) -> None:
    storage = MemoryStorage()
    storage.write("run/journal.json", [seal(body)])
    with pytest.raises(CheckpointError, match="is not a journal"):
        Journal(storage, "run").load()


def test_a_journal_of_a_newer_dps_is_refused() -> None:
    storage = MemoryStorage()
    storage.write("run/journal.json", [seal({"format_version": 2})])
    with pytest.raises(CheckpointError, match="of a newer dps"):
        Journal(storage, "run").load()


def test_a_full_disk_keeps_the_journal_that_was_there() -> None:
    def full(path: str, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    storage = MemoryStorage()
    journal = Journal(storage, "run")
    journal.save(STATE)
    storage.before_write = full
    with pytest.raises(CheckpointError, match="ENOSPC"):
        journal.save(JournalState(run_epoch=4))
    assert journal.load() == STATE


def test_exactly_the_incarnations_in_the_ranges_have_ended() -> None:
    state = JournalState(ended=((1, 1), (3, 5)))
    assert [n for n in range(8) if state.has_ended(n)] == [1, 3, 4, 5]


@pytest.mark.parametrize("ended", [((2, 1),), ((1, 2), (3, 4)), ((5, 6), (1, 2)), ((-1, 2),)])
def test_ranges_out_of_order_are_a_value_error(ended: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError):
        JournalState(ended=ended)
