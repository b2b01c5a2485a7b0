"""Kernels: compiled by numba, for CPUs and GPUs."""

import os

from dps.errors import ConfigError


def _check_threads() -> None:
    """ConfigError for a NUMBA_NUM_THREADS that numba cannot use: its own error, at its import, does not name it."""
    given = os.environ.get("NUMBA_NUM_THREADS", "").strip() or "1"
    if not (given.isdecimal() and int(given)):
        raise ConfigError(
            f"got NUMBA_NUM_THREADS={given!r:.100}, wanted a whole number of threads from 1; numba reads it: set 1, or "
            "leave it out"
        )


_check_threads()
