"""Reuses the memory of pulled values, once nobody else refers to it.

Fresh memory costs as much as the copy into it, because the system clears each page first.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from dps.client.assembly import Assembly
from dps.transport.wire import Array
from dps.variables.plan import ShardLayout


class Memory:
    """Memory for the values of one pull: a run of bytes for each shard."""

    def __init__(self, layouts: Mapping[int, ShardLayout]) -> None:
        self._layouts = layouts
        self._runs: dict[int, Array] = {}

    def run(self, ps: int) -> Array:
        """The bytes of a shard; undefined at first."""
        if ps not in self._runs:
            self._runs[ps] = np.empty(self._layouts[ps].nbytes, np.uint8)
        return self._runs[ps]

    def tree(self, assembly: Assembly) -> Any:
        """The values of all shards in the user's nesting, for the caller to keep."""
        layouts = self._layouts.items()
        return assembly.values(
            [part for ps, layout in layouts for part in layout.listed(layout.memories(self.run(ps)))]
        )

    @property
    def is_free(self) -> bool:
        """Whether nobody else refers to its bytes: each array of values, and each slice of one, does."""
        return sum([sys.getrefcount(run) for run in self._runs.values()]) == OWN_REFERENCES * len(self._runs)


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
