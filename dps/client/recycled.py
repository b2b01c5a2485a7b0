"""Reuses the memory of pulled values, and of very many variables the arrays, once nobody else refers to them.

Fresh memory costs as much as the copy into it, because the system clears each page first. An array costs 0.3 us to make
and 0.3 us to put into a dict, so the arrays of very many variables are kept as well.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.transport.wire import Array
from dps.variables.plan import ShardLayout

if TYPE_CHECKING:
    from dps.kernels.headers import Headers

MANY = 1024
"""From this number of variables on, kernels look at all arrays in one call. They need numba, which takes 0.1 s to
load."""


class Taken:
    """Memory for the values of a shard: a run of bytes."""

    def __init__(self, layout: ShardLayout) -> None:
        self.bytes: Array = np.empty(layout.nbytes, np.uint8)
        self._layout = layout
        self._made: list[Array] = []
        self._headers: Headers | None = None
        """Of the arrays of very many parts, which are handed out and used again."""
        if len(layout.indices) >= MANY:
            self._keep_many()
        self._alone = sys.getrefcount(self.bytes)

    def _keep_many(self) -> None:
        from dps.kernels.headers import Headers

        made = self._cut(self.bytes)
        headers = Headers(made)
        if headers.known:
            self._made, self._headers = made, headers

    def _cut(self, run: Array) -> list[Array]:
        return self._layout.listed(self._layout.memories(run))

    def copied(self) -> Array:
        """The run in memory of its own."""
        return self.bytes.copy()

    def parts(self, still: bool = False) -> list[Array]:
        """The parts as arrays, in the order of the run. They are the caller's; with `still` they are read-only."""
        if still:
            run = self.bytes.view()
            run.flags.writeable = False
            return self._cut(run)
        return self._cut(self.bytes) if self._headers is None else self._made[:]

    @property
    def are_many(self) -> bool:
        """Whether `parts` returns the same arrays each time."""
        return self._headers is not None

    def in_tree(self, more: int) -> None:
        """A kept tree refers to all parts (`more` 1), or does not any more (-1)."""
        assert self._headers is not None, "the trees of few variables are not kept"
        self._headers.referred(more)

    @property
    def is_free(self) -> bool:
        """Whether nobody else refers to its bytes or to one of its arrays.

        The arrays are checked first: meanwhile another thread may replace an array by a slice, which refers to the
        bytes, but no slice by an array."""
        return (self._headers is None or self._headers.unchanged()) and sys.getrefcount(self.bytes) == self._alone


def _own_references() -> int:
    kept = [object()]
    for made in kept:
        count = sys.getrefcount(made)
    return count


OWN_REFERENCES = _own_references()
"""The reference count in `take` of an object that no pull in flight has: the list's, the loop's and getrefcount's
references, as this Python counts them."""


class Recycled:
    """The memory of a session's pulls."""

    KEPT = 4

    def __init__(self) -> None:
        self._taken: dict[int, list[Taken]] = {}
        """By the layout's identity."""
        self._trees: dict[tuple[int, ...], Any] = {}
        """Trees of very many arrays, by the identities of what these lie in."""

    def take(self, layout: ShardLayout) -> Taken:
        """Memory with undefined bytes. It is the caller's for as long as the caller refers to it."""
        kept = self._taken.setdefault(id(layout), [])
        for made in kept:
            if sys.getrefcount(made) == OWN_REFERENCES and made.is_free:
                return made
        made = Taken(layout)
        if len(kept) == self.KEPT:
            self._drop_trees(id(kept[0]))
            del kept[0]
        kept.append(made)
        return made

    def tree(self, found: Sequence[Taken], build: Callable[[Sequence[Array]], Any], copy: Callable[[Any], Any]) -> Any:
        """The tree that `build` makes of all parts, for the caller to keep. Of very many parts it is a `copy` of the
        tree that was made of them before."""
        if not all(taken.are_many and self._keeps(taken) for taken in found):
            return build([part for taken in found for part in taken.parts()])
        key = tuple(map(id, found))
        if key not in self._trees:
            if len(self._trees) >= self.KEPT:
                self._drop_trees(*next(iter(self._trees)))
            self._trees[key] = build([part for taken in found for part in taken.parts()])
            for taken in found:
                taken.in_tree(1)
        return copy(self._trees[key])

    def _keeps(self, taken: Taken) -> bool:
        """Whether this is still kept. Memory that was replaced during its pull is not: it goes with its arrays."""
        return any(taken is made for made in itertools.chain.from_iterable(self._taken.values()))

    def forget(self) -> None:
        """Drop all: there is another plan."""
        self._taken, self._trees = {}, {}

    def _drop_trees(self, *of: int) -> None:
        """Drop the trees in which all of these are."""
        for key in [key for key in self._trees if set(of) <= set(key)]:
            for taken in itertools.chain.from_iterable(self._taken.values()):
                if id(taken) in key:
                    taken.in_tree(-1)  # first: after Ctrl-C in between, the arrays count as in use
            del self._trees[key]
