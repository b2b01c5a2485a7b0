"""Prints the lines of all tasks of a launched run."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TextIO

from dps.transport.clock import now

RESET = "\x1b[0m"
_CONTROLS = re.compile(
    r"(?P<colour>\x1b\[[0-9;:]*m)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: cursor, clearing, modes
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c)"  # OSC and other strings: titles
    r"|\x1b[ -/]*[0-~]"  # shorter sequences: reset, character sets
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # what is left of any other sequence, and single controls
)
"""Whatever is not a sequence of a known form loses its control characters, so nothing but colours can remain. Each
alternative ends at the next control character: text of any length is read once."""


def coloured(text: str) -> str:
    """The text with colours as its only escape sequences. They end with the text."""
    if text.isprintable():
        return text
    kept = _CONTROLS.sub(lambda found: found["colour"] or "", text)
    return kept + RESET if "\x1b" in kept and not kept.endswith(RESET) else kept


def plain(text: str) -> str:
    """The text without any escape sequence."""
    return text if text.isprintable() else _CONTROLS.sub("", text)


COLOURS = (36, 32, 33, 35, 34, 31)

Print = Callable[[str, str], None]
SLOW_S = 1.0


@contextlib.contextmanager
def tell_if_slow(doing: str) -> Iterator[None]:
    """A block that may take long: after a second, people at a terminal are told on stderr what it does."""
    timer = threading.Timer(SLOW_S, lambda: print(f"dps: {doing} ...", file=sys.stderr, flush=True))
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def without_name(name: str, text: str) -> str:
    """A line of a task without the name at its beginning, as dps's log writes it: its own, or that of a session that it
    has opened as a client."""
    return re.sub(rf"^(?:{re.escape(name)}|client:(?:\d+|\?)): ", "", text, count=1)


def check_reader(stream: TextIO) -> None:
    """Raise BrokenPipeError if nobody reads a pipe any more: who only waits for lines to write would not notice."""
    import select

    if not stream.isatty():
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            raise BrokenPipeError


class Output:
    """Lines of all tasks, each with its task's name in front; in colour on a terminal. Of the escape sequences in a
    line only colours reach the stream: a task must not move the cursor, or clear what others have written. What cannot
    be written, because the terminal or the reader of a pipe has gone, is dropped."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stdout if stream is None else stream
        self._colours: dict[str, int] = {}
        self._writing = threading.Lock()  # each task has a thread for its lines, which must not mix

    def print_line(self, name: str, text: str) -> None:
        """Print a line. Blocks while the reader does not read."""
        with contextlib.suppress(OSError):
            self.write_line(name, text, flush=True)

    def write_line(self, name: str, text: str, flush: bool = False) -> None:
        """Write a line, which may stay in the stream's buffer. Raises OSError if it cannot be written."""
        with self._writing:
            self.stream.write(self.line_text(name, text))
            if flush:
                self.stream.flush()

    def line_text(self, name: str, text: str) -> str:
        """A line as it is printed."""
        prefix = f"[{name}]"
        if self.stream.isatty():
            colour = self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        return f"{prefix} {coloured(text)}\n"


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


class BufferedOutput:
    """The lines wait in a buffer. When it is full, tasks wait for a slow reader, as with any pipe. Of one who stands
    still nobody waits: lines of tasks are left out, which is told in their place, and the run's logs have them. Who
    calls `show_line` for the launcher never waits."""

    def __init__(self, run: str, several: bool = False, stream: TextIO | None = None) -> None:
        """`run`: its number, which is shown before the names of tasks if `several` runs are shown."""
        self._run, self._several, self._output = run, several, Output(stream)
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._size, self._missing, self._moved_at = 0, 0, 0.0
        self._writer: threading.Thread | None = None
        self.trouble: OSError | None = None
        """Why the last lines that were dropped could not be written."""

    def show_line(self, name: str, text: str) -> None:
        """Show a line of a task, or of the launcher."""
        data = self._encode_line(name, text)
        with self._changed:
            if name != LAUNCHER:
                while self._size > MOST and not self._is_still():
                    self._changed.wait(STILL_S / 4)
                if self._size > MOST:
                    self._missing += 1
                    return
            self._tell_missing()
            self._add_data(data)

    def wait_until_read(self, hurried: bool) -> None:
        """Wait until all is read; if `hurried`, not for a reader who stands still. Signals end the wait."""
        with self._changed:
            self._tell_missing()
            while self._size and not (hurried and self._is_still()):
                self._changed.wait(STILL_S / 4)

    def _encode_line(self, name: str, text: str) -> bytes:
        shown = self._output.line_text(full_name(self._run, name) if self._several else name, text)
        return shown.encode(self._output.stream.encoding or "utf-8", "replace")

    def _is_still(self) -> bool:
        return now() - self._moved_at > STILL_S

    def _tell_missing(self) -> None:
        if self._missing:
            lost, self._missing = self._missing, 0
            lines = f"{lost:,} line{' is' if lost == 1 else 's are'} missing here"
            why = f"the reader of this output stood still; dps logs {self._run} shows all"
            self._add_data(self._encode_line(LAUNCHER, f"{lines}: {why}"))

    def _add_data(self, data: bytes) -> None:
        if not self._size:
            self._moved_at = now()
        self._lines.append(data)
        self._size += len(data)
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_lines, name="dps shows lines", daemon=True)
            self._writer.start()
        self._changed.notify_all()

    # -- the thread that writes -----------------------------------------------------------------------------------

    def _write_lines(self) -> None:
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
                written = self._write_bytes(descriptor, data[:PIECE]) if descriptor >= 0 else self._print_bytes(data)
                data = data[written:]
                with self._changed:
                    self._size -= written
                    self._moved_at = now()
                    self._changed.notify_all()

    def _write_bytes(self, descriptor: int, data: bytes) -> int:
        """Write to the descriptor and past the stream, whose lock would hold up the end of the process."""
        try:
            return os.write(descriptor, data)
        except BlockingIOError:  # somebody who shares the pipe has made it so
            select.select([], [descriptor], [], STILL_S)
            return 0
        except OSError as error:
            self.trouble = error
            return len(data)

    def _print_bytes(self, data: bytes) -> int:
        self._output.stream.write(data.decode(self._output.stream.encoding or "utf-8"))
        return len(data)
