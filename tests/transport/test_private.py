"""Folders for sockets and keys: those of killed processes go, and nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dps.transport import private_folders as private

MAKES = """
from dps.transport import private_folders
print(private_folders.private_folder(), flush=True)
import time
time.sleep(100)
"""


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only folder where private ones are made and looked for."""
    made = Path("/tmp") / f"t{os.urandom(4).hex()}"  # paths of sockets are short
    made.symlink_to(tmp_path)
    monkeypatch.setenv("TMPDIR", str(made))
    monkeypatch.setattr(private, "_parents", lambda: [str(made)])
    yield made
    made.unlink()


@contextmanager
def owner(parent: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has made a private folder."""
    with subprocess.Popen([sys.executable, "-c", MAKES], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        try:
            yield process, folder
        finally:
            process.kill()


def left(parent: Path, name: str = "dps-0123456789abcdef") -> Path:
    """A folder as a killed process leaves it."""
    with owner(parent) as (process, folder):
        process.kill()
        process.wait()
    folder.rename(parent / name)
    return parent / name


def test_a_folder_lives_as_long_as_its_owner_and_the_next_start_removes_it(parent: Path) -> None:
    own = private.private_folder()
    with owner(parent) as (process, folder):
        (folder / "chief").write_text("a socket")
        (folder / "keys").mkdir()
        (folder / "keys" / "worker.key").write_text("a key")
        assert private.remove_left() == 0 and folder.is_dir(), "its owner lives"
        process.kill()
        process.wait()
    following = private.private_folder()
    assert set(parent.iterdir()) == {Path(own), Path(following)}, "the folders of this process stay"
    private.remove(own)
    private.remove(following)
    assert not list(parent.iterdir()) and not [path for path in private._owned if path.startswith(str(parent))]


@pytest.fixture
def shared(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where every account may make folders, as in /tmp, and the only one where private ones are made."""
    open_folder.chmod(0o1777)
    monkeypatch.setattr(private, "_parents", lambda: [str(open_folder)])
    return open_folder


def test_no_other_account_can_make_a_folder_in_the_place_of_a_removed_one(shared: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another account")
    for made in (private.private_folder(), left(Path(private.private_folder()).parent)):
        private.remove(str(made))
        private.remove_left()
        assert not Path(made).exists()
        other = subprocess.run(["mkdir", made], user=65534, group=65534, extra_groups=[], check=False, cwd="/")
        assert other.returncode != 0 and not Path(made).exists()


def test_private_folders_share_the_folder_of_their_account_whoever_takes_its_name(shared: Path) -> None:
    (shared / f"dps-of-{os.geteuid()}").mkdir(mode=0o755)
    (shared / f"dps-of-{os.geteuid()}-link").symlink_to("/root")
    made = [Path(private.private_folder()) for _ in range(3)]
    assert len({each.parent for each in made}) == 1
    account = made[0].parent
    assert account.parent == shared and account.stat().st_mode & 0o777 == 0o700
    for each in made:
        private.remove(str(each))
    assert account.is_dir() and not list(account.iterdir())


def test_a_child_that_goes_on_keeps_the_folder_of_its_parent(parent: Path) -> None:
    text = "from dps.transport import private_folders as private; import os; folder = private.private_folder()\nif os.fork() == 0: input()\nelse: print(folder, flush=True); os._exit(0)"  # noqa: E501
    with subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        process.wait()
        assert private.remove_left() == 0 and folder.is_dir()
        process.stdin.close()
        process.stdout.read()  # until the child has ended
    assert private.remove_left() == 1 and not folder.exists()


def test_what_others_have_put_there_is_not_touched(parent: Path, tmp_path: Path) -> None:
    names = (f"dps-{number:016x}" for number in range(100))
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    (mine / "thesis").write_text("all of it")
    (mine / private.OWNER).write_text(os.uname().nodename)
    (parent / next(names)).symlink_to(mine)
    linked = left(parent, next(names))
    (linked / private.OWNER).rename(tmp_path / "theirs")
    (linked / private.OWNER).symlink_to(tmp_path / "theirs")
    os.mkfifo(parent / next(names))
    (parent / next(names)).write_text("a file")
    (parent / next(names)).mkdir(mode=0o700)
    open_to_all = left(parent, next(names))
    open_to_all.chmod(0o777)
    elsewhere = left(parent, next(names))
    (elsewhere / private.OWNER).write_text("another machine")
    left(parent, "dps-bench-0123456789abcdef")
    if os.geteuid() == 0:
        os.chown(left(parent, next(names)), 65534, 65534)
    before = {path: path.lstat().st_ino for path in tmp_path.rglob("*")}
    assert private.remove_left() == 0
    assert {path: path.lstat().st_ino for path in tmp_path.rglob("*")} == before


def test_a_link_in_a_folder_is_removed_and_not_followed(parent: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("all of it")
    (left(parent) / "link").symlink_to(tmp_path / "mine")
    assert private.remove_left() == 1
    assert (tmp_path / "mine" / "thesis").exists()


def test_a_link_that_takes_a_folders_place_meanwhile_is_not_followed(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("all of it")
    folder, scandir = left(parent), os.scandir

    def swapped(path: object) -> object:
        if path != str(parent):
            folder.rename(tmp_path / "moved")
            folder.symlink_to(tmp_path / "mine")
        return scandir(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", swapped)
    assert private.remove_left() == 0
    assert (tmp_path / "mine" / "thesis").exists() and folder.is_symlink()


def test_what_cannot_be_removed_now_is_found_again(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = left(parent)
    (folder / "project").mkdir()
    with monkeypatch.context() as broken:
        broken.setattr("shutil.rmtree", lambda *args, **settings: None)
        assert private.remove_left() == 0 and (folder / private.OWNER).exists()
    assert private.remove_left() == 1


def test_where_there_are_no_locks_nothing_is_taken_for_left(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", none)
    made = private.private_folder()
    assert private.remove_left() == 0 and Path(made).is_dir()
    private.remove(made)
    assert not Path(made).exists()
