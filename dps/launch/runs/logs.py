"""The output of a run's tasks in files: a line for each line, with its time. Files rotate; one process writes them."""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
from collections.abc import Iterator, Sequence
from io import FileIO
from typing import BinaryIO

from dps.launch.runs.times import utc
from dps.process.own_files import opener
from dps.process.record import record

LARGEST = 16 << 20
"""Bytes of a file before the next one begins."""
KEPT = 3
"""How many full files of a task are kept."""
STAMP = 24
"""Characters of a time as `utc` writes it."""


def file_name(task: str) -> str:
    """The name of a task's log file."""
    return f"{task.replace(':', '.')}.log"


def task_name(text: str) -> str:
    """A task as people write it, "worker:1" or "worker.1", in dps's form "worker:1"."""
    job, dot, index = text.rpartition(".")
    return f"{job}:{index}" if dot else text


class Log:
    """Writes the log of one task. Not for several threads at one time."""

    def __init__(self, folder: str, task: str, largest: int = LARGEST) -> None:
        self._path, self._largest = os.path.join(folder, file_name(task)), largest
        self._file = self._open_file()
        self._size = os.path.getsize(self._path)

    def _open_file(self) -> FileIO:
        return FileIO(self._path, "a", opener=opener)

    def write(self, at: float, text: str) -> None:
        """Add a line, whole or not at all. Raises OSError, after which the next one is tried."""
        line = f"{utc(at)} {text}\n".encode(errors="replace")
        if self._size and self._size + len(line) > self._largest:
            self._rotate()
        if self._file.closed:
            self._file = self._open_file()
        if (self._file.write(line) or 0) < len(line):  # a part of it filled the disk
            os.ftruncate(self._file.fileno(), self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += len(line)

    def _rotate(self) -> None:
        self._file.close()
        for number in range(KEPT - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
        os.replace(self._path, f"{self._path}.1")
        self._size = 0

    def close(self) -> None:
        self._file.close()


@record
class LogLine:
    """A line of a task's output. `at`: its time as text, which sorts as the times do."""

    at: str
    task: str
    text: str


def tasks_with_logs(folder: str) -> list[str]:
    """The tasks that have a log, in the order of their names."""
    names = [name.removesuffix(".log") for name in os.listdir(folder) if name.endswith(".log")]
    return sorted((task_name(name) for name in names), key=lambda name: (name.partition(":")[0], len(name), name))


class Reader:
    """Reads the logs of some tasks of a run, as far as they are written; a later call reads what came meanwhile."""

    def __init__(self, folder: str, tasks: Sequence[str] | None = None, since: str = "") -> None:
        """`tasks` None: all, those that begin later, too. `since`: lines before this time, as `utc` writes it, are left
        out; they are not read, either."""
        self._folder, self._tasks, self._since = folder, tasks, since
        self._read: dict[str, tuple[int, int]] = {}
        """The file (inode) of each task that was read last, and the position in it."""

    def read_new(self) -> Iterator[LogLine]:
        """The lines since the last call, in the order of their times. Read while they are asked for, a line of each
        task at a time, from the files that are there when the first is asked for."""
        tasks = tasks_with_logs(self._folder) if self._tasks is None else self._tasks
        with contextlib.ExitStack() as stack:
            each = [self._read_task(task, self._open_files(task, stack)) for task in tasks]
            for entry in heapq.merge(*each, key=lambda entry: entry.at):
                if entry.at >= self._since:
                    yield entry

    def _open_files(self, task: str, stack: contextlib.ExitStack) -> dict[int, BinaryIO]:
        """The files of a task by their inodes, the oldest first. They are opened from the newest on: one that is moved
        meanwhile is found again under its next name, and none is missed."""
        path, found = os.path.join(self._folder, file_name(task)), dict[int, BinaryIO]()
        for name in (path, *(f"{path}.{n}" for n in range(1, KEPT + 1))):
            with contextlib.suppress(FileNotFoundError):
                file = stack.enter_context(open(name, "rb"))  # noqa: SIM115
                found.setdefault(os.fstat(file.fileno()).st_ino, file)
        return dict(reversed(found.items()))

    def _read_task(self, task: str, files: dict[int, BinaryIO]) -> Iterator[LogLine]:
        last, position = self._read.get(task, (0, 0))
        passed = last not in files
        for inode, file in files.items():
            if passed := passed or inode == last:
                at = position if inode == last else first_since(file, self._since)
                file.seek(at)
                # A line that is being written has no end yet, and comes with a later call.
                while (line := file.readline()).endswith(b"\n"):
                    at += len(line)
                    self._read[task] = inode, at
                    text = line[:-1].decode(errors="replace")
                    yield LogLine(text[:STAMP], task, text[STAMP + 1 :])
                self._read[task] = inode, at


BLOCK = 1 << 16


def first_since(file: BinaryIO, since: str) -> int:
    """A position in a log from which lines are no older than a time: where such a line begins, or at most BLOCK bytes
    before. Looks at a few lines alone, since the times of a file rise."""
    low, high = 0, os.fstat(file.fileno()).st_size if since else 0
    while high - low > BLOCK:
        middle = (low + high) // 2
        file.seek(middle)
        while (piece := file.readline(BLOCK)) and not piece.endswith(b"\n"):
            pass
        begin = file.tell()
        if begin < high and file.read(STAMP).decode(errors="replace") < since:
            low = begin
        else:
            high = middle
    return low
