"""Folders and files of dps itself: for this user alone. A folder that somebody else has made keeps its mode."""

from __future__ import annotations

import contextlib
import os
import stat

FOLDER, FILE = 0o700, 0o600
OTHERS = 0o077
"""The bits of a mode that are about other accounts."""


def make_folder(path: str) -> None:
    """Make a folder, and those above it that are missing, for this user alone. One that is there stays as it is.

    Raises OSError. (`os.makedirs` gives its mode to the last folder only.)
    """
    if os.path.isdir(path):
        return
    parent = os.path.dirname(os.path.abspath(path))
    if parent != path:
        make_folder(parent)
    try:
        os.mkdir(path, FOLDER)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def opener(path: str, flags: int) -> int:
    """For `open(..., opener=)`: a file that is made is for this user alone."""
    return os.open(path, flags | os.O_CLOEXEC, FILE)


def close_folder(path: str) -> bool:
    """Close a folder that dps has made to other accounts, if it is this user's. Returns whether that changed anything.
    Follows no symbolic link, which could name a folder of anybody."""
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(folder)
            if found.st_uid == os.geteuid() and found.st_mode & OTHERS:
                os.fchmod(folder, FOLDER)
                return True
        finally:
            os.close(folder)
    return False


def open_mode(path: str) -> str:
    """The mode of a folder that other accounts may read, write or enter, such as "755"; "" if they may not, also
    because of a folder above it."""
    with contextlib.suppress(OSError):
        where = os.path.realpath(path)
        mode = stat.S_IMODE(os.stat(where).st_mode)
        if not mode & OTHERS:
            return ""
        while where != (where := os.path.dirname(where)):
            if not os.stat(where).st_mode & 0o011:
                return ""
        return f"{mode:o}"
    return ""


def warning(path: str, inside: str) -> str:
    """What people are told of a folder that they have made and that others may use; "" if none may. `inside`: what is
    safe all the same."""
    mode = open_mode(path)
    return mode and (
        f"{path} is open to other accounts (mode {mode}), and stays so; {inside}; to close it: chmod 700 {path}"
    )
