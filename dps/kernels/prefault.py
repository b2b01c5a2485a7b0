"""A loop that prefaults memory without the GIL: a thread that needed it for each request would make others wait, above
all when it has it and loses its core.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from dps.kernels.jit import compiled

POPULATE_WRITE = np.int32(23)
"""Of madvise(2), since Linux 5.14: have pages as a write would have them, whatever they hold."""
PAGE_NBYTES, HUGE_NBYTES = np.int64(1 << 12), np.int64(1 << 21)
MOST_REFUSED = 1000

_read: Any = types.ExternalFunction("read", types.intp(types.int32, types.intp, types.uintp))
_madvise: Any = types.ExternalFunction("madvise", types.int32(types.intp, types.uintp, types.int32))


@compiled
def prefault_ranges(descriptor: Any, request: Any) -> int:
    """Read pairs of int64 from a pipe, an address and a number of bytes, until it ends, and prefault the whole pages
    there, a huge page at a time. `request`: int64 (2,). A range that is no memory any more does no harm. Returns how
    many calls were refused; after MOST_REFUSED of them it ends, too."""
    refused = 0
    while refused < MOST_REFUSED:
        came = _read(descriptor, np.int64(request.ctypes.data), 16)
        if came == 0:
            break
        if came != 16:  # a signal
            refused += 1
            continue
        first, end = -(-request[0] // PAGE_NBYTES) * PAGE_NBYTES, request[0] + request[1]
        while first + PAGE_NBYTES <= end:
            stop = min(end, (first // HUGE_NBYTES + 1) * HUGE_NBYTES) // PAGE_NBYTES * PAGE_NBYTES
            refused += _madvise(first, stop - first, POPULATE_WRITE) != 0
            first = stop
    return refused
