from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dps.checkpoint import (
    Journal,
    JournalState,
    LocalStorage,
    MemoryStorage,
    candidates,
    commit,
    folder_name,
    load,
    newest_whole,
    retain,
)
from dps.checkpoint.files import seal, unseal
from dps.errors import CheckpointError
from tests.checkpoint.damage import corrupt, truncate

from .model import read_back, save, small_model, write_unfinished

NAME = "step-000000000120-epoch-000003"
SHARD = f"run/{NAME}/shard-00001-of-00002.safetensors"
MANIFEST = f"run/{NAME}/manifest.json"


def unfinished(storage: MemoryStorage, step: int, epoch: int) -> str:
    return write_unfinished(storage, "run", small_model(), {}, 1, step, epoch).name


def test_a_committed_checkpoint_loads_as_it_was_saved(tmp_path: Path) -> None:
    storage, directory = LocalStorage(), str(tmp_path)
    manifest = save(storage, directory)
    assert load(storage, directory, NAME) == manifest
    table = read_back(storage, directory, manifest)["table"]
    np.testing.assert_array_equal(table[None], small_model()["table"][None])
    assert sorted(path.name for path in (tmp_path / NAME).iterdir()) == [
        "manifest.json",
        "shard-00000-of-00002.safetensors",
        "shard-00001-of-00002.safetensors",
    ]


def test_a_checkpoint_counts_only_once_it_is_committed() -> None:
    storage = MemoryStorage()
    manifest = write_unfinished(storage, "run", small_model(), {"table": (4, 3)}, 2)
    log: list[str] = []
    assert newest_whole(storage, "run", log.append) is None
    assert len(log) == 1 and "never finished" in log[0]
    assert commit(storage, "run", manifest) == NAME
    assert newest_whole(storage, "run", log.append) == manifest


def test_a_name_of_no_checkpoint_is_told_with_the_newest_there_are() -> None:
    """It was said to be a checkpoint that was never finished."""
    storage = MemoryStorage()
    with pytest.raises(CheckpointError, match="there is no checkpoint 'x' in run; it has none"):
        load(storage, "run", "x")
    names = [save(storage, "run", step=step).name for step in range(1, 12)]
    with pytest.raises(CheckpointError, match=f"there are {', '.join(names[:0:-1])}, ...: give one of these"):
        load(storage, "run", "x")


def test_committing_twice_is_harmless_but_another_manifest_is_refused() -> None:
    storage = MemoryStorage()
    manifest = save(storage, "run")
    assert commit(storage, "run", manifest) == NAME
    assert commit(storage, "run", replace(manifest, saved_at=5.0)) == NAME  # tried again, later
    with pytest.raises(CheckpointError, match="there already, with other content; save at a later step"):
        commit(storage, "run", replace(manifest, settings={"update": "sync"}))
    assert load(storage, "run", NAME) == manifest


def test_a_shard_that_the_chief_does_not_see_is_not_committed() -> None:
    storage = MemoryStorage()
    manifest = write_unfinished(storage, "run", small_model(), {"table": (4, 3)}, 2)
    storage.remove_tree(SHARD)
    with pytest.raises(CheckpointError, match=r"shard 1 .*missing; checkpoint_dir has to be one folder"):
        commit(storage, "run", manifest)
    assert not storage.exists(MANIFEST)


def test_a_disk_that_fills_up_at_the_manifest_leaves_the_checkpoint_unfinished() -> None:
    def full(path: str, nbytes: int) -> None:
        if path.endswith("manifest.json"):
            raise OSError(errno.ENOSPC, "No space left on device")

    storage = MemoryStorage()
    older = save(storage, "run", step=100)
    storage.before_write = full
    with pytest.raises(CheckpointError, match=r"manifest.json: No space left on device \(ENOSPC\)"):
        save(storage, "run")
    assert newest_whole(storage, "run", lambda line: None) == older


def test_a_disk_that_fills_up_at_a_shard_leaves_no_shard() -> None:
    def full(path: str, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    storage = MemoryStorage(before_write=full)
    with pytest.raises(CheckpointError, match=r"shard-00000-of-00002\.safetensors: No space left"):
        save(storage, "run")
    assert storage.names("run") == []


def test_a_checkpoint_dir_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(b"")
    with pytest.raises(CheckpointError, match="a file stands where a folder is needed"):
        save(LocalStorage(), str(tmp_path / "run"))


def test_the_highest_epoch_is_the_newest_even_at_a_lower_step() -> None:
    storage = MemoryStorage()
    for step, epoch in [(300, 1), (90, 2), (200, 1), (100, 2)]:
        save(storage, "run", step, epoch)
    assert candidates(storage, "run") == [folder_name(*key) for key in [(100, 2), (90, 2), (300, 1), (200, 1)]]
    newest = newest_whole(storage, "run", lambda line: None)
    assert newest is not None and (newest.step, newest.epoch) == (100, 2)


def test_foreign_files_are_no_candidates() -> None:
    storage = MemoryStorage()
    save(storage, "run")
    for name in ["journal.json", "notes.txt", f"{NAME}.bak", "step-1-epoch-1/manifest.json"]:
        storage.write(f"run/{name}", [b"x"])
    assert candidates(storage, "run") == [NAME]
    assert candidates(storage, "nowhere") == []


def test_without_checkpoints_there_is_no_newest() -> None:
    assert newest_whole(MemoryStorage(), "run", lambda line: None) is None


@pytest.mark.parametrize("path", [SHARD, MANIFEST])
def test_a_file_cut_at_any_length_is_skipped_for_the_older_checkpoint(path: str) -> None:
    pristine = MemoryStorage()
    older = save(pristine, "run", step=100, seed=1)
    save(pristine, "run")
    data = bytes(pristine.read(path))
    for n in range(0, len(data), 7):
        pristine.write(path, [data[:n]])
        log: list[str] = []
        assert newest_whole(pristine, "run", log.append) == older
        assert len(log) == 1 and log[0].startswith(f"checkpoint {NAME} is skipped: {path}")


@pytest.mark.parametrize("path", [SHARD, MANIFEST])
def test_a_byte_turned_over_anywhere_is_skipped_for_the_older_checkpoint(path: str) -> None:
    storage = MemoryStorage()
    older = save(storage, "run", step=100, seed=1)
    save(storage, "run")
    for offset in range(0, storage.size(path), 5):
        corrupt(storage, path, offset)
        log: list[str] = []
        assert newest_whole(storage, "run", log.append) == older
        assert len(log) == 1 and "altered" in log[0] and "\n" not in log[0]
        corrupt(storage, path, offset)
    newest = newest_whole(storage, "run", lambda line: None)
    assert newest is not None and newest.step == 120


@pytest.mark.parametrize(
    ("path", "reason"), [(SHARD, "shard-00001-of-00002.safetensors is missing"), (MANIFEST, "never finished")]
)
def test_a_missing_file_is_skipped_with_the_reason(path: str, reason: str) -> None:
    storage = MemoryStorage()
    older = save(storage, "run", step=100)
    save(storage, "run")
    storage.remove_tree(path)
    log: list[str] = []
    assert newest_whole(storage, "run", log.append) == older
    assert len(log) == 1 and reason in log[0]


def test_damage_is_found_on_a_local_disk_too(tmp_path: Path) -> None:
    storage, directory = LocalStorage(), str(tmp_path)
    older = save(storage, directory, step=100)
    save(storage, directory)
    path = tmp_path / NAME / "shard-00000-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    log: list[str] = []
    assert newest_whole(storage, directory, log.append) == older
    assert len(log) == 1 and "its manifest says" in log[0]


def test_without_verify_the_digests_are_not_read() -> None:
    storage = MemoryStorage()
    manifest = save(storage, "run")
    corrupt(storage, SHARD, storage.size(SHARD) - 1)
    assert load(storage, "run", NAME, verify=False) == manifest
    with pytest.raises(CheckpointError, match="is altered"):
        load(storage, "run", NAME)


def test_a_checkpoint_of_a_newer_dps_is_skipped_and_never_deleted() -> None:
    storage = MemoryStorage()
    save(storage, "run", step=100)
    save(storage, "run")
    body = unseal(storage.read(MANIFEST), MANIFEST, 1)
    storage.write(MANIFEST, [seal(body | {"format_version": 2})])
    save(storage, "run", step=140)
    with pytest.raises(CheckpointError, match=r"of a newer dps; .*upgrade dps"):
        load(storage, "run", NAME)
    assert retain(storage, "run", keep=1) == [folder_name(100, 3)]
    assert candidates(storage, "run") == [folder_name(140, 3), NAME]


def test_a_folder_that_was_renamed_is_told(tmp_path: Path) -> None:
    save(LocalStorage(), str(tmp_path))
    shutil.move(tmp_path / NAME, tmp_path / folder_name(120, 4))
    with pytest.raises(CheckpointError, match=f"is the manifest of {NAME}; give its folder that name again"):
        load(LocalStorage(), str(tmp_path), folder_name(120, 4))


def test_retention_keeps_the_newest_by_epoch_and_step() -> None:
    storage = MemoryStorage()
    for step, epoch in [(300, 1), (200, 1), (90, 2), (100, 2)]:
        save(storage, "run", step, epoch)
    assert retain(storage, "run", keep=2) == [folder_name(300, 1), folder_name(200, 1)]
    assert candidates(storage, "run") == [folder_name(100, 2), folder_name(90, 2)]
    assert retain(storage, "run", keep=2) == []


def test_retention_spares_what_is_foreign(tmp_path: Path) -> None:
    storage, directory = LocalStorage(), str(tmp_path)
    for step in [1, 2, 3]:
        save(storage, directory, step)
    storage.write(f"{directory}/notes/mine", [b"x"])
    assert retain(storage, directory, keep=1) == [folder_name(2, 3), folder_name(1, 3)]
    assert storage.names(directory) == ["notes", folder_name(3, 3)]


def test_retention_deletes_unfinished_checkpoints_only_when_a_newer_one_is_whole() -> None:
    storage = MemoryStorage()
    old = unfinished(storage, 50, 3)
    assert retain(storage, "run", keep=1) == []
    save(storage, "run", step=100)
    going_on = unfinished(storage, 150, 3)
    assert retain(storage, "run", keep=1) == [old]
    assert candidates(storage, "run") == [going_on, folder_name(100, 3)]


def test_a_damaged_checkpoint_takes_no_place_among_those_to_keep() -> None:
    storage = MemoryStorage()
    for step in [100, 110, 120]:
        save(storage, "run", step)
    truncate(storage, SHARD, 3)
    assert retain(storage, "run", keep=1) == [folder_name(100, 3)]
    newest = newest_whole(storage, "run", lambda line: None)
    assert newest is not None and newest.step == 110


def test_a_kill_during_retention_leaves_an_unfinished_checkpoint_that_goes_next_time() -> None:
    class Killed(BaseException):
        pass

    class Dying(MemoryStorage):
        def remove_tree(self, path: str) -> None:
            if removed:
                raise Killed
            removed.append(path)
            super().remove_tree(path)

    removed: list[str] = []
    dying = Dying()
    for step in [1, 2]:
        save(dying, "run", step)
    with pytest.raises(Killed):
        retain(dying, "run", keep=1)
    with pytest.raises(CheckpointError, match="never finished"):
        load(dying, "run", folder_name(1, 3))
    removed.clear()
    with pytest.raises(Killed):
        retain(dying, "run", keep=1)
    assert removed == [f"run/{folder_name(1, 3)}/manifest.json"]


def test_retention_takes_away_temporary_files_of_a_killed_chief_s_journal(tmp_path: Path) -> None:
    storage, directory = LocalStorage(), str(tmp_path)
    Journal(storage, directory).save(JournalState(run_epoch=1))
    (tmp_path / ".journal.json.77-0.tmp").write_bytes(b"half")
    (tmp_path / ".mine.tmp").write_bytes(b"foreign")
    retain(storage, directory, keep=1)
    assert storage.names(directory) == [".mine.tmp", "journal.json"]


@pytest.mark.parametrize("keep", [0, -1])
def test_keeping_nothing_is_a_value_error(keep: int) -> None:
    with pytest.raises(ValueError, match="wanted 1 or more"):
        retain(MemoryStorage(), "run", keep)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.booleans()), unique_by=lambda c: c[:2], max_size=8),
    st.integers(1, 4),
)
def test_whatever_is_there_the_newest_whole_checkpoints_stay(there: list[tuple[int, int, bool]], keep: int) -> None:
    storage = MemoryStorage()
    for step, epoch, whole in there:
        manifest = write_unfinished(storage, "run", small_model(), {}, 1, step, epoch)
        if whole:
            commit(storage, "run", manifest)
    retain(storage, "run", keep)
    finished = sorted(((epoch, step) for step, epoch, whole in there if whole), reverse=True)
    kept = finished[:keep]
    kept += [
        (epoch, step) for step, epoch, whole in there if not whole and (epoch, step) > max(finished, default=(0, -1))
    ]
    assert candidates(storage, "run") == [folder_name(step, epoch) for epoch, step in sorted(kept, reverse=True)]


@pytest.mark.timeout(10)
@pytest.mark.parametrize("file", ["manifest.json", "shard-00001-of-00002.safetensors"])
@pytest.mark.parametrize("in_its_place", ["a FIFO", "a link to a FIFO", "a link to a device", "a folder"])
def test_what_is_no_regular_file_is_skipped_with_a_reason_and_blocks_nobody(
    tmp_path: Path, file: str, in_its_place: str
) -> None:
    storage, directory, log = LocalStorage(), str(tmp_path), list[str]()
    older = save(storage, directory, step=100)
    save(storage, directory)
    path = tmp_path / NAME / file
    path.unlink()
    if "FIFO" in in_its_place:
        os.mkfifo(tmp_path / "fifo" if "link" in in_its_place else path)
    if "link" in in_its_place:
        path.symlink_to("/dev/zero" if "device" in in_its_place else tmp_path / "fifo")
    if in_its_place == "a folder":
        path.mkdir()
    assert newest_whole(storage, directory, log.append) == older
    assert len(log) == 1 and str(path) in log[0] and ("regular file" in log[0] or "a folder stands" in log[0])
    assert retain(storage, directory, keep=5) == []


@pytest.mark.timeout(10)
def test_a_journal_that_is_a_fifo_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "journal.json")
    with pytest.raises(CheckpointError, match="is a FIFO, wanted a regular file; .* delete it"):
        Journal(LocalStorage(), str(tmp_path)).load()
