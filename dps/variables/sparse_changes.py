"""Encodes the changes from one published version of a shard's values to another, where few numbers changed.

For each entry of a PackedLayout in turn: how many of its numbers changed and how many bytes their gaps take (uint32
each); the gaps; the changed numbers. A gap is how many unchanged numbers lie before a changed one: as many bytes of 255
as it has whole 255s, then the rest, one byte below 255. All are little-endian.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.errors import ProtocolError
from dps.transport.wire import Array
from dps.variables.packed import ChangesReader, PackedLayout

FULL = 255
_HEAD = np.dtype("<u4")


def difference(packed: PackedLayout, before: Array, now: Array) -> Array:
    """The changes between two runs of a layout's bytes."""
    found: list[Array] = []
    for old, new in zip(packed.numbers(before), packed.numbers(now), strict=True):
        at = np.flatnonzero(old != new)
        gaps = _gaps(at)
        found += [np.array([len(at), len(gaps)], _HEAD).view(np.uint8), gaps, new[at].view(np.uint8)]
    return np.concatenate(found) if found else np.empty(0, np.uint8)


def patch(packed: PackedLayout, run: Array, changes: Array) -> None:
    """Apply changes to one version of a layout's bytes, in place. Raises ProtocolError for malformed ones."""
    reader = ChangesReader(changes)
    for numbers in packed.numbers(run):
        count, nbytes = (int(number) for number in reader.take_bytes(2 * _HEAD.itemsize).copy().view(_HEAD))
        places = _places(reader.take_bytes(nbytes))
        if len(places) != count or (count and places[-1] >= len(numbers)):
            raise ProtocolError("changes name numbers that are not there")
        numbers[places] = reader.take_bytes(count * numbers.itemsize).copy().view(numbers.dtype)
    reader.check_end()


def _gaps(places: Array) -> Array:
    """The bytes of the gaps before rising places."""
    gaps = np.diff(places, prepend=-1) - 1
    whole = gaps // FULL
    found = np.full(len(places) + int(whole.sum()), FULL, np.uint8)
    found[np.cumsum(whole + 1) - 1] = gaps % FULL
    return found


def _places(gaps: Array) -> Any:
    """The places of gaps that are bytes. Raises ProtocolError for bytes that end within a gap."""
    if len(gaps) and gaps[-1] == FULL:
        raise ProtocolError("changes end within a gap")
    ends = np.flatnonzero(gaps != FULL)
    return np.cumsum(gaps, dtype=np.int64)[ends] + np.arange(len(ends))
