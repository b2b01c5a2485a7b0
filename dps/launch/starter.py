"""Starts processes from one thread that lives as long as this process."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable

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
        threading.Thread(target=self._serve, name="dps starts tasks", daemon=True).start()

    def _serve(self) -> None:
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
_starting = threading.Lock()


def started(work: Callable[[], subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """Start a process on this process's starter. Blocks."""
    global _starter
    with _starting:
        if _starter is None or _starter.pid != os.getpid():  # a fork has only its own thread
            _starter = Starter()
        starter = _starter
    return starter.start(work)
