"""Settings of this process that are made once, by its entry point."""

from __future__ import annotations

import threading

stop_requested = threading.Event()
"""Set by the first Ctrl-C (or SIGTERM): training loops drain, `session.should_stop()` is true."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""How many threads numeric libraries use; the launcher sets those that are unset to 1."""
