"""Versions that readers on this machine read in place: each is a lease, under the number of the pull that asked."""

from __future__ import annotations

from collections import OrderedDict

from dps.ps.store import Lease, Store

REMEMBERED = 64
"""Numbers of returned leases that are kept for each session: a pull that comes again late gets nothing."""


class Lending:
    """The leases of one shard's sessions. A session that ends, or is lost, gives all of its own back."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: dict[tuple[int, int], Lease] = {}
        self._over: dict[int, OrderedDict[int, None]] = {}
        self._below: dict[int, int] = {}
        """For each session: under lower numbers it reads nothing any more."""

    def lend(self, incarnation: int, number: int) -> Lease | None:
        """A lease for a pull; None when there is none to be had."""
        lease = self._store.lease(shared=True)
        if lease is not None:
            self._open[incarnation, number] = lease
        return lease

    def lent(self, incarnation: int, number: int) -> Lease | None:
        """What a pull was lent and has not returned."""
        return self._open.get((incarnation, number))

    def is_over(self, incarnation: int, number: int) -> bool:
        """Whether this pull has had its answer and has returned it."""
        return number < self._below.get(incarnation, 0) or number in self._over.get(incarnation, ())

    def give_back_below(self, incarnation: int, number: int) -> None:
        """A session has told that it reads nothing under lower numbers."""
        if number > self._below.get(incarnation, 0):
            self._below[incarnation] = number
            for key in [key for key in self._open if key[0] == incarnation and key[1] < number]:
                self._open.pop(key).release()

    def give_back(self, incarnation: int, number: int) -> None:
        """End a lease; what was returned before is left."""
        lease = self._open.pop((incarnation, number), None)
        if lease is not None:
            lease.release()
        over = self._over.setdefault(incarnation, OrderedDict())
        over[number] = None
        while len(over) > REMEMBERED:
            over.popitem(last=False)

    def forget(self, incarnation: int) -> None:
        """A session has ended, or was taken for lost and reads on."""
        for key in [key for key in self._open if key[0] == incarnation]:
            self._open.pop(key).release(abandon=True)
        self._over.pop(incarnation, None)
        self._below.pop(incarnation, None)
