"""Counts the processors that are idle now."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

from dps.config import cores

LOADAVG = "/proc/loadavg"
"""On Linux: load over 1, 5 and 15 minutes, then "running/all" tasks of the machine now, then a process number; see
proc_loadavg(5). The kernel answers in 2 µs, without an average: running are those that have a processor or want one."""


def free_cores() -> Callable[[], int] | None:
    """A function that returns how many processors are idle: those that this process may use, less the tasks that run.
    The caller's own thread is one of these tasks. Below 0: some tasks wait for a processor. If a process may use only
    some processors, tasks on the others are counted, too, so the result is never too high. None if the system cannot
    tell.
    """
    descriptor, own = _loadavg(), cores()
    if descriptor is None:
        return None

    def free() -> int:
        return own - running(os.pread(descriptor, 64, 0))

    return free


def running(text: bytes) -> int:
    """The number of tasks that run, according to /proc/loadavg."""
    return int(text.split(b"/", 1)[0].rsplit(b" ", 1)[1])


@functools.cache
def _loadavg() -> int | None:
    """A descriptor that stays open, because its users do not end at the same time. None if the system's count does not
    have at least this thread in it, as in containers that make the file up."""
    try:
        descriptor = os.open(LOADAVG, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if running(os.pread(descriptor, 64, 0)) >= 1:
            return descriptor
    except (OSError, ValueError, IndexError, AttributeError):  # no pread on Windows, which has no such file either
        pass
    os.close(descriptor)
    return None
