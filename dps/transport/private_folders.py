"""Folders into which only this user can look, for sockets and keys: each has an owner, and goes when its owner is gone.

The owner of a folder is the process that made it. It holds a lock (flock) on the file OWNER in it, which the system
takes away when the process ends in any way. A process number would not do: the system gives it to another process.
docs/decisions/0072.

All of them lie in a folder of their account, which stays. Without it another account could make a folder in the place
of a removed one, and somebody might still write to a socket there.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator

from dps.errors import ConfigError

LONGEST = 103 - len("/worker-0123456789abcdef")
"""Bytes of a folder's path, so that the paths of sockets in it are not too long for the system."""
NAME = re.compile(r"dps-[0-9a-f]{16}")
OWNER = "owner"
"""The file that the owner has locked. It holds the name of the owner's machine: where machines share a file system, a
lock may be seen on one of them alone."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_owned: dict[str, int] = {}
"""The folders of this process, and the descriptors of their locks."""


def private_folder() -> str:
    """A new folder of mode 700 below TMPDIR, or else below /tmp, which this process owns until `remove`. Removes those
    of processes that were killed. Raises ConfigError if neither can be written, or others could rename what is
    there."""
    for parent in filter(_keeps_names, _parents()):
        with contextlib.suppress(OSError):
            path = os.path.join(_of_account(parent), f"dps-{os.urandom(8).hex()}")
            if len(os.fsencode(path)) > LONGEST:
                continue
            os.mkdir(path, 0o700)
            _own(path)
            remove_left()
            return path
    raise ConfigError(
        f"no folder for this run's sockets in {' or '.join(_parents())}: none can be written, or other accounts may "
        "rename what is in it; set TMPDIR to a folder that only you may write"
    )


def _keeps_names(parent: str) -> bool:
    """Whether no other account can rename what this one makes in a folder: it and those above it belong to root or this
    account, and are not writable by others, or sticky. Otherwise another account could put its own folder in place."""
    at = os.path.realpath(parent)
    with contextlib.suppress(OSError):
        trusted = {0, os.geteuid(), os.stat("/").st_uid}  # in a user namespace, root may have another number
        while True:
            found = os.stat(at)
            if found.st_uid not in trusted or (found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX):
                return False
            if at == os.path.dirname(at):
                return True
            at = os.path.dirname(at)
    return False


def _of_account(parent: str) -> str:
    """The folder in `parent` that only this account can enter, made if there is none: in it no other account can make
    anything, now or later. `parent` itself, if it is one. Raises OSError."""
    if is_private(os.path.realpath(parent)):
        return parent
    name = _usual_of_account(parent)
    if is_private(name):  # the usual case: TMPDIR may be full of others' files
        return name
    for path in (*_of_accounts(parent), name, f"{name}-{os.urandom(8).hex()}"):  # another may have taken the name
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        if is_private(path):
            return path
    raise PermissionError(parent)


def _usual_of_account(parent: str) -> str:
    """The path of that folder, unless another account has taken the name."""
    return os.path.join(parent, f"dps-of-{os.geteuid()}")


def _of_accounts(parent: str) -> list[str]:
    """The folders of this account in `parent`."""
    name = re.compile(rf"{os.path.basename(_usual_of_account(parent))}(-[0-9a-f]{{16}})?")
    with os.scandir(parent) as entries:
        return sorted(entry.path for entry in entries if name.fullmatch(entry.name) and is_private(entry.path))


def is_private(path: str | bytes) -> bool:
    """Whether a path is a folder of this account that no other can enter, and no link: then only this account, or root,
    can have made what is in it."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _parents() -> list[str]:
    return [os.path.abspath(parent) for parent in dict.fromkeys((os.environ.get("TMPDIR"), "/tmp")) if parent]


def _own(path: str) -> None:
    """Lock a new folder. The file gets its name with the lock on it, so nobody finds it without an owner. Where that
    cannot be done, as on a file system without locks, the folder has no such file, and nobody takes it for left."""
    import fcntl

    made = os.path.join(path, f".{OWNER}")
    with contextlib.suppress(OSError):
        file = _owned[path] = os.open(made, FILE | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(file, os.uname().nodename.encode())
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(made, os.path.join(path, OWNER))


def private_chief() -> tuple[str, str]:
    """A new folder, and the address in it at which the chief of a run listens."""
    folder = private_folder()
    return folder, f"ipc://{folder}/chief"


def neighbour(path: str) -> str:
    """The path of a new socket in the folder of another one."""
    return os.path.join(os.path.dirname(path), f"node-{os.urandom(8).hex()}")


def remove(path: str) -> None:
    """Remove such a folder and all that is in it, also what ended processes have left there, and their own folders: a
    launcher removes its folder when its tasks are gone."""
    with contextlib.suppress(OSError), _opened(path) as folder:
        _clear(path, folder)
    if path in _owned:
        os.close(_owned.pop(path))
    remove_left()


def remove_left() -> int:
    """Remove the folders of this user whose owners on this machine are gone. Returns how many. Folders of other
    accounts, links, and folders without an owner's file are not touched."""
    removed = 0
    for folder in _searched():
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            names = [entry.name for entry in entries if NAME.fullmatch(entry.name)]
            removed += sum(_remove_if_left(os.path.join(folder, name)) for name in names)
    return removed


def _searched() -> Iterator[str]:
    """Where folders may have been left: in those of the account."""
    for parent in _parents():
        own = _usual_of_account(parent)
        if is_private(own):
            yield own
            continue
        yield parent
        with contextlib.suppress(OSError):
            yield from _of_accounts(parent)


def _remove_if_left(path: str) -> bool:
    import fcntl

    with contextlib.suppress(OSError), _opened(path) as folder, _opened(OWNER, FILE, folder) as file:
        private = stat.S_IMODE(os.fstat(folder).st_mode) == 0o700
        if private and os.read(file, 256) == os.uname().nodename.encode():
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError: its owner lives
            return _clear(path, folder)
    return False


@contextlib.contextmanager
def _opened(path: str, flags: int = FOLDER, folder: int | None = None) -> Iterator[int]:
    """A descriptor of a folder or file of this user. Raises OSError for a link, and for what belongs to others."""
    found = os.open(path, flags, dir_fd=folder)
    try:
        if os.fstat(found).st_uid != os.geteuid():
            raise PermissionError(path)
        yield found
    finally:
        os.close(found)


def _clear(path: str, folder: int) -> bool:
    """Remove a folder by its descriptor: whoever puts a link at its path meanwhile has no other folder removed. The
    owner's file goes last, so that what an interrupted call has left is found again. Returns whether all of it went."""
    import shutil

    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.name, ignore_errors=True, dir_fd=folder)
            elif entry.name != OWNER:
                os.unlink(entry.name, dir_fd=folder)
    left = os.listdir(folder)
    if left == [OWNER]:
        os.unlink(OWNER, dir_fd=folder)
    if whole := left in ([], [OWNER]):
        os.rmdir(path)
    return whole
