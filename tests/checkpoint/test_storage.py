from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dps.checkpoint import LocalStorage, MemoryStorage, Storage
from dps.errors import CheckpointError
from tests.checkpoint.damage import corrupt, truncate


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest) -> Storage:
    return LocalStorage() if request.param == "local" else MemoryStorage()


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "run")


def broken_off() -> Iterator[bytes]:
    yield b"half of it"
    raise KeyboardInterrupt


def test_chunks_are_stored_one_after_another(storage: Storage, root: str) -> None:
    numbers = np.array([1, 2, 3], dtype="<u2")
    assert storage.write(f"{root}/deep/er/file", [b"ab", numbers.data, b""]) == 8
    assert bytes(storage.read(f"{root}/deep/er/file")) == b"ab\x01\x00\x02\x00\x03\x00"
    assert storage.size(f"{root}/deep/er/file") == 8


def test_an_empty_file_can_be_written_and_read(storage: Storage, root: str) -> None:
    assert storage.write(f"{root}/file", []) == 0
    assert bytes(storage.read(f"{root}/file")) == b""
    assert storage.exists(f"{root}/file")


def test_a_second_write_replaces_the_first_and_leaves_nothing_beside_it(storage: Storage, root: str) -> None:
    storage.write(f"{root}/file", [b"first, and longer"])
    storage.write(f"{root}/file", [b"second"])
    assert bytes(storage.read(f"{root}/file")) == b"second"
    assert storage.names(root) == ["file"]


def test_a_write_that_is_broken_off_leaves_the_old_file_and_nothing_else(storage: Storage, root: str) -> None:
    storage.write(f"{root}/file", [b"old"])
    with pytest.raises(KeyboardInterrupt):
        storage.write(f"{root}/file", broken_off())
    with pytest.raises(KeyboardInterrupt):
        storage.write(f"{root}/new", broken_off())
    assert storage.names(root) == ["file"]
    assert bytes(storage.read(f"{root}/file")) == b"old"


def test_a_range_is_exactly_the_bytes_that_were_asked_for(storage: Storage, root: str) -> None:
    storage.write(f"{root}/file", [b"0123456789"])
    assert bytes(storage.read_range(f"{root}/file", 3, 4)) == b"3456"
    assert bytes(storage.read_range(f"{root}/file", 10, 0)) == b""


def test_a_range_beyond_the_end_says_that_the_file_is_cut_short(storage: Storage, root: str) -> None:
    storage.write(f"{root}/file", [b"0123456789"])
    with pytest.raises(CheckpointError, match="file is cut short: 3 bytes from 8 were wanted, it has 10"):
        storage.read_range(f"{root}/file", 8, 3)
    with pytest.raises(ValueError, match="got -1 and 3"):
        storage.read_range(f"{root}/file", -1, 3)


def test_names_are_sorted_and_of_one_folder_only(storage: Storage, root: str) -> None:
    for path in ["b/x", "a", "b/y", "c/d/e"]:
        storage.write(f"{root}/{path}", [b"1"])
    assert storage.names(root) == ["a", "b", "c"]
    assert storage.names(f"{root}/b") == ["x", "y"]
    assert storage.names(f"{root}/none") == []


def test_files_and_folders_exist_until_they_are_removed(storage: Storage, root: str) -> None:
    for path in ["a/x", "a/b/y", "ab/z"]:
        storage.write(f"{root}/{path}", [b"1"])
    assert storage.exists(f"{root}/a") and storage.exists(f"{root}/a/x") and not storage.exists(f"{root}/a/q")
    storage.remove_tree(f"{root}/a")
    storage.remove_tree(f"{root}/a")
    assert not storage.exists(f"{root}/a")
    storage.remove_tree(f"{root}/ab/z")
    assert storage.names(f"{root}/ab") == []


def test_a_missing_file_is_an_error_that_names_it(storage: Storage, root: str) -> None:
    for read in (storage.read, storage.size):
        with pytest.raises(CheckpointError, match=r"cannot read .*gone: .*\(ENOENT\); look whether"):
            read(f"{root}/gone")


def test_a_file_where_a_folder_is_needed_is_told_by_every_call(storage: Storage, root: str) -> None:
    storage.write(f"{root}/file", [b"1"])
    with pytest.raises(CheckpointError, match=r"write .*file/x: .*a file stands where a folder is needed"):
        storage.write(f"{root}/file/x", [b"1"])
    with pytest.raises(CheckpointError, match=r"cannot write checkpoints to .*file: .*choose another checkpoint_dir"):
        storage.check_writable(f"{root}/file")
    with pytest.raises(CheckpointError, match=r"cannot list .*ENOTDIR"):
        storage.names(f"{root}/file")
    assert not storage.exists(f"{root}/file/x")


def test_a_folder_where_a_file_is_needed_is_refused_and_nothing_is_left(storage: Storage, root: str) -> None:
    storage.write(f"{root}/folder/x", [b"1"])
    with pytest.raises(CheckpointError, match="a folder stands where a file is needed"):
        storage.write(f"{root}/folder", [b"1"])
    assert storage.names(root) == ["folder"]


def test_a_writable_folder_passes_and_stays_empty(storage: Storage, root: str) -> None:
    storage.check_writable(root)
    assert storage.names(root) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_told_with_what_to_try(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match=r"\(EACCES\); give this user the right"):
            LocalStorage().check_writable(str(tmp_path))
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_local_disk_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_to_a_full_device(descriptor: int) -> None:
        with open("/dev/full", "wb") as full:
            full.write(b"x")

    monkeypatch.setattr(os, "fsync", write_to_a_full_device)
    with pytest.raises(CheckpointError, match=r"cannot write .*file: No space left on device \(ENOSPC\); free some"):
        LocalStorage().write(str(tmp_path / "file"), [b"data"])
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_file_that_a_killed_process_left_is_not_in_the_way(tmp_path: Path) -> None:
    left = tmp_path / f".file.{os.getpid()}-0.tmp"
    left.write_bytes(b"left")
    LocalStorage().write(str(tmp_path / "file"), [b"data"])
    assert (tmp_path / "file").read_bytes() == b"data"
    assert left.read_bytes() == b"left"


def test_a_relative_path_without_a_folder_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = LocalStorage()
    storage.write("file", [b"1"])
    storage.check_writable("run")
    assert storage.names(".") == ["file", "run"]


def test_removing_a_link_keeps_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    LocalStorage().remove_tree(str(tmp_path / "link"))
    assert LocalStorage().names(str(tmp_path)) == ["kept"]
    assert LocalStorage().names(str(tmp_path / "kept")) == ["file"]


def test_the_simulated_disk_calls_its_hook_before_a_write_shows() -> None:
    seen: list[tuple[str, int, bool]] = []
    storage = MemoryStorage()
    storage.before_write = lambda path, nbytes: seen.append((path, nbytes, storage.exists(path)))
    storage.write("run/a", [b"12", b"345"])
    assert seen == [("run/a", 5, False)]
    assert bytes(storage.read("run/a")) == b"12345"


def test_a_full_simulated_disk_reads_like_a_real_one_and_keeps_the_old_file() -> None:
    def full(path: str, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    storage = MemoryStorage()
    storage.write("run/a", [b"old"])
    storage.before_write = full
    with pytest.raises(CheckpointError, match=r"cannot write run/a: No space left on device \(ENOSPC\); free some"):
        storage.write("run/a", [b"new"])
    with pytest.raises(CheckpointError, match="ENOSPC"):
        storage.check_writable("run")
    assert bytes(storage.read("run/a")) == b"old"


def test_a_task_killed_while_its_write_waits_leaves_the_simulated_disk_unchanged() -> None:
    class Killed(BaseException):
        pass

    def kill(path: str, nbytes: int) -> None:
        raise Killed

    storage = MemoryStorage(before_write=kill)
    with pytest.raises(Killed):
        storage.write("run/a", [b"new"])
    assert storage.names("run") == []


def test_the_simulated_disk_can_lose_and_turn_over_bytes() -> None:
    storage = MemoryStorage()
    storage.write("a", [b"\x00\x01\x02\x03"])
    corrupt(storage, "a", 1)
    truncate(storage, "a", 3)
    assert bytes(storage.read("a")) == b"\x00\xfe\x02"


# -- files that grow ------------------------------------------------------------------------------------------------


def test_appending_makes_the_file_and_its_folder_and_then_adds_to_it(storage: Storage, root: str) -> None:
    storage.append(f"{root}/logs/a", b"one\n")
    storage.append(f"{root}/logs/a", b"two\n")
    storage.append(f"{root}/logs/a", b"")
    assert bytes(storage.read(f"{root}/logs/a")) == b"one\ntwo\n"
    assert storage.names(f"{root}/logs") == ["a"]


def test_appending_where_that_is_not_possible_says_so(storage: Storage, root: str) -> None:
    storage.write(f"{root}/file", [b"x"])
    for path in (f"{root}/file/log", root):
        with pytest.raises(CheckpointError, match=r"cannot append to .*directory"):
            storage.append(path, b"row")
    assert bytes(storage.read(f"{root}/file")) == b"x"


def test_a_row_for_which_there_is_only_half_the_room_leaves_the_file_as_it_was(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage()
    storage.append(f"{root}/log", b"first\n")
    whole = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: whole(descriptor, data[: len(data) // 2]))
    with pytest.raises(CheckpointError, match="only 3 of 7 bytes"):
        storage.append(f"{root}/log", b"second\n")
    monkeypatch.undo()
    assert bytes(storage.read(f"{root}/log")) == b"first\n"


# -- what is no regular file ---------------------------------------------------------------------------------------


@pytest.mark.timeout(10)
@pytest.mark.parametrize("linked", [False, True], ids=["itself", "a link to it"])
@pytest.mark.parametrize("kind", ["a FIFO", "a socket", "a character device"])
def test_what_is_no_regular_file_is_told_and_blocks_nobody(tmp_path: Path, kind: str, linked: bool) -> None:
    storage, path = LocalStorage(), str(tmp_path / "file")
    if kind == "a character device":
        path = "/dev/zero"
    elif kind == "a FIFO":
        os.mkfifo(path)
    else:
        os.mknod(path, stat.S_IFSOCK | 0o600)
    if linked:
        os.symlink(path, tmp_path / "link")
        path = str(tmp_path / "link")
    calls: list[Callable[[], object]] = [
        lambda: storage.read(path), lambda: storage.size(path), lambda: storage.read_range(path, 0, 1),
    ]  # fmt: skip
    if kind != "a character device":
        calls.append(lambda: storage.append(path, b"1"))
    kind = "a symbolic link" if linked else kind
    for call in calls:
        with pytest.raises(
            CheckpointError,
            match=rf"{path}.*(is {kind}, wanted a|E(NXIO|LOOP)\); wanted a) regular file[;:] (move|no symbolic)",
        ):
            call()


def test_a_folder_in_place_of_a_file_is_told_as_one(tmp_path: Path) -> None:
    for call in (LocalStorage().read, LocalStorage().size):
        with pytest.raises(CheckpointError, match=r"EISDIR\); a folder stands where a file is needed"):
            call(str(tmp_path))


@pytest.mark.timeout(10)
def test_a_fifo_in_place_of_a_written_file_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(path := str(tmp_path / "file"))
    LocalStorage().write(path, [b"new"])
    assert bytes(LocalStorage().read(path)) == b"new"
