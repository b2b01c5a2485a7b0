"""Settings of this process that are made once, by its entry point."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

stop_requested = threading.Event()
"""Set by the first Ctrl-C (or SIGTERM): training loops drain, `session.should_stop()` is true."""

session_opened = threading.Event()
"""Set when this process has joined a run: the chief hears of its end from the session."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""How many threads numeric libraries use; the launcher sets those that are unset to 1."""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a launched task: one thread for each numeric library unless it says otherwise."""
    threads = {name: "1" for name in THREADS if name not in os.environ}
    own = {"DPS_LAUNCHED": "1", "DPS_LAUNCHER": str(os.getpid()), "PYTHONUNBUFFERED": "1"}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("DPS_") and k != "TF_CONFIG"}
    return {**inherited, **threads, **own, **(extra or {})}
