"""Prefaults memory before it is used: a thread of the process has the system make the pages that come next.

The first use of a huge page takes 0.4 ms, for it is filled with zeros, and up to 4 ms on a virtual machine that has to
get it from its host. A push that adds rows would wait for that. The thread changes no contents, so nothing has to be
locked, and memory that it has not reached in time is only slower to use.
"""

from __future__ import annotations

import functools
import os
import struct
import sys
import threading

import numpy as np

from dps.kernels import prefault as kernels
from dps.transport.wire import Array

PAGE_NBYTES, HUGE_NBYTES = int(kernels.PAGE_NBYTES), int(kernels.HUGE_NBYTES)
LEAST_NBYTES = 2 * HUGE_NBYTES
"""Smaller arrays are left alone: numpy asks for huge pages from here on."""
AHEAD_NBYTES = 4 * HUGE_NBYTES
"""So much memory beyond the end of what is used is prefaulted: several pushes' worth."""


@functools.cache
def can_prefault() -> bool:
    """Whether the system prefaults memory: Linux 5.14 and later do. Loads the kernel."""
    if sys.platform != "linux":
        return False
    page = np.zeros(2 * PAGE_NBYTES, np.uint8)
    reading, writing = os.pipe()
    with open(reading, "rb", 0), open(writing, "wb", 0) as requests:
        requests.write(struct.pack("qq", page.ctypes.data, page.nbytes))
        requests.close()
        return kernels.prefault_ranges(np.int32(reading), np.zeros(2, np.int64)) == 0


@functools.cache
def _requests(process: int) -> int:
    """The end of a pipe to the thread of this process, which this starts. Writing never blocks. `process`: its number;
    a forked child has no thread yet."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    arguments = np.int32(reading), np.zeros(2, np.int64)
    threading.Thread(target=kernels.prefault_ranges, args=arguments, name="dps prefaults memory", daemon=True).start()
    return writing


class MemoryAhead:
    """An array that is used from its beginning on, C-contiguous and in memory that nobody has touched. For one
    thread."""

    def __init__(self, array: Array) -> None:
        self._bytes = array.reshape(-1).view(np.uint8)
        self._row_nbytes = array[:1].nbytes
        self._is_large = self._bytes.size >= LEAST_NBYTES
        self._asked = 0
        """The thread has been asked for the bytes before this one."""

    def use_rows(self, rows: int) -> None:
        """The first `rows` rows are used. Asks for the memory of those that may come next."""
        self.prepare(min(self._bytes.size, rows * self._row_nbytes + AHEAD_NBYTES))

    def prepare(self, end: int) -> bool:
        """Ask for the memory before byte `end`, a huge page and more at a time. Returns False, and does nothing, for a
        small array, or if the system has no way to do it."""
        if not (self._is_large and can_prefault()):
            return False
        if end - self._asked >= HUGE_NBYTES or (end > self._asked and end == self._bytes.size):
            address: int = self._bytes.ctypes.data
            try:
                os.write(_requests(os.getpid()), struct.pack("qq", address + self._asked, end - self._asked))
            except BlockingIOError:  # the thread is far behind
                pass
            self._asked = end
        return True
