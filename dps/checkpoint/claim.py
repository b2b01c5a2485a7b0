"""A lock file that one process of this machine holds, through the operating system's file lock.

The lock is `flock`'s. It belongs to the open file, so two claims of one process exclude each other, and another reader
of the file does not end it. The system releases it when the process ends. A forked child closes its copy.
"""

from __future__ import annotations

import errno
import fcntl
import os
from weakref import WeakSet

from dps.checkpoint.storage import AT_ONCE, check_regular, refused
from dps.own_files import FILE

TRIES = 20
"""How often to try again if the file is deleted and made again meanwhile."""
_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

_open: WeakSet[LocalClaim] = WeakSet()


class LocalClaim:
    """As `Claim`."""

    def __init__(self, path: str, descriptor: int, made: bool, alone: bool) -> None:
        self.made, self.alone = made, alone
        self._path, self._descriptor = path, descriptor
        _open.add(self)

    def read(self) -> bytes:
        """As Claim.read. Opens the file again, because network file systems then ask the server."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | AT_ONCE)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise refused("read", self._path, error) from error
        try:
            check_regular(self._path, os.fstat(descriptor).st_mode)
            return os.read(descriptor, 1 << 16)
        except OSError as error:
            raise refused("read", self._path, error) from error
        finally:
            os.close(descriptor)

    def write(self, data: bytes) -> None:
        """As Claim.write. Opens the file again and closes it, because network file systems then write to the server."""
        try:
            if not _is_at(self._path, self._descriptor):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            descriptor = os.open(self._path, os.O_WRONLY | AT_ONCE)
            try:
                if os.pwrite(descriptor, data, 0) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.ftruncate(descriptor, len(data))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise refused("write", self._path, error) from error

    def release(self) -> None:
        """As Claim.release."""
        if self._descriptor >= 0 and _is_at(self._path, self._descriptor):
            try:
                os.unlink(self._path)
            except OSError:
                pass  # it names a run that is over; the next one breaks the lock
        self.drop()

    def drop(self) -> None:
        """As Claim.drop."""
        descriptor, self._descriptor = self._descriptor, -1
        _open.discard(self)
        if descriptor >= 0:
            os.close(descriptor)


def claimed(path: str) -> LocalClaim | None:
    """A claim on the file at `path`, which is made if necessary; None if another claim holds it. Raises OSError."""
    for _ in range(TRIES):
        opened = _opened(path)
        if opened is None:
            continue
        descriptor, made = opened
        try:
            check_regular(path, os.fstat(descriptor).st_mode)
            alone = _lock(descriptor)
            if alone is None:
                os.close(descriptor)
                return None
            if _is_at(path, descriptor):
                return LocalClaim(path, descriptor, made, alone)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the previous holder deleted it; it may exist again
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _opened(path: str) -> tuple[int, bool] | None:
    """(descriptor, whether the file was made); None if it was deleted at this moment."""
    flags = os.O_RDWR | AT_ONCE
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, FILE), True
    except FileExistsError:
        pass
    try:
        return os.open(path, flags), False
    except FileNotFoundError:
        return None


def _lock(descriptor: int) -> bool | None:
    """True: locked; None: another process has the lock; False: this file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            return None
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True


def _is_at(path: str, descriptor: int) -> bool:
    """Whether the open file is the one at the path."""
    try:
        here, there = os.fstat(descriptor), os.lstat(path)
    except OSError:
        return False
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _after_fork() -> None:
    for claim in list(_open):
        claim.drop()


os.register_at_fork(after_in_child=_after_fork)
