"""A `dps launch` under test: its processes, found by a mark in their environment, signals to them, its output."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARK = "CHAOS_RUN"
"""An environment variable that all processes of a run inherit."""


@dataclass(frozen=True)
class Line:
    """A line of the launcher's output, and when it came, on CLOCK_MONOTONIC."""

    at_s: float
    text: str


class Launched:
    """`dps launch` in a process of its own. `folder` gets its output and is where temporary files may be made."""

    def __init__(self, flags: list[str], mark: str, folder: Path) -> None:
        self.mark, self.lines = mark, list[Line]()
        self.work, self.temporary = folder / "cwd", folder / "tmp"
        for made in (self.work, self.temporary):
            made.mkdir(exist_ok=True)
        environment = {**os.environ, MARK: mark, "TMPDIR": str(self.temporary), "PYTHONPATH": str(ROOT)}
        environment["DPS_RUNS"] = str((folder / "runs").resolve())
        self._log = (folder / "output.log").open("a")
        self._began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dps.cli", "launch", *flags], cwd=self.work, env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
            start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self._take(text.rstrip("\n"))

    def _take(self, text: str) -> None:
        line = Line(time.monotonic(), text)
        self.lines.append(line)
        self._log.write(f"{line.at_s - self._began:8.2f}  {text}\n")
        self._log.flush()

    def note(self, text: str) -> None:
        """A line of the driver's own among the output in the file."""
        self._log.write(f"{time.monotonic() - self._began:8.2f}  ==== {text}\n")
        self._log.flush()

    def pids(self, target: str) -> list[int]:
        """The processes of a task ("ps:1", "chief"), of all "workers", of "everything", or the launcher's."""
        if target == "launcher":
            return [self.process.pid] if self.process.poll() is None else []
        there = marked(self.mark)
        if target == "everything":
            return there
        job, _, task = target.partition(":")
        wanted = ["worker"] if target == "workers" else [job]
        found = [pid for pid in there if _argument(pid, "--job") in wanted]
        return [pid for pid in found if not task or _argument(pid, "--task") == task]

    def signal(self, pids: list[int], number: int) -> list[int]:
        """Send a signal; the processes that were still there."""
        told = []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                told.append(pid)
        return told

    def wait(self, patience_s: float) -> int | None:
        """The launcher's exit code; None when it takes longer than `patience_s`. Blocks."""
        try:
            code = self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(2.0)
        return code

    def leave_nothing(self) -> None:
        """Kill what is left of the run, and close its log."""
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(2.0)
        self._log.close()


def marked(mark: str) -> list[int]:
    """The living processes of a run, by the mark that they inherited."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdecimal() and wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return [pid for pid in found if _lives(pid)]


def _lives(pid: int) -> bool:
    """A zombie does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    return False


def _argument(pid: int, flag: str) -> str:
    """What a process's command line gives for a flag; "" where it gives none."""
    with contextlib.suppress(OSError, ValueError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if "dps.role" in words:
            return words[words.index(flag) + 1]
    return ""
