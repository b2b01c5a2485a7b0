"""A lock file that one process of this machine holds, through the operating system's file lock.

The lock is `flock`'s. It belongs to the open file, so two claims of one process exclude each other, and another reader
of the file does not end it. The system releases it when the process ends. A forked child closes its copy.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from weakref import WeakSet

from dps.errors import CheckpointError
from dps.process.own_files import FILE

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


def refused(doing: str, path: str, error: OSError, folder: str = "checkpoint_dir") -> CheckpointError:
    """The error for a refused call: path, reason and what to try. `folder` names the folder in the advice."""
    reason = error.strerror or str(error) or type(error).__name__
    code = errno.errorcode.get(error.errno or 0)
    advice = _ADVICE.get(error.errno or 0, "look at the disk and its mount, or choose another checkpoint_dir")
    advice = advice.replace("checkpoint_dir", folder)
    return CheckpointError(f"cannot {doing} {path}: {reason}{f' ({code})' if code else ''}; {advice}")


AT_ONCE = sum(getattr(os, name, 0) for name in ("O_BINARY", "O_NONBLOCK", "O_NOCTTY", "O_NOFOLLOW"))
"""Flags with which opening any kind of file does not block, and opening a symbolic link is refused."""


def check_regular(path: str, mode: int) -> None:
    """Raise CheckpointError unless the path is a regular file; OSError for a folder."""
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    kind = _KINDS.get(stat.S_IFMT(mode), "no regular file")
    raise CheckpointError(f"{path} is {kind}, wanted a regular file; move it away, or choose another checkpoint_dir")


_ADVICE = {
    errno.ENOSPC: "free some space there, keep fewer checkpoints or choose another checkpoint_dir",
    errno.EDQUOT: "free some of this user's quota, keep fewer checkpoints or choose another checkpoint_dir",
    errno.EACCES: "give this user the right to it or choose another checkpoint_dir",
    errno.EPERM: "give this user the right to it or choose another checkpoint_dir",
    errno.EROFS: "mount the file system writable or choose another checkpoint_dir",
    errno.ENOTDIR: "a file stands where a folder is needed: move it away or choose another checkpoint_dir",
    errno.EEXIST: "a file stands where a folder is needed: move it away or choose another checkpoint_dir",
    errno.EISDIR: "a folder stands where a file is needed: move it away or choose another checkpoint_dir",
    errno.ENOENT: "look whether it was deleted meanwhile, or whether this machine sees the same folder",
    errno.ENXIO: "wanted a regular file: move it away or choose another checkpoint_dir",
    errno.ELOOP: "wanted a regular file: no symbolic link is followed; move it away or choose another checkpoint_dir",
    errno.ENAMETOOLONG: "choose a shorter checkpoint_dir",
}


_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFLNK: "a symbolic link",
}
