"""Reuses the memory of pulled values, and of very many variables the arrays, once nobody else refers to them.

Fresh memory costs as much as the copy into it, because the system clears each page first. An array costs 0.3 us to make
and 0.3 us to put into a dict, so the arrays of very many variables are kept as well.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.client.assembly import Assembly
from dps.transport.wire import Array
from dps.variables.plan import ShardLayout

if TYPE_CHECKING:
    from dps.kernels.headers import Headers


class Memory:
    """Memory for the values of one pull: a run of bytes for each shard."""

    def __init__(self, layouts: Mapping[int, ShardLayout]) -> None:
        self._layouts = layouts
        self._runs: dict[int, Array] = {}
        self._arrays: list[Array] = []
        self._tree: Any = None
        """Very many arrays and the tree of them, which are handed out and used again."""
        self._headers: Headers | None = None
        """Of these arrays; None if they are not kept."""

    def run(self, ps: int) -> Array:
        """The bytes of a shard; undefined at first."""
        if ps not in self._runs:
            self._runs[ps] = np.empty(self._layouts[ps].nbytes, np.uint8)
        return self._runs[ps]

    def tree(self, assembly: Assembly) -> Any:
        """The values of all shards in the user's nesting, for the caller to keep. Of very many variables it is a copy
        of the tree that was made before."""
        if self._headers is not None:
            return assembly.copy(self._tree)
        layouts = self._layouts.items()
        arrays = [part for ps, layout in layouts for part in layout.listed(layout.memories(self.run(ps)))]
        tree = assembly.values(arrays)
        if not assembly.keeps_trees:
            return tree
        from dps.kernels.headers import Headers

        headers = Headers(arrays)
        if headers.known:
            self._arrays, self._tree, self._headers = arrays, tree, headers
        return assembly.copy(tree)

    @property
    def is_free(self) -> bool:
        """Whether nobody else refers to its bytes or to one of its arrays.

        The arrays are checked first: meanwhile another thread may replace an array by a slice, which refers to the
        bytes, but no slice by an array."""
        if self._headers is not None and not self._headers.unchanged():
            return False
        kept = 0 if self._headers is None else sum(len(self._layouts[ps].indices) for ps in self._runs)
        return sum([sys.getrefcount(run) for run in self._runs.values()]) == OWN_REFERENCES * len(self._runs) + kept


def _own_references() -> int:
    return next(iter([sys.getrefcount(made) for made in [object()]]))


OWN_REFERENCES = _own_references()
"""The reference count, in a loop over a list, of an object that only the list has: as this Python counts it."""


class Recycled:
    """The memory of a session's pulls."""

    KEPT = 4

    def __init__(self) -> None:
        self._made: list[Memory] = []

    def take(self, layouts: Mapping[int, ShardLayout]) -> Memory:
        """Memory with undefined bytes. It is the caller's for as long as the caller refers to it."""
        alone = [sys.getrefcount(made) == OWN_REFERENCES for made in self._made]
        for at, is_alone in enumerate(alone):
            if is_alone and self._made[at].is_free:
                return self._made[at]
        self._made = [*self._made[1 - self.KEPT :], Memory(layouts)]
        return self._made[-1]

    def forget(self) -> None:
        """Drop all: there is another plan."""
        self._made = []
