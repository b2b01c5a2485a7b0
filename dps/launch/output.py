"""Prints the lines of all tasks of a launched run."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

from dps.launch.terminal import coloured

COLOURS = (36, 32, 33, 35, 34, 31)

Print = Callable[[str, str], None]
SLOW_S = 1.0


@contextlib.contextmanager
def slow(doing: str) -> Iterator[None]:
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
        self._writing = threading.Lock()

    def line(self, name: str, text: str) -> None:
        """Print a line. Blocks while the reader does not read."""
        with contextlib.suppress(OSError):
            self.write(name, text, flush=True)

    def write(self, name: str, text: str, flush: bool = False) -> None:
        """Write a line, which may stay in the stream's buffer. Raises OSError if it cannot be written."""
        with self._writing:
            self.stream.write(self.text(name, text))
            if flush:
                self.stream.flush()

    def text(self, name: str, text: str) -> str:
        """A line as it is printed."""
        prefix = f"[{name}]"
        if self.stream.isatty():
            colour = self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        return f"{prefix} {coloured(text)}\n"
