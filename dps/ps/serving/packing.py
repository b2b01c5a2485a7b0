"""Compresses the values of a version, once for all sessions that pull it in the same form."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from dps.kernels import compress as kernels
from dps.ps.store.store import Store
from dps.transport.wire import Array
from dps.variables.deltas import difference
from dps.variables.packed import PackedLayout
from dps.variables.plan import Part


class Packing:
    """The packed values of one shard, for the ps's thread. The arrays that it returns must never be written to."""

    def __init__(self, store: Store) -> None:
        self._store, self._tuning = store, store.runtime.tuning.serving
        self._counter = -1
        self._made: dict[str, Array] = {}
        """The values of this version, by their form."""
        self._changes: dict[tuple[str, int], Array | None] = {}
        """The changes to this version, by form and base."""
        self._kept: OrderedDict[tuple[str, int], Array] = OrderedDict()
        """The values of the last versions for which changes were asked, by form and version."""

    def pack_values(self, packed: PackedLayout, keep: bool = False) -> Array:
        """The packed bytes of the wanted values at the store's version. `keep`: `changes` will be asked for changes
        since this version."""
        if self._counter != self._store.counter or packed.key not in self._made:
            if self._counter != self._store.counter or len(self._made) >= self._tuning.packed_ways:
                self._made.clear()
                self._changes.clear()
            self._store.refresh([part.index for part, _, _, _ in packed.entries])
            made = pack(packed, lambda part: self._store.part(part).reshape(-1))
            self._counter, self._made[packed.key] = self._store.counter, made
        if keep:
            self._kept[packed.key, self._counter] = self._made[packed.key]
            if len(self._kept) > self._tuning.packed_versions:
                self._kept.popitem(last=False)
        return self._made[packed.key]

    def changes(self, packed: PackedLayout, base: int) -> Array | None:
        """The changes from the version `base` to that of the last `packed`; None if all values have to be sent."""
        before, key = self._kept.get((packed.key, base)), (packed.key, base)
        if before is None:
            return None
        if key not in self._changes:
            self._changes[key] = difference(packed, before, self._made[packed.key])
        return self._changes[key]


def pack(packed: PackedLayout, values_of: Callable[[Part], Array]) -> Array:
    """The packed bytes of parts, whose values `values_of` gives, with one dimension."""
    data = np.zeros(packed.nbytes, np.uint8)
    for part, form, offset, nbytes in packed.entries:
        values, target = values_of(part), data[offset : offset + nbytes]
        if form:
            cast = kernels.to_float16 if form == "float16" else kernels.to_bfloat16
            cast(target.view(np.uint16), values)
        else:
            target[:] = values.view(np.uint8)
    return data
