"""Removes what killed host processes have left: their private folders, with keys and copies of projects."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

from dps.launch.runs import folder
from dps.launch.runs.identity import identity, lives
from dps.transport.private import private_folder

OWNER = "owner.json"
"""The file in a host process's folder that says whose it is."""


def own_folder() -> str:
    """A private folder of this process. Folders beside it whose processes have gone are removed."""
    path = private_folder()
    folder.write(os.path.join(path, OWNER), identity())
    for left in _left(os.path.dirname(path)):
        shutil.rmtree(left, ignore_errors=True)
    return path


def _left(parent: str) -> Iterator[str]:
    """The folders of this user's host processes that are gone, for certain."""
    with os.scandir(parent) as entries:
        for entry in entries:
            if not entry.name.startswith("dps-") or not entry.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(OSError, ValueError):
                mine = entry.stat(follow_symlinks=False).st_uid == os.geteuid()
                owner = folder.read(os.path.join(entry.path, OWNER)) if mine else {}
                if owner and lives(owner) is False:
                    yield entry.path
