"""The lock on a checkpoint_dir: one run at a time; broken when its run is gone, however that ended."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dps.checkpoint import LocalStorage, MemoryStorage, Storage
from dps.checkpoint import claim as claims
from dps.checkpoint.lock import BEAT_S, HELD, LOST, SILENT_S, LockTaken, Owner, RunLock, moment
from dps.errors import CheckpointError
from dps.process.record import as_dict, replace

FIRST = Owner("aa", "1", "box", "boot", 11, 0, "127.0.0.1:2220", moment(0.0))
SECOND = Owner("bb", "2", "box", "boot", 12, 0, "127.0.0.1:2221", moment(60.0))
ELSEWHERE = Owner("cc", "3", "far", "other boot", 11, 0, "10.0.0.3:2220", moment(3600.0))
NAMED = (
    r"run is in use by another run, whose chief is 127.0.0.1:2220 \(process 11 on box\), "
    "since 1970-01-01 00:00:00 UTC; wait for its end, stop it, or use another checkpoint_dir"
)


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest) -> Storage:
    return LocalStorage() if request.param == "local" else MemoryStorage()


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "run")


_made: list[RunLock] = []


@pytest.fixture(autouse=True)
def close_files() -> Iterator[None]:
    yield
    while _made:
        claim = _made.pop()._claim
        if claim is not None:
            claim.drop()


def held(storage: Storage, root: str, owner: Owner = FIRST, **more: Any) -> RunLock:
    lock = RunLock(storage, root, owner, **more)
    _made.append(lock)
    assert lock.acquire(0.0) and lock.state == HELD
    return lock


def content(storage: Storage, root: str) -> bytes:
    return bytes(storage.read(f"{root}/run.lock"))


# -- two runs ------------------------------------------------------------------------------------------------------


def test_a_second_run_is_refused_with_the_first_ones_name_and_changes_nothing(storage: Storage, root: str) -> None:
    held(storage, root)
    storage.write(f"{root}/journal.json", [b"{}"])
    before = content(storage, root)
    for owner in (SECOND, ELSEWHERE):
        with pytest.raises(LockTaken, match=NAMED) as caught:
            RunLock(storage, root, owner).acquire(0.0)
        assert caught.value.exit_code == 2 and "\n" not in str(caught.value)
    assert content(storage, root) == before and storage.names(root) == ["journal.json", "run.lock"]


def test_a_lock_that_was_given_back_leaves_nothing_and_is_free(storage: Storage, root: str) -> None:
    first = held(storage, root)
    first.release()
    first.release()
    assert storage.names(root) == []
    held(storage, root, ELSEWHERE)


def test_a_beat_changes_the_file_and_nothing_else_of_it(storage: Storage, root: str) -> None:
    lock = held(storage, root)
    before = content(storage, root)
    assert lock.write_heartbeat(BEAT_S) == "" and lock.write_heartbeat(2 * BEAT_S) == ""
    after = content(storage, root)
    assert before != after and len(before) == len(after)
    assert json.loads(after) == {**json.loads(before), "beat": 3} == {**as_dict(FIRST), "beat": 3}


# -- runs that are gone --------------------------------------------------------------------------------------------


def ended(storage: Storage, lock: RunLock) -> None:
    """The process of a lock's holder has ended without a word: the operating system closes its files."""
    assert lock._claim is not None
    lock._claim.drop()


def test_on_one_machine_the_lock_of_a_process_that_ended_is_taken_at_once(storage: Storage, root: str) -> None:
    ended(storage, held(storage, root))
    held(storage, root, SECOND)
    assert json.loads(content(storage, root))["process"] == "2"


def test_a_chief_whose_launcher_is_there_may_come_back_and_is_waited_for(storage: Storage, root: str) -> None:
    ended(storage, held(storage, root, replace(FIRST, keeper=77)))
    lock = RunLock(storage, root, SECOND, lives=lambda pid: pid == 77)
    assert not lock.acquire(0.0)
    again = held(storage, root, replace(FIRST, keeper=77, process="9"), restarted=True)
    with pytest.raises(LockTaken):
        lock.acquire(1.0)
    ended(storage, again)
    assert RunLock(storage, root, SECOND, lives=lambda pid: False).acquire(2.0), "its launcher is gone, too"


def test_a_restarted_chief_takes_its_runs_lock_up_again_under_its_id(storage: Storage, root: str) -> None:
    ended(storage, held(storage, root))
    again = replace(FIRST, run="new", process="9", boot="after a power failure", since=moment(99.0))
    lock = held(storage, root, again, restarted=True)
    body = json.loads(content(storage, root))
    assert (body["run"], body["process"], body["since"]) == ("aa", "9", FIRST.since)
    assert lock.write_heartbeat(3.0) == ""
    with pytest.raises(LockTaken):
        RunLock(storage, root, SECOND).acquire(0.0)


def test_a_restarted_chief_whose_lock_another_run_has_taken_meanwhile_is_refused(storage: Storage, root: str) -> None:
    ended(storage, held(storage, root))
    held(storage, root, SECOND)
    with pytest.raises(LockTaken, match="127.0.0.1:2221"):
        RunLock(storage, root, FIRST, restarted=True).acquire(0.0)


@pytest.mark.parametrize("left", [b"", b"garbage \xff", b"[1]", b'{"pid": "x"}', b"elsewhere"])
def test_what_names_nobody_of_this_machine_is_broken_when_it_did_not_change_for_a_while(
    storage: Storage, root: str, left: bytes
) -> None:
    left = json.dumps(as_dict(ELSEWHERE)).encode() if left == b"elsewhere" else left
    storage.write(f"{root}/run.lock", [left])
    lock, start = RunLock(storage, root, FIRST), 1e6  # the clock of this chief alone
    assert not lock.acquire(start) and f"within {SILENT_S:.0f} s" in lock.text
    assert not lock.acquire(start + SILENT_S - 0.1) and content(storage, root) == left
    assert lock.acquire(start + SILENT_S) and json.loads(content(storage, root))["process"] == "1"


def test_a_change_while_it_is_watched_shows_that_the_run_goes_on(storage: Storage, root: str) -> None:
    body = {**as_dict(ELSEWHERE), "beat": 7}
    storage.write(f"{root}/run.lock", [json.dumps(body).encode()])
    lock = RunLock(storage, root, FIRST)
    assert not lock.acquire(0.0)
    storage.write(f"{root}/run.lock", [json.dumps({**body, "beat": 8}).encode()])
    with pytest.raises(LockTaken, match=r"10.0.0.3:2220 \(process 11 on far\)"):
        lock.acquire(SILENT_S - 1)
    assert not lock.acquire(SILENT_S), "it is watched anew"


def test_a_lock_that_is_given_back_while_it_is_watched_is_free(storage: Storage, root: str) -> None:
    storage.write(f"{root}/run.lock", [b"?"])
    lock = RunLock(storage, root, FIRST)
    assert not lock.acquire(0.0)
    storage.remove_tree(f"{root}/run.lock")
    assert lock.acquire(1.0)


# -- file systems without locks ------------------------------------------------------------------------------------


def nowhere_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    yield MemoryStorage(locks=False)
    monkeypatch.setattr(claims, "_lock", lambda descriptor: False)
    yield LocalStorage()


def test_without_locks_of_the_file_system_the_beats_decide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for number, storage in enumerate(nowhere_kept(monkeypatch)):
        root = str(tmp_path / str(number))
        first, second = held(storage, root), RunLock(storage, root, SECOND)
        assert not second.acquire(0.0)
        first.write_heartbeat(3.0)
        with pytest.raises(LockTaken, match="127.0.0.1:2220"):
            second.acquire(4.0)
        second = RunLock(storage, root, SECOND)
        assert not second.acquire(10.0) and second.acquire(10.0 + SILENT_S), (
            "the first one was killed, or stopped for long"
        )
        assert "127.0.0.1:2221" in first.write_heartbeat(30.0) and first.state == LOST
        before = content(storage, root)
        first.release()
        assert (
            first.write_heartbeat(33.0) == ""
            and content(storage, root) == before
            and second.write_heartbeat(31.0) == ""
        )


def test_of_two_that_take_it_at_the_same_moment_one_is_told_at_its_next_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage(locks=False)
    first, second = held(storage, "run"), RunLock(storage, "run", SECOND)
    claim = storage.claim("run/run.lock")
    assert claim is not None
    claim.made = True  # both have found no file
    monkeypatch.setattr(storage, "claim", lambda path: claim)
    assert second.acquire(0.0)
    assert "127.0.0.1:2221" in first.write_heartbeat(3.0) and second.write_heartbeat(3.0) == ""


# -- files that change under a holder ------------------------------------------------------------------------------


def test_a_lock_file_that_somebody_deleted_is_made_again(storage: Storage, root: str) -> None:
    lock = held(storage, root)
    storage.remove_tree(root)
    assert lock.write_heartbeat(3.0) == ""
    with pytest.raises(LockTaken):
        RunLock(storage, root, SECOND).acquire(0.0)


def test_who_finds_another_run_in_the_file_has_lost_it_and_leaves_it_alone(storage: Storage, root: str) -> None:
    first = held(storage, root)
    storage.remove_tree(root)
    second = held(storage, root, SECOND)
    assert "another run, whose chief is 127.0.0.1:2221" in first.write_heartbeat(3.0) and first.state == LOST
    first.release()
    assert second.write_heartbeat(3.0) == "" and json.loads(content(storage, root))["process"] == "2"


def test_a_file_that_was_scribbled_over_is_written_anew(storage: Storage, root: str) -> None:
    lock = held(storage, root)
    claim = lock._claim
    assert claim is not None
    claim.write(b"garbage")
    assert lock.write_heartbeat(3.0) == "" and json.loads(content(storage, root))["beat"] == 2


def test_a_release_during_a_beat_is_made_when_the_beat_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    lock = held(storage, "run")
    claim: Any = lock._claim
    read = claim.read
    monkeypatch.setattr(claim, "read", lambda: (lock.release(), read())[1])
    assert lock.write_heartbeat(3.0) == ""
    assert storage.names("run") == []


# -- disks that refuse ---------------------------------------------------------------------------------------------


def test_on_a_full_disk_a_lock_that_is_there_is_kept_and_taken_up_and_a_new_one_is_an_error() -> None:
    full: list[bool] = []

    def before_write(path: str, nbytes: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    storage = MemoryStorage(before_write)
    lock = held(storage, "run")
    full.append(True)
    assert lock.write_heartbeat(3.0) == ""
    ended(storage, lock)
    lock = held(storage, "run", replace(FIRST, process="9"), restarted=True)
    storage.remove_tree("run")
    with pytest.raises(CheckpointError, match=r"cannot lock run/run.lock: .*ENOSPC"):
        lock.write_heartbeat(6.0)
    full.clear()
    assert lock.write_heartbeat(9.0) == "" and json.loads(content(storage, "run"))["process"] == "9"


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path, storage: Storage) -> None:
    root = str(tmp_path / "file")
    storage.write(root, [b"1"])
    with pytest.raises(CheckpointError, match="a file stands where a folder is needed"):
        RunLock(storage, root, FIRST).acquire(0.0)


@pytest.mark.timeout(10)
def test_a_fifo_in_place_of_the_lock_is_told_and_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.lock")
    with pytest.raises(CheckpointError, match="is a FIFO, wanted a regular file"):
        RunLock(LocalStorage(), str(tmp_path), FIRST).acquire(0.0)


# -- processes -----------------------------------------------------------------------------------------------------

HOLDER = """
import os, sys, time
from dps.checkpoint import LocalStorage
from dps.checkpoint.lock import Owner, RunLock
assert RunLock(LocalStorage(), sys.argv[1], Owner(*sys.argv[2:6], os.getpid(), 0, *sys.argv[6:])).acquire(0.0)
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.timeout(30)
def test_the_lock_of_a_killed_process_is_broken_and_that_of_a_stopped_one_is_not(root: str) -> None:
    arguments = [FIRST.run, FIRST.process, FIRST.host, FIRST.boot, FIRST.chief, FIRST.since]
    with subprocess.Popen([sys.executable, "-c", HOLDER, root, *arguments], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(LockTaken, match=f"process {holder.pid} on box"):
            RunLock(LocalStorage(), root, SECOND).acquire(0.0)
        holder.kill()
    held(LocalStorage(), root, SECOND)


def test_a_forked_child_does_not_keep_the_lock(root: str) -> None:
    lock = held(LocalStorage(), root)
    ready, wait = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(wait, b"1")
        signal.pause()
        os._exit(0)
    try:
        os.read(ready, 1)
        ended(LocalStorage(), lock)
        held(LocalStorage(), root, SECOND)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_two_in_one_process_exclude_each_other_and_reading_the_file_gives_nothing_free(root: str) -> None:
    storage = LocalStorage()
    held(storage, root)
    for _ in range(2):
        content(storage, root)
        with pytest.raises(LockTaken):
            RunLock(storage, root, SECOND).acquire(0.0)


def test_a_file_that_is_deleted_again_and_again_while_it_is_claimed_is_an_error(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage()
    at: Callable[[str, int], bool] = lambda path, descriptor: False  # noqa: E731
    monkeypatch.setattr(claims, "_is_at", at)
    with pytest.raises(CheckpointError, match="cannot lock"):
        storage.claim(f"{root}/run.lock")
