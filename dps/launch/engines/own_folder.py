"""The private folder of a host process, with keys and a copy of the project: it is removed however the process ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

from dps.launch.runs import folder
from dps.launch.runs.identity import identity, lives
from dps.transport.private import private_folder

OWNER = "owner.json"
"""The file in such a folder that says which process has it."""
SWEEP = 'exec 3<&0; { trap "" HUP INT TERM; read _ <&3; rm -rf "$0"; } &'
"""Waits for the end of its stdin, which is the end of the process that has started it, and removes the folder. It has a
session of its own, and its parent has ended, so signals to that process and its children do not reach it."""


class OwnFolder:
    """A new folder. `end` removes it.

    If this process is killed, another one removes the folder at once. If both are killed together, as by the end of a
    Slurm job or of the machine, the next host process of this user removes it. Why both: docs/decisions/0049.
    """

    def __init__(self) -> None:
        """Also removes the folders of processes that were killed together with those that wait for their ends."""
        self.path = private_folder()
        folder.write(os.path.join(self.path, OWNER), identity())
        self._sweeper = subprocess.Popen(
            ["sh", "-c", SWEEP, self.path], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._sweeper.wait()
        for left in _left(os.path.dirname(self.path)):
            shutil.rmtree(left, ignore_errors=True)

    def end(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        assert self._sweeper.stdin is not None
        self._sweeper.stdin.close()


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
