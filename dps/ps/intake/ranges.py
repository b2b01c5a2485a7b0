"""The ranges of a run that have arrived."""

from __future__ import annotations

from bisect import bisect_left

from dps.errors import ProtocolError


class Ranges:
    """Ranges of a run in rising order, which do not overlap."""

    __slots__ = ("_got", "nbytes")

    def __init__(self) -> None:
        self._got: list[tuple[int, int]] = []
        """The first byte of a range, and its length."""
        self.nbytes = 0
        """The total number of bytes."""

    def add(self, offset: int, nbytes: int) -> int:
        """Note a range. Returns its place among the others, or -1 if it was noted before. Raises ProtocolError for a
        range that overlaps others in another way."""
        place = self.place(offset)
        after = self._got[place] if place < len(self._got) else None
        if after == (offset, nbytes) or nbytes == 0:
            return -1
        before = sum(self._got[place - 1]) if place else 0
        if before > offset or (after is not None and after[0] < offset + nbytes):
            raise ProtocolError(f"bytes {offset} to {offset + nbytes} of the push came before, cut otherwise")
        self._got.insert(place, (offset, nbytes))
        self.nbytes += nbytes
        return place

    def place(self, offset: int) -> int:
        """The number of ranges that begin before a byte."""
        return bisect_left(self._got, (offset, 0))
