"""Kernels that count the pushes of keys that have no row yet, in buckets of eight keys.

The memory is `codes` (buckets, 8) int64 and `counts` (buckets, 8) uint8; a count of 0 is an empty place. In a bucket
the keys stand in the order in which they were counted last, the newest first, and the empty places are behind them. A
new key in a full bucket takes the place of the oldest one. So what a bucket holds follows from the pushes of its keys
alone.

Each of `per` buckets of a slice has a range of the 32 bits of a code below those of the slice. Codes are spread evenly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.kernels.jit import compiled
from dps.kernels.rows import prefetch_line

WIDTH, NBYTES = 8, 64
PREFETCHED = 16
"""So many keys ahead the bucket of a key is prefetched."""
S52, S20, S32, LOW32, HALF = np.int64(52), np.int64(20), np.int64(32), np.int64(0xFFFFFFFF), np.int64(2048)


@compiled
def bucket_of(code: Any, first: Any, per: Any) -> Any:
    """The bucket of a code. `first`: the first slice that is here."""
    return ((code >> S52) + HALF - first) * per + ((((code >> S20) & LOW32) * per) >> S32)


@compiled
def place_in(codes: Any, counts: Any, bucket: Any, code: Any) -> Any:
    """The place of a code in its bucket; WIDTH if it is not there."""
    for place in range(WIDTH):
        if counts[bucket, place] != 0 and codes[bucket, place] == code:
            return place
    return WIDTH


@compiled
def look_up(totals: Any, wanted: Any, first: Any, per: Any, codes: Any, counts: Any) -> None:
    """Add the count of each of `wanted`, int64 (n,), to `totals`, int64 (n,)."""
    for i in range(wanted.size):
        bucket = bucket_of(wanted[i], first, per)
        place = place_in(codes, counts, bucket, wanted[i])
        if place < WIDTH:
            totals[i] += counts[bucket, place]


@compiled
def count(reached: Any, counted: Any, pushes: Any, least: Any, first: Any, per: Any, codes: Any, counts: Any) -> Any:
    """Count `pushes[i]` pushes, int64 (n,), of each code in `counted`, int64 (n,), in this order. Those that reach
    `least` leave the memory, and `reached[i]`, bool (n,), says so. Returns how many more places have a code after that
    than before."""
    start, more = np.int64(codes.ctypes.data), 0
    for i in range(counted.size):
        if i + PREFETCHED < counted.size:
            ahead = bucket_of(counted[i + PREFETCHED], first, per)
            prefetch_line(start + ahead * NBYTES)  # type: ignore[call-arg]  # as in dps.kernels.rows
        code = counted[i]
        bucket = bucket_of(code, first, per)
        place = place_in(codes, counts, bucket, code)
        total = pushes[i] + (np.int64(counts[bucket, place]) if place < WIDTH else np.int64(0))
        reached[i] = total >= least
        if total >= least:
            if place < WIDTH:
                more -= 1
                for at in range(place, WIDTH - 1):
                    codes[bucket, at] = codes[bucket, at + 1]
                    counts[bucket, at] = counts[bucket, at + 1]
                counts[bucket, WIDTH - 1] = 0
        else:
            more += place == WIDTH and counts[bucket, WIDTH - 1] == 0
            for at in range(min(place, WIDTH - 1), 0, -1):
                codes[bucket, at] = codes[bucket, at - 1]
                counts[bucket, at] = counts[bucket, at - 1]
            codes[bucket, 0] = code
            counts[bucket, 0] = total
    return more
