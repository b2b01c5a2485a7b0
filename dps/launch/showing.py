"""Shows the lines of a launched run by a thread of its own, so that a reader who stands still holds up nobody."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from typing import TextIO

from dps.launch.output import Output
from dps.transport.clock import now

LAUNCHER = "dps"
"""The name before the launcher's own lines."""
MOST = 8 << 20
"""Bytes that wait for the reader before lines of tasks do, or are left out."""
STILL_S = 2.0
"""A reader who has taken nothing for so long stands still, as `less` or a terminal after Ctrl-S does."""
PIECE = 4096
"""Bytes of one write: so much shows that the reader goes on."""


def full_name(run: str, task: str) -> str:
    """A task of any run: "4.worker.1"."""
    return f"{run}.{task.replace(':', '.')}"


class Showing:
    """The lines wait in a buffer. When it is full, tasks wait for a slow reader, as with any pipe. Of one who stands
    still nobody waits: lines of tasks are left out, which is told in their place, and the run's logs have them. Who
    calls `line` for the launcher never waits."""

    def __init__(self, run: str, several: bool = False, stream: TextIO | None = None) -> None:
        """`run`: its number, which is shown before the names of tasks if `several` runs are shown."""
        self._run, self._several, self._output = run, several, Output(stream)
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._size, self._missing, self._moved_at = 0, 0, 0.0
        self._writer: threading.Thread | None = None
        self.trouble: OSError | None = None
        """Why the last lines that were dropped could not be written."""

    def line(self, name: str, text: str) -> None:
        """Show a line of a task, or of the launcher."""
        data = self._encoded(name, text)
        with self._changed:
            if name != LAUNCHER:
                while self._size > MOST and not self._is_still():
                    self._changed.wait(STILL_S / 4)
                if self._size > MOST:
                    self._missing += 1
                    return
            self._tell_missing()
            self._put(data)

    def finish(self, hurried: bool) -> None:
        """Wait until all is read; if `hurried`, not for a reader who stands still. Signals end the wait."""
        with self._changed:
            self._tell_missing()
            while self._size and not (hurried and self._is_still()):
                self._changed.wait(STILL_S / 4)

    def _encoded(self, name: str, text: str) -> bytes:
        shown = self._output.text(full_name(self._run, name) if self._several else name, text)
        return shown.encode(self._output.stream.encoding or "utf-8", "replace")

    def _is_still(self) -> bool:
        return now() - self._moved_at > STILL_S

    def _tell_missing(self) -> None:
        if self._missing:
            lost, self._missing = self._missing, 0
            lines = f"{lost:,} line{' is' if lost == 1 else 's are'} missing here"
            why = f"the reader of this output stood still; dps logs {self._run} shows all"
            self._put(self._encoded(LAUNCHER, f"{lines}: {why}"))

    def _put(self, data: bytes) -> None:
        if not self._size:
            self._moved_at = now()
        self._lines.append(data)
        self._size += len(data)
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, name="dps shows lines", daemon=True)
            self._writer.start()
        self._changed.notify_all()

    # -- the thread that writes -----------------------------------------------------------------------------------

    def _write(self) -> None:
        try:
            descriptor = self._output.stream.fileno()
        except OSError:
            descriptor = -1
        while True:
            with self._changed:
                while not self._lines:
                    self._changed.wait()
                data = b"".join(self._lines)
                self._lines.clear()
            while data:
                written = self._written(descriptor, data[:PIECE]) if descriptor >= 0 else self._printed(data)
                data = data[written:]
                with self._changed:
                    self._size -= written
                    self._moved_at = now()
                    self._changed.notify_all()

    def _written(self, descriptor: int, data: bytes) -> int:
        """Write to the descriptor and past the stream, whose lock would hold up the end of the process."""
        try:
            return os.write(descriptor, data)
        except BlockingIOError:  # somebody who shares the pipe has made it so
            select.select([], [descriptor], [], STILL_S)
            return 0
        except OSError as error:
            self.trouble = error
            return len(data)

    def _printed(self, data: bytes) -> int:
        self._output.stream.write(data.decode(self._output.stream.encoding or "utf-8"))
        return len(data)
