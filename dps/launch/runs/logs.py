"""The output of a run's tasks in files: a line for each line, with its time. Files rotate; one process writes them."""

from __future__ import annotations

import contextlib
import heapq
import os
from collections.abc import Iterator, Sequence

from dps.launch.runs.times import utc
from dps.own_files import opener
from dps.record import record

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
        self._path = os.path.join(folder, file_name(task))
        self._largest = largest
        self._file = open(self._path, "a", encoding="utf-8", errors="replace", buffering=1, opener=opener)  # noqa: SIM115
        self._size = os.path.getsize(self._path)

    def write(self, at: float, text: str) -> None:
        """Add a line."""
        line = f"{utc(at)} {text}\n"
        if self._size and self._size + len(line) > self._largest:
            self._rotate()
        self._file.write(line)
        self._size += len(line)

    def _rotate(self) -> None:
        self._file.close()
        for number in range(KEPT - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
        os.replace(self._path, f"{self._path}.1")
        self._file = open(self._path, "w", encoding="utf-8", errors="replace", buffering=1, opener=opener)  # noqa: SIM115
        self._size = 0

    def close(self) -> None:
        self._file.close()


@record
class Entry:
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
        out."""
        self._folder, self._tasks, self._since = folder, tasks, since
        self._read: dict[str, tuple[int, int]] = {}
        """The file (inode) of each task that was read last, and the position in it."""

    def new(self) -> list[Entry]:
        """The lines since the last call, in the order of their times."""
        tasks = tasks_with_logs(self._folder) if self._tasks is None else self._tasks
        each = [list(self._of(task)) for task in tasks]
        return [entry for entry in heapq.merge(*each, key=lambda entry: entry.at) if entry.at >= self._since]

    def _of(self, task: str) -> Iterator[Entry]:
        last, position = self._read.get(task, (0, 0))
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(open(path, "rb")) for path in self._files(task)]
            inodes = [os.fstat(file.fileno()).st_ino for file in files]
            first = inodes.index(last) if last in inodes else 0
            for file, inode in zip(files[first:], inodes[first:], strict=True):
                start = position if inode == last else 0
                file.seek(start)
                whole, end, _ = file.read().rpartition(b"\n")  # a line that is being written comes with the next call
                self._read[task] = inode, start + len(whole) + len(end)
                for line in whole.decode(errors="replace").split("\n") if end else ():
                    yield Entry(line[:STAMP], task, line[STAMP + 1 :])

    def _files(self, task: str) -> list[str]:
        """The files of a task, the oldest first."""
        path = os.path.join(self._folder, file_name(task))
        return [name for name in (*(f"{path}.{n}" for n in range(KEPT, 0, -1)), path) if os.path.exists(name)]
