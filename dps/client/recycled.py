"""Memory for pulled values that is used again when nobody refers to it any more, and with it the arrays in it.

Fresh memory costs as much as the copy into it: each of its pages has to be found and cleared first. Arrays cost Python
0.3 us each to make and 0.3 us to find a place for in a dict, so those of very many variables are kept as well.
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
"""Variables from which on it pays to look at their arrays all at once, for which a program has to load numba."""


class Taken:
    """A run of bytes that a shard's values are put into."""

    def __init__(self, layout: ShardLayout) -> None:
        self.bytes: Array = np.empty(layout.nbytes, np.uint8)
        self._layout = layout
        self._made: list[Array] = []
        self._headers: Headers | None = None
        """Of very many parts, which are given away and come again."""
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
        """Its parts in the order of the run, as arrays whose owner may do with them whatever he likes, or with `still`
        only read them."""
        if still:
            run = self.bytes.view()
            run.flags.writeable = False
            return self._cut(run)
        return self._cut(self.bytes) if self._headers is None else self._made[:]

    @property
    def are_many(self) -> bool:
        """Whether `parts` are the same arrays again, until somebody has done something with them."""
        return self._headers is not None

    def in_tree(self, more: int) -> None:
        """All parts have been put into a tree that is kept, or into one less."""
        assert self._headers is not None, "the trees of few variables are not kept"
        self._headers.referred(more)

    @property
    def is_free(self) -> bool:
        """Whether nobody else refers to its bytes, or to one of the arrays in them. The arrays are looked at first: in
        another thread one may become a slice, which refers to the bytes alone, but no slice an array."""
        return (self._headers is None or self._headers.unchanged()) and sys.getrefcount(self.bytes) == self._alone


def _own_references() -> int:
    kept = [object()]
    for made in kept:
        count = sys.getrefcount(made)
    return count


OWN_REFERENCES = _own_references()
"""To what no pull on its way has, where `take` counts them: the list's, the loop's and getrefcount's, as this Python
counts."""


class Recycled:
    """What a session's pulls have been put into."""

    KEPT = 4

    def __init__(self) -> None:
        self._taken: dict[int, list[Taken]] = {}
        """By the layout's identity."""
        self._trees: dict[tuple[int, ...], Any] = {}
        """Trees of very many arrays, by the identities of what these lie in."""

    def take(self, layout: ShardLayout) -> Taken:
        """A run, its bytes undefined, for the caller to keep for as long as it likes."""
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
        """What `build` makes of all parts of all that was taken, for the caller to keep; of very many it is a `copy` of
        what was made of them before."""
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
        """Not what had to give way while its pull was on its way: it is gone with its arrays."""
        return any(taken is made for made in itertools.chain.from_iterable(self._taken.values()))

    def forget(self) -> None:
        """Another plan has been agreed on."""
        self._taken, self._trees = {}, {}

    def _drop_trees(self, *of: int) -> None:
        """Those in which there is all of this."""
        for key in [key for key in self._trees if set(of) <= set(key)]:
            for taken in itertools.chain.from_iterable(self._taken.values()):
                if id(taken) in key:
                    taken.in_tree(-1)  # before it is so: after Ctrl-C in between the arrays count as somebody's
            del self._trees[key]
