"""The private folder of a host process, with keys and a copy of the project: it is removed however the process ends."""

from __future__ import annotations

import subprocess

from dps.transport.private import private_folder, remove

SWEEP = 'exec 3<&0; { trap "" HUP INT TERM; read _ <&3; rm -rf "$0"; } &'
"""Waits for the end of its stdin, which is the end of the process that has started it, and removes the folder. It has a
session of its own, and its parent has ended, so signals to that process and its children do not reach it."""


class OwnFolder:
    """A new folder. `end` removes it.

    If this process is killed, another one removes the folder at once. If both are killed together, as by the end of a
    Slurm job or of the machine, the next process of this user that makes one removes it. Why both: docs/decisions/0049.
    """

    def __init__(self) -> None:
        self.path = private_folder()
        self._sweeper = subprocess.Popen(
            ["sh", "-c", SWEEP, self.path], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._sweeper.wait()

    def end(self) -> None:
        """Remove the folder."""
        remove(self.path)
        assert self._sweeper.stdin is not None
        self._sweeper.stdin.close()
