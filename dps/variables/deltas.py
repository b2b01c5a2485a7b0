"""Encodes the changes from one version of a shard's values to another. Loads numba.

Each entry of a PackedLayout in turn has, without gaps: a bit for each block of 64 numbers that says whether any of them
changed (bit 0 of byte 0 is the first; padded to whole bytes); a mask of 64 bits for each changed block; the changed
numbers. All are little-endian.
"""

from __future__ import annotations

import numpy as np

from dps.errors import ProtocolError
from dps.kernels import deltas as kernels
from dps.transport.wire import Array
from dps.variables.packed import ChangesReader, PackedLayout

WORTH = 0.75
"""A delta is used only if it is shorter than this share of the values' bytes."""


def difference(packed: PackedLayout, before: Array, now: Array) -> Array | None:
    """The delta between two runs of a layout's bytes; None if it is nearly as long as a run."""
    found: list[Array] = []
    nbytes = 0
    for old, new in zip(packed.numbers(before), packed.numbers(now), strict=True):
        masks = np.empty(_blocks(old), np.uint64)
        values = np.empty(kernels.masks_of(masks, old, new), new.dtype)
        kernels.collect(values, new, masks)
        some = masks != 0
        found += [np.packbits(some, bitorder="little"), masks[some].view(np.uint8), values.view(np.uint8)]
        nbytes += sum(array.nbytes for array in found[-3:])
        if nbytes > WORTH * packed.nbytes:
            return None
    return np.concatenate(found) if found else np.empty(0, np.uint8)


def patch(packed: PackedLayout, run: Array, changes: Array) -> None:
    """Apply a delta to one version of a layout's bytes, in place. Raises ProtocolError for a malformed delta."""
    reader = ChangesReader(changes)
    for numbers in packed.numbers(run):
        blocks = _blocks(numbers)
        some = np.unpackbits(reader.take_bytes(-(-blocks // 8)), bitorder="little")[:blocks].astype(np.bool_)
        masks = np.zeros(blocks, np.uint64)
        masks[some] = reader.take_bytes(8 * int(np.count_nonzero(some))).copy().view(np.uint64)
        last = len(numbers) - (blocks - 1) * kernels.BLOCK
        if last < kernels.BLOCK and int(masks[-1]) >> last:
            raise ProtocolError("changes name numbers that are not there")
        count = int(np.bitwise_count(masks).sum())
        kernels.patch(numbers, masks, reader.take_bytes(count * numbers.itemsize).copy().view(numbers.dtype))
    reader.check_end()


def _blocks(numbers: Array) -> int:
    """How many blocks the numbers of an entry have."""
    return -(-len(numbers) // kernels.BLOCK)
