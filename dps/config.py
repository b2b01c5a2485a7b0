"""Settings of this process that are made once, by its entry point."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

stop_requested = threading.Event()
"""Set by the first Ctrl-C (or SIGTERM): training loops drain, `session.should_stop()` is true."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""How many threads numeric libraries use; the launcher sets those that are unset to 1."""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a launched task: one thread for each numeric library unless it says otherwise."""
    threads = {name: "1" for name in THREADS if name not in os.environ}
    own = {"DPS_LAUNCHED": "1", "DPS_LAUNCHER": str(os.getpid()), "PYTHONUNBUFFERED": "1"}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("DPS_") and k != "TF_CONFIG"}
    return {**inherited, **threads, **own, **(extra or {})}


class _Starter:
    """Starts processes on a thread that lives as long as this process.

    A launched task dies with its launcher, and Linux takes for that the thread that started it (prctl(2),
    PR_SET_PDEATHSIG): a cluster that was started on a short thread would die with that thread.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._orders: queue.Queue[tuple[Callable[[], subprocess.Popen[str]], Future[subprocess.Popen[str]]]]
        self._orders = queue.Queue()
        threading.Thread(target=self._serve, name="dps starts tasks", daemon=True).start()

    def _serve(self) -> None:
        while True:
            work, started = self._orders.get()
            try:
                started.set_result(work())
            except BaseException as error:
                started.set_exception(error)

    def start(self, work: Callable[[], subprocess.Popen[str]]) -> subprocess.Popen[str]:
        started: Future[subprocess.Popen[str]] = Future()
        self._orders.put((work, started))
        return started.result()


_starter: _Starter | None = None
_starting = threading.Lock()


def _on_the_starter(work: Callable[[], subprocess.Popen[str]]) -> subprocess.Popen[str]:
    global _starter
    with _starting:
        if _starter is None or _starter.pid != os.getpid():  # a fork has no threads but its own
            _starter = _Starter()
        starter = _starter
    return starter.start(work)
