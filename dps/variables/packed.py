"""The format of compressed gradients and values on the wire, on which session and ps agree.

A packed part of a gradient is one array of bytes (uint8) with a form: plain values that begin with the name of the
compressor. The part has `n` elements, the first of which is element `first` of its variable; `item` is the size of the
variable's dtype. All numbers are little-endian, without gaps.

    form                        bytes
    ["float16"]                 n halves (IEEE), 2 n bytes
    ["bfloat16"]                the upper halves of n float32, 2 n bytes
    ["int8"]                    a scale of `item` bytes for each block of 1,024 elements, counted from the variable's
                                first, that the part has any of; then n int8. An element is its int8 times its scale
    ["top_k"]                   m positions within the part, rising, uint32 (uint64 where n > 2**32);
                                then m numbers of `item` bytes. All other elements are 0
    ["random_k", key, n, k]     of a variable of n elements, those at the positions that `random_positions` of
                                `dps.kernels.compress` draws from the key and that lie in the part
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dps.errors import ProtocolError
from dps.process.record import record
from dps.transport.wire import Array
from dps.variables.plan import Part, ShardLayout

ALIGN = 8


@record
class Packed:
    """A packed part of a gradient."""

    form: list[Any]
    data: Array


@record
class PackedGradient:
    """A variable's packed gradient, by the indices of its parts."""

    parts: Mapping[int, Packed]

    @property
    def nbytes(self) -> int:
        return sum(packed.data.nbytes for packed in self.parts.values())


def first_element(part: Part) -> int:
    """The index of a part's first element in its variable."""
    return part.row0 * part.row_size if part.shape else 0


Entry = tuple[Part, str, int, int]
"""A part, its cast or "", the offset of its bytes, and their number."""


class PackedLayout:
    """The layout of a shard's parts in a pull with casts: one after the other, each at a multiple of 8 bytes."""

    def __init__(self, layout: ShardLayout, wanted: list[int], packed: list[Any]) -> None:
        """`wanted`: indices of parts, or empty for all; `packed`: as in `Pull`.

        Raises ProtocolError for a part that cannot be cast."""
        forms, only = _forms(packed), set(wanted)
        self.key = repr((wanted, packed))
        """Layouts of one shard with the same key are the same."""
        entries: list[Entry] = []
        self.plain = 0
        """Bytes without the casts."""
        offset = 0
        for arena in layout.arenas:
            item = np.dtype(arena.dtype).itemsize
            for part in arena.parts:
                if only and part.index not in only:
                    continue
                form = forms.get(part.index, "")
                if form and (form not in ("float16", "bfloat16") or arena.dtype not in ("<f4", "<f8")):
                    raise ProtocolError(f"{part.name} of dtype {arena.dtype} cannot be pulled as {form!r:.40}")
                nbytes = part.size * (2 if form else item)
                self.plain += part.size * item
                entries.append((part, form, offset, nbytes))
                offset += -(-nbytes // ALIGN) * ALIGN
        self.entries = tuple(entries)
        self.nbytes = offset

    def numbers(self, run: Array) -> Iterator[Array]:
        """The bits of each entry's numbers in a run of these bytes, as unsigned integers; of none without numbers."""
        for part, _, offset, nbytes in self.entries:
            if nbytes:
                yield run[offset : offset + nbytes].view(f"u{nbytes // part.size}")


class ChangesReader:
    """Reads the changes from one version to another, from the first byte to the last."""

    def __init__(self, changes: Array) -> None:
        """`changes`: bytes, uint8 (n,)."""
        self._changes, self._at = changes, 0

    def take_bytes(self, nbytes: int) -> Array:
        """The next bytes. Raises ProtocolError if there are fewer."""
        self._at += nbytes
        if self._at > len(self._changes):
            raise ProtocolError(f"changes of {len(self._changes)} bytes end too soon")
        return self._changes[self._at - nbytes : self._at]

    @property
    def left(self) -> int:
        """How many bytes are left."""
        return len(self._changes) - self._at

    def check_end(self) -> None:
        """Raise ProtocolError if bytes are left."""
        if self.left:
            raise ProtocolError(f"changes of {len(self._changes)} bytes are {self.left} too long")


def _forms(packed: list[Any]) -> dict[int, str]:
    found: dict[int, str] = {}
    for entry in packed:
        fits = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and isinstance(entry[1], list)
        if not fits or not all(type(index) is int for index in entry[1]):
            raise ProtocolError(f"{entry!r:.80} names no cast and parts; wanted [name, [indices of parts]]")
        found |= dict.fromkeys(entry[1], entry[0])
    return found
