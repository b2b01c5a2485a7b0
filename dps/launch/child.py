"""Runs one task as a child process: starts it, reads its output line by line, ends it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

from dps.config import environment
from dps.launch.outcome import TEARDOWN
from dps.launch.starter import started


def runs_program(name: str) -> bool:
    """Whether a task runs a user's program, as workers and evaluators do."""
    return name.startswith(("worker:", "evaluator:"))


class Child:
    """A `python -m dps.role` process. `line(name, text)` gets its output, on separate threads."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        line: Callable[[str, str], None],
        ended: Callable[[Child], None],
        extra: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        waits: bool = False,
    ) -> None:
        """`waits`: the child reads the chief's address from stdin (`--chief -`); `tell` writes it."""
        self.name, self.arguments = name, list(arguments)
        self._line, self._ended = line, ended
        stdin = subprocess.PIPE if waits else subprocess.DEVNULL
        self.process = started(
            lambda: subprocess.Popen(
                [sys.executable, "-m", "dps.role", *arguments], stdin=stdin, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, env=environment(extra), text=True, errors="replace", pass_fds=pass_fds,
                start_new_session=True,
            )
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, name=f"output of {name}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self._line(self.name, text.rstrip("\n"))
        self.process.wait()
        self.process.stdout.close()
        self._ended(self)

    def tell(self, chief: str) -> None:
        """Give a waiting child the chief's address; "" ends it. Does nothing for others, or a second time."""
        stdin = self.process.stdin
        if stdin is None or stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):  # the child has ended; its exit code says more
            stdin.write(f"{chief}\n" if chief else "")
            stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            stdin.close()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def code(self) -> int | None:
        """The exit code; negative: the signal that ended the child; None while it runs."""
        return self.process.poll()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, patience_s: float) -> bool:
        """Wait for the child's end; returns whether it has ended."""
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def tell_to_end(self) -> None:
        """Ask the child to end: a chief or ps ends at once, a program's loop after its step."""
        self.signal(signal.SIGTERM if runs_program(self.name) else TEARDOWN)

    def end(self, patience_s: float) -> None:
        """Ask the child to end, and SIGKILL it after `patience_s`. Blocks until it has ended."""
        self.tell_to_end()
        if not self.wait(patience_s):
            self.signal(signal.SIGKILL)
            self.process.wait()
        self._reader.join(2.0)
