"""Counts the pushes of keys that have no row yet, in a memory whose size follows from the table's capacity alone."""

from __future__ import annotations

import math

import numpy as np

from dps.kernels import key_counts as kernels
from dps.ps.store.gradients import RowGradient
from dps.transport.wire import Array
from dps.variables.tables import SLICES, TablePart


def pushes_of(gradient: RowGradient) -> Array:
    """How many pushes have each row of a gradient, int64 (n,)."""
    return np.ones(gradient.rows.size, np.int64) if gradient.pushes is None else gradient.pushes


class KeyCounts:
    """The keys of one ps that were pushed fewer than `admit` times, and how often each was: at least as many keys as
    the capacity, of which one that is counted anew takes the place of the oldest one of its bucket. The counts are
    exact, and belong to a slice each: so they are the same on any number of ps.

    Used by the ps's thread. Codes are int64 (n,), distinct, and of the part.
    """

    def __init__(self, part: TablePart) -> None:
        self._least, self._first = np.int64(part.spec.admit), np.int64(part.first)
        self._per = np.int64(math.ceil(part.spec.capacity / SLICES / kernels.WIDTH))
        shape = (part.end - part.first) * int(self._per), kernels.WIDTH
        self._codes, self._counts = np.zeros(shape, np.int64), np.zeros(shape, np.uint8)
        self.keys = 0
        """How many keys have a count."""

    @property
    def nbytes(self) -> int:
        """Bytes of the counts that are there, with their keys."""
        return self.keys * (self._codes.itemsize + self._counts.itemsize)

    def would_admit(self, codes: Array, pushes: Array) -> Array:
        """Which of these codes so many more pushes, int64 (n,), may admit, bool (n,). `count` admits no others, and
        those alone that others of the same push do not make forgotten."""
        totals = pushes.copy()
        kernels.look_up(totals, codes, self._first, self._per, self._codes, self._counts)
        admitted: Array = totals >= self._least
        return admitted

    def count(self, codes: Array, pushes: Array) -> Array:
        """Count so many pushes, int64 (n,), of codes without a row. Which of them are admitted, bool (n,): nothing is
        kept of those."""
        admitted = np.empty(codes.size, bool)
        self._count(admitted, codes, pushes, self._least)
        return admitted

    def copy(self) -> tuple[Array, Array]:
        """All codes with a count, int64 (n,), and their counts, uint8 (n,): those of a bucket from the oldest one on,
        so that `load` makes the same buckets of them."""
        codes, counts = self._codes[:, ::-1], self._counts[:, ::-1]
        there = counts != 0
        return codes[there], counts[there]

    def load(self, codes: Array, counts: Array) -> None:
        """Add what another part has copied, in its order."""
        most = np.int64(np.iinfo(np.int64).max)
        self._count(np.empty(codes.size, bool), codes, counts.astype(np.int64), most)

    def _count(self, reached: Array, codes: Array, pushes: Array, least: np.int64) -> None:
        about = self._first, self._per, self._codes, self._counts
        self.keys += kernels.count(reached, codes, pushes, least, *about)
