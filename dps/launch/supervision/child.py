"""Runs one task as a child process: starts it, reads its output line by line, ends it."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import IO

from dps.launch.supervision.engine import Line, Order, Started
from dps.launch.supervision.outcome import TEARDOWN
from dps.launch.supervision.plan import runs_program
from dps.process.config import environment

Answer = queue.SimpleQueue["subprocess.Popen[str] | BaseException"]


class Starter:
    """Starts processes on a thread that lives as long as this process.

    A launched task must die with its launcher. Linux takes the thread that started it for the launcher (prctl(2),
    PR_SET_PDEATHSIG), so a cluster that was started from a short-lived thread would die with that thread. Tasks begin
    with Ctrl-C and SIGTERM blocked, and unblock them as soon as they can handle them.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._orders: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[str]], Answer]] = queue.SimpleQueue()
        threading.Thread(target=self._start_ordered, name="dps starts tasks", daemon=True).start()

    def _start_ordered(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        while True:
            work, answer = self._orders.get()
            try:
                answer.put(work())
            except BaseException as error:
                answer.put(error)

    def start(self, work: Callable[[], subprocess.Popen[str]]) -> subprocess.Popen[str]:
        """Run `work` on the thread, and return or raise its result. Blocks."""
        answer: Answer = queue.SimpleQueue()
        self._orders.put((work, answer))
        got = answer.get()
        if isinstance(got, BaseException):
            raise got
        return got


_starter: Starter | None = None
_starting = threading.Lock()  # two threads that start the first tasks must not make two starters


def start_process(work: Callable[[], subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """Start a process on this process's starter. Blocks."""
    global _starter
    with _starting:
        if _starter is None or _starter.pid != os.getpid():  # a fork has only its own thread
            _starter = Starter()
        starter = _starter
    return starter.start(work)


LONGEST = 1 << 16
"""Characters of a line. A longer one comes in pieces, or a task that never ends its line would take all memory."""


def read_lines(stream: IO[str]) -> Iterator[str]:
    """The lines of a stream. Blocks until each is there."""
    cut = False
    while text := stream.readline(LONGEST):
        if not (cut and text == "\n"):  # the end of a line whose last piece was as long as a piece can be
            yield text.removesuffix("\n")
        cut = not text.endswith("\n")


class Child:
    """A `python -m dps.role` process. `line(name, text)` gets its output, on a thread of its own."""

    host, is_displaced = "", False

    def __init__(self, order: Order, env: Mapping[str, str], line: Line, ended: Callable[[Started], None]) -> None:
        self.name = order.name
        self._line, self._ended = line, ended
        stdin = subprocess.PIPE if order.waits else subprocess.DEVNULL
        self.process = start_process(
            lambda: subprocess.Popen(
                [sys.executable, "-m", "dps.role", *order.arguments], stdin=stdin, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, env=environment(env), cwd=order.folder or None, text=True, errors="replace",
                pass_fds=order.pass_fds, start_new_session=True,
            )
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read_output, name=f"output of {self.name}", daemon=True)
        self._reader.start()
        threading.Thread(target=self._kill_leftovers, name=f"end of {self.name}", daemon=True).start()

    def _kill_leftovers(self) -> None:
        """End the processes that the task has started and left, which would keep its output open."""
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)  # its pid stays taken until it is reaped
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for text in read_lines(self.process.stdout):
            self._line(self.name, text)
        self.process.wait()
        self.process.stdout.close()
        self._ended(self)

    def send_chief(self, chief: str) -> None:
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
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def code(self) -> int | None:
        """The exit code; negative: the signal that ended the child; None while it runs."""
        return self.process.poll()

    @property
    def pid(self) -> int:
        return self.process.pid

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the end of the child, None: without a limit; returns whether it has ended."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def tell_to_end(self) -> None:
        """Ask the child to end: a chief or ps ends at once, a program's loop after its step."""
        self.send_signal(signal.SIGTERM if runs_program(self.name) else TEARDOWN)

    def end_task(self, timeout_s: float) -> None:
        """Ask the child to end, and SIGKILL it after `timeout_s`. Blocks until it has ended."""
        self.tell_to_end()
        if not self.wait(timeout_s):
            self.send_signal(signal.SIGKILL)
            self.process.wait()
        self._reader.join(2.0)
