"""Kernels that find the changes between two versions of the same numbers, as bits in flat unsigned arrays.

Numbers are compared in blocks of 64. A mask of 64 bits for each block says which have changed (bit 0 is the first).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dps.kernels.jit import compiled

Array: TypeAlias = npt.NDArray[Any]

BLOCK = 64


@compiled
def masks_of(masks: Array, before: Array, now: Array) -> int:
    """Fill the mask of each block (uint64); returns how many numbers have changed."""
    changed = 0
    for b in range(masks.size):
        old, new = before[b * BLOCK : (b + 1) * BLOCK], now[b * BLOCK : (b + 1) * BLOCK]
        differs = before[0] ^ before[0]
        for i in range(old.size):  # without a branch, so that most blocks cost little
            differs |= old[i] ^ new[i]
        mask = np.uint64(0)
        if differs != 0:
            for i in range(old.size):
                if old[i] != new[i]:
                    mask |= np.uint64(1) << np.uint64(i)
                    changed += 1
        masks[b] = mask
    return changed


@compiled
def collect(values: Array, now: Array, masks: Array) -> None:
    """Copy the numbers that the masks mark to `values`, in order."""
    _move(values, now, masks, True)


@compiled
def patch(numbers: Array, masks: Array, values: Array) -> None:
    """Write `values` to the numbers that the masks mark. All marked positions must be inside `numbers`."""
    _move(numbers, values, masks, False)


@compiled
def _move(to: Array, of: Array, masks: Array, together: bool) -> None:
    """Copy marked numbers from their positions in `of` to consecutive ones in `to`, or back if not `together`."""
    n = 0
    for b in range(masks.size):
        if masks[b] != 0:
            for i in range(BLOCK):
                if (masks[b] >> np.uint64(i)) & np.uint64(1) != 0:
                    to[n if together else b * BLOCK + i] = of[b * BLOCK + i if together else n]
                    n += 1
