"""Where checkpoint files are kept: the `Storage` interface, and folders of the file system.

A write happens completely or not at all. Every call blocks until it is done, may be made from any thread, and raises
CheckpointError, with the path, the reason and what to try, if the operating system refuses. Only regular files are
read, because a FIFO could block its reader for ever, and a link could name a file that is none of the run's. What is
made is for this user alone: mode 700 for folders, 600 for files.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from dps.checkpoint.claim import AT_ONCE, check_regular, claimed, refused
from dps.errors import CheckpointError, ConfigError
from dps.process.own_files import FILE, FOLDER, close_folder, warning

TEMPORARY = ".tmp"
"""Suffix of a file that is being written. Its name starts with a dot and the final name."""


class Storage(Protocol):
    """The file system as checkpoints use it. Paths are text with `/` between the names."""

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Store the chunks, one after another, under `path`; returns the number of bytes.

        Makes the folder. Replaces an older file atomically: a reader, also after a crash, finds either all old bytes or
        all new ones. On return the bytes survive a power failure.
        """

    def append(self, path: str, data: bytes) -> None:
        """Add bytes to the end of a file; makes the file and its folder if necessary.

        Adds all bytes or, after an error, none. For logs: they survive the process, not a power failure.
        """

    def read(self, path: str) -> bytes | memoryview:
        """The whole file."""

    def read_range(self, path: str, offset: int, n: int) -> bytes | memoryview:
        """Exactly `n` bytes from `offset`. Raises CheckpointError if the file ends earlier."""

    def exists(self, path: str) -> bool:
        """Whether a file or a folder exists at `path`."""

    def size(self, path: str) -> int:
        """The file's size in bytes."""

    def names(self, folder: str) -> list[str]:
        """The sorted names of the direct contents of `folder`; empty if there is no such folder."""

    def remove_tree(self, path: str) -> None:
        """Delete a file, or a folder with its contents; does nothing if there is none."""

    def check_writable(self, folder: str) -> None:
        """Make the folder and try to write into it, so that a bad checkpoint_dir is reported at the start."""

    def close(self, folder: str, made: Iterable[str]) -> str:
        """Keep other accounts out of these folders in `folder`, which dps has made. Returns a warning if they may use
        `folder` itself, which somebody else has made, else ""."""

    def claim(self, path: str) -> Claim | None:
        """Open a file, made with its folder if necessary, and keep other processes from claiming it.

        None if another process, or another claim of this one, has it. The claim ends when the process ends in any way.
        """


class Claim(Protocol):
    """A file that one process holds exclusively. Do not use it after `release` or `drop`, which do not raise."""

    made: bool
    """Whether the claim made the file."""
    alone: bool
    """Whether the operating system excludes others, at least on this machine; False on file systems without locks."""

    def read(self) -> bytes:
        """The contents of the file at the path now, even if it is another file; b"" if there is none."""

    def write(self, data: bytes) -> None:
        """Overwrite the file in place, which needs no more room on the disk unless the file grows."""

    def release(self) -> None:
        """Delete the file and let others claim the path."""

    def drop(self) -> None:
        """Let others claim the file, without changing it."""


class LocalStorage:
    """Folders of this machine, or that all machines of the cluster mount; with a `root`, only those below it.

    No file is read or written through a symbolic link. Below a root no folder is entered through one, either.
    """

    def __init__(self, root: str = "", may_be_missing: bool = False) -> None:
        """Raises ConfigError for a root that is no folder. One that `may_be_missing` is made with the first file."""
        if root and not os.path.isdir(root) and (os.path.lexists(root) or not may_be_missing):
            raise ConfigError(f"got --checkpoint-root {root}, which is no folder; make it, or give another")
        self.root = os.path.realpath(root) if root else ""
        self._asked = os.path.abspath(root) if root else ""

    def _within(self, path: str, last: bool = True) -> str:
        """The path, which lies below the root. Raises CheckpointError if it does not, or a link is on the way: also the
        path itself, unless `last` is false."""
        if not self.root:
            return path
        whole = os.path.abspath(path)
        for root in (self.root, self._asked):
            if whole == root or whole.startswith(os.path.join(root, "")):
                break
        else:
            raise CheckpointError(
                f"{path} lies outside of {self.root}, the --checkpoint-root of this task; give the session a "
                "checkpoint_dir below that, or start the task with another --checkpoint-root"
            )
        found = self.root
        for name in os.path.relpath(whole, root).split(os.sep):
            found = os.path.normpath(os.path.join(found, name))
            if os.path.islink(found) and (last or found != os.path.join(self.root, os.path.relpath(whole, root))):
                raise CheckpointError(f"{found} is a symbolic link; below a --checkpoint-root wanted the folder itself")
        return found

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> int:
        """As Storage.write: a temporary file beside it, fsync, rename, fsync of the folder."""
        path = self._within(path)
        folder = os.path.dirname(path) or "."
        try:
            _make_folder(folder)
            temporary, nbytes = _write_temporary(path, chunks)
            try:
                os.replace(temporary, path)
            except BaseException:
                _unlink_quietly(temporary)
                raise
            _sync_folder(folder)
        except OSError as error:
            raise refused("write", path, error) from error
        return nbytes

    def append(self, path: str, data: bytes) -> None:
        """As Storage.append."""
        path = self._within(path)
        try:
            _make_folder(os.path.dirname(path) or ".")
            with _regular(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY) as descriptor:
                size = os.fstat(descriptor).st_size
                if (written := os.write(descriptor, data)) < len(data):
                    os.ftruncate(descriptor, size)
                    raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes could be written")
        except OSError as error:
            raise refused("append to", path, error, "directory") from error

    def read(self, path: str) -> bytes | memoryview:
        """As Storage.read; the caller owns the bytes. Not mapped, because truncation by others would kill us."""
        return self.read_range(path, 0, self.size(path))

    def read_range(self, path: str, offset: int, n: int) -> bytes | memoryview:
        """As Storage.read_range; the caller owns the memory and may write to it."""
        path = self._within(path)
        try:
            with _regular(path, os.O_RDONLY) as descriptor, open(descriptor, "rb", closefd=False) as file:
                check_range(path, offset, n, os.fstat(descriptor).st_size)
                data = memoryview(bytearray(n))
                file.seek(offset)
                got = file.readinto(data)
        except OSError as error:
            raise refused("read", path, error) from error
        check_range(path, offset, n, offset + got)
        return data

    def exists(self, path: str) -> bool:
        """As Storage.exists. A folder that may not be entered is an error, because its contents are not known."""
        path = self._within(path)
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise refused("look for", path, error) from error
        return True

    def size(self, path: str) -> int:
        """As Storage.size."""
        path = self._within(path)
        try:
            found = os.lstat(path)
            check_regular(path, found.st_mode)
            return found.st_size
        except OSError as error:
            raise refused("read", path, error) from error

    def names(self, folder: str) -> list[str]:
        """As Storage.names."""
        folder = self._within(folder)
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise refused("list", folder, error) from error

    def remove_tree(self, path: str) -> None:
        """As Storage.remove_tree; a link is deleted, not what it points to."""
        path = self._within(path, last=False)
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                import shutil  # imported here, because it loads all archive formats

                shutil.rmtree(path)
            else:
                os.unlink(path)
            _sync_folder(os.path.dirname(path) or ".")
        except FileNotFoundError:
            return
        except OSError as error:
            raise refused("delete", path, error) from error

    def check_writable(self, folder: str) -> None:
        """As Storage.check_writable."""
        folder = self._within(folder)
        try:
            _make_folder(folder)
            temporary, _ = _write_temporary(os.path.join(folder, "writable"), [b"dps"])
            os.unlink(temporary)
        except OSError as error:
            raise refused("write checkpoints to", folder, error) from error

    def close(self, folder: str, made: Iterable[str]) -> str:
        """As Storage.close."""
        folder = self._within(folder)
        for name in made:
            close_folder(os.path.join(folder, name))
        return warning(folder, "what dps makes there is for this account alone")

    def claim(self, path: str) -> Claim | None:
        """As Storage.claim: a lock of the whole file (flock)."""
        path = self._within(path)

        try:
            _make_folder(os.path.dirname(path) or ".")
            return claimed(path)
        except OSError as error:
            raise refused("lock", path, error) from error


def check_range(path: str, offset: int, n: int, size: int) -> None:
    """Check that the `n` bytes from `offset` are within a file of `size` bytes."""
    if offset < 0 or n < 0:
        raise ValueError(f"a range of {path} starts at 0 or later and has 0 or more bytes; got {offset} and {n}")
    if offset + n > size:
        raise CheckpointError(
            f"{path} is cut short: {n} bytes from {offset} were wanted, it has {size}; use an older checkpoint"
        )


@contextmanager
def _regular(path: str, flags: int) -> Iterator[int]:
    """The descriptor of a regular file, closed afterwards. Does not block, whatever kind of file is at `path`."""
    descriptor = os.open(path, flags | AT_ONCE, FILE)
    try:
        check_regular(path, os.fstat(descriptor).st_mode)
        yield descriptor
    finally:
        os.close(descriptor)


def _make_folder(folder: str) -> None:
    """Make a folder and its parents, and make each entry durable in its parent."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder) or "."
    _make_folder(parent)
    try:
        os.mkdir(folder, FOLDER)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
    _sync_folder(parent)


def _write_temporary(path: str, chunks: Iterable[bytes | memoryview]) -> tuple[str, int]:
    """Write a temporary file beside `path` and fsync it; returns (its path, bytes). Deletes it after any error."""
    descriptor, temporary = _open_temporary(path)
    nbytes = 0
    try:
        with open(descriptor, "wb") as file:
            for chunk in chunks:
                nbytes += memoryview(chunk).nbytes
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        _unlink_quietly(temporary)
        raise
    return temporary, nbytes


def _open_temporary(path: str) -> tuple[int, str]:
    """Make a new file that no other process writes, on this or another machine that mounts the folder."""
    folder, name = os.path.split(path)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
    for n in itertools.count():
        temporary = os.path.join(folder, f".{name}.{os.getpid()}-{n}{TEMPORARY}")
        try:
            return os.open(temporary, flags, FILE), temporary
        except FileExistsError:
            continue
    raise AssertionError("a count never ends")


def _unlink_quietly(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return


def _sync_folder(folder: str) -> None:
    """Make a folder's entries durable; Windows and some network file systems have no such call."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
