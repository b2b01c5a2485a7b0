"""Removes a private folder when this process ends, in whatever way: another process waits for that."""

from __future__ import annotations

import shutil
import subprocess

SWEEP = 'exec 3<&0; { trap "" HUP INT TERM; read _ <&3; rm -rf "$0"; } &'
"""Its stdin ends with this process. It has a session of its own, and its parent has ended, so that nobody's signal to
this process and its children means it."""


class Sweeping:
    """A folder, and the process that removes it if this one cannot."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            ["sh", "-c", SWEEP, folder], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        self._process.wait()

    def end(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        assert self._process.stdin is not None
        self._process.stdin.close()
