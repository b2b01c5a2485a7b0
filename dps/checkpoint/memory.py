"""An in-memory disk for the simulator and tests. It outlives tasks and can fail on request."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Iterable

from dps.checkpoint.claim import refused
from dps.checkpoint.storage import check_range


class MemoryStorage:
    """A simulated disk: it outlives killed tasks, and fails when a test says so.

    `before_write(path, nbytes)` is called when all bytes of a write are collected and before the write becomes visible
    (and with nbytes 0 for check_writable). It may wait in virtual time, or raise. An OSError becomes the
    CheckpointError of a real disk, any other error passes through; in both cases nothing is written.
    """

    def __init__(self, before_write: Callable[[str, int], None] | None = None, locks: bool = True) -> None:
        """`locks` False: like a network file system without locks, where several processes can claim a file."""
        self.before_write, self._has_locks = before_write, locks
        self._files: dict[str, bytes] = {}
        self._claims: dict[str, MemoryClaim] = {}

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> int:
        """As Storage.write."""
        key, data = posixpath.normpath(path), b"".join(chunks)
        try:
            self._make_room(key, len(data))
            if self._has_folder(key):
                raise _os_error(errno.EISDIR)
        except OSError as error:
            raise refused("write", path, error) from error
        self._files[key] = data
        self._claims.pop(key, None)
        return len(data)

    def append(self, path: str, data: bytes) -> None:
        """As Storage.append."""
        key = posixpath.normpath(path)
        try:
            self._make_room(key, len(data))
            if self._has_folder(key):
                raise _os_error(errno.EISDIR)
        except OSError as error:
            raise refused("append to", path, error, "directory") from error
        self._files[key] = self._files.get(key, b"") + data

    def read(self, path: str) -> bytes | memoryview:
        """As Storage.read; read-only."""
        data = self._files.get(posixpath.normpath(path))
        if data is None:
            raise refused("read", path, _os_error(errno.ENOENT))
        return data

    def read_range(self, path: str, offset: int, n: int) -> bytes | memoryview:
        """As Storage.read_range; a read-only view."""
        data = memoryview(self.read(path))
        check_range(path, offset, n, len(data))
        return data[offset : offset + n]

    def exists(self, path: str) -> bool:
        """As Storage.exists; a folder exists while something is in it."""
        key = posixpath.normpath(path)
        return key in self._files or self._has_folder(key)

    def size(self, path: str) -> int:
        """As Storage.size."""
        return len(self.read(path))

    def names(self, folder: str) -> list[str]:
        """As Storage.names."""
        key = posixpath.normpath(folder)
        if key in self._files:
            raise refused("list", folder, _os_error(errno.ENOTDIR))
        start = "" if key == "." else key.rstrip("/") + "/"
        return sorted({file[len(start) :].split("/", 1)[0] for file in list(self._files) if file.startswith(start)})

    def remove_tree(self, path: str) -> None:
        """As Storage.remove_tree."""
        key = posixpath.normpath(path)
        for file in list(self._files):
            if file == key or file.startswith(key + "/"):
                self._files.pop(file, None)
                self._claims.pop(file, None)

    def files(self) -> dict[str, bytes]:
        """The contents of all files by path."""
        return dict(self._files)

    def check_writable(self, folder: str) -> None:
        """As Storage.check_writable."""
        try:
            self._make_room(posixpath.normpath(posixpath.join(folder, "writable")), 0)
        except OSError as error:
            raise refused("write checkpoints to", folder, error) from error

    def close(self, folder: str, made: Iterable[str]) -> str:
        """As Storage.close: it has no other accounts."""
        return ""

    def claim(self, path: str) -> MemoryClaim | None:
        """As Storage.claim. The code that simulates the end of a process must drop its claims."""
        key = posixpath.normpath(path)
        if key in self._claims:
            return None
        made = key not in self._files
        try:
            if made:
                self._make_room(key, 0)
            if self._has_folder(key):
                raise _os_error(errno.EISDIR)
        except OSError as error:
            raise refused("lock", path, error) from error
        self._files.setdefault(key, b"")
        claim = MemoryClaim(self, key, made, self._has_locks)
        if self._has_locks:
            self._claims[key] = claim
        return claim

    def _has_folder(self, key: str) -> bool:
        return any(file.startswith(key + "/") for file in list(self._files))

    def _make_room(self, key: str, nbytes: int) -> None:
        if self.before_write is not None:
            self.before_write(key, nbytes)
        folder = posixpath.dirname(key)
        while folder not in ("", "/"):
            if folder in self._files:
                raise _os_error(errno.ENOTDIR)
            folder = posixpath.dirname(folder)


class MemoryClaim:
    """As Claim, of a file in memory."""

    def __init__(self, storage: MemoryStorage, key: str, made: bool, alone: bool) -> None:
        self.made, self.alone = made, alone
        self._storage, self._key = storage, key

    def read(self) -> bytes:
        """As Claim.read."""
        return self._storage._files.get(self._key, b"")

    def write(self, data: bytes) -> None:
        """As Claim.write."""
        try:
            if self._key not in self._storage._files:
                raise _os_error(errno.ENOENT)
            if len(data) > len(self.read()):
                self._storage._make_room(self._key, len(data))
        except OSError as error:
            raise refused("write", self._key, error) from error
        self._storage._files[self._key] = data

    def release(self) -> None:
        """As Claim.release."""
        if not self.alone or self._storage._claims.get(self._key) is self:
            self._storage._files.pop(self._key, None)
        self.drop()

    def drop(self) -> None:
        """As Claim.drop."""
        if self._storage._claims.get(self._key) is self:
            del self._storage._claims[self._key]


def _os_error(code: int) -> OSError:
    return OSError(code, os.strerror(code))
