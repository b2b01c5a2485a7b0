"""A task with a --checkpoint-root reads and writes only below it, and nobody's files through a link."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dps.checkpoint import LocalStorage
from dps.errors import CheckpointError, ConfigError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    (tmp_path / "secret").write_bytes(b"of another")
    return tmp_path / "root"


CALLS: dict[str, Callable[[LocalStorage, str], object]] = {
    "write": lambda storage, path: storage.write(path, [b"x"]),
    "append": lambda storage, path: storage.append(path, b"x"),
    "read": lambda storage, path: storage.read(path),
    "read_range": lambda storage, path: storage.read_range(path, 0, 1),
    "size": lambda storage, path: storage.size(path),
    "exists": lambda storage, path: storage.exists(path),
    "names": lambda storage, path: storage.names(path),
    "remove_tree": lambda storage, path: storage.remove_tree(path),
    "check_writable": lambda storage, path: storage.check_writable(path),
    "claim": lambda storage, path: storage.claim(path),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("path", ["secret", "root/../secret", "rooted/file", "root/link/file"])
def test_nothing_outside_of_the_root_is_touched(root: Path, name: str, path: str) -> None:
    (root / "link").symlink_to(root.parent)
    before = sorted(os.listdir(root.parent))
    with pytest.raises(
        CheckpointError, match="lies outside of .*, the --checkpoint-root|is a symbolic link; below a --checkpoint-root"
    ):
        CALLS[name](LocalStorage(str(root)), str(root.parent / path))
    assert sorted(os.listdir(root.parent)) == before and (root.parent / "secret").read_bytes() == b"of another"


@pytest.mark.parametrize("name", ["write", "append", "read", "read_range", "size"])
def test_a_link_inside_is_not_followed(root: Path, name: str) -> None:
    (root / "run").mkdir()
    (root / "run" / "shard").symlink_to(root.parent / "secret")
    with pytest.raises(CheckpointError, match="symbolic link"):
        CALLS[name](LocalStorage(str(root)), str(root / "run" / "shard"))
    assert (root.parent / "secret").read_bytes() == b"of another"


@pytest.mark.parametrize("name", ["append", "read", "read_range", "size", "claim"])
def test_without_a_root_no_file_is_opened_through_a_link_either(root: Path, name: str) -> None:
    (root / "shard").symlink_to(root.parent / "secret")
    with pytest.raises(CheckpointError, match="symbolic link"):
        CALLS[name](LocalStorage(), str(root / "shard"))
    assert (root.parent / "secret").read_bytes() == b"of another"


def test_below_the_root_all_is_as_ever_by_whatever_name_it_is_called(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    (root.parent / "same").symlink_to(root)
    for given, named in ((".", "run/file"), (str(root), "./run/../run/file"), (str(root.parent / "same"), "run/file")):
        storage = LocalStorage(given)
        assert storage.write(named, [b"ab"]) == 2 and bytes(storage.read(str(root / "run" / "file"))) == b"ab"
        assert storage.names("run") == ["file"] and storage.exists("run")
    assert bytes(LocalStorage(str(root.parent / "same")).read(str(root.parent / "same" / "run" / "file"))) == b"ab"
    (root / "run" / "link").symlink_to(root.parent / "secret")
    LocalStorage(".").remove_tree("run/link")
    assert not (root / "run" / "link").is_symlink() and (root.parent / "secret").exists()


def test_a_root_that_is_no_folder_is_told(root: Path) -> None:
    with pytest.raises(ConfigError, match="--checkpoint-root .*nowhere, which is no folder; make it"):
        LocalStorage(str(root / "nowhere"))
    storage = LocalStorage(str(root / "nowhere"), may_be_missing=True)
    assert storage.write(str(root / "nowhere" / "run" / "file"), [b"ab"]) == 2
    with pytest.raises(CheckpointError, match="lies outside of"):
        storage.write(str(root / "file"), [b"ab"])
    with pytest.raises(ConfigError, match="which is no folder"):
        LocalStorage(str(root / "nowhere" / "run" / "file"), may_be_missing=True)
