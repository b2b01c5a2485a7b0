"""Values in fewer bytes, made once for all sessions that pull the same version the same way."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from dps.kernels import compress as kernels
from dps.ps.store.store import Store
from dps.transport.wire import Array
from dps.variables.deltas import difference
from dps.variables.packed import PackedLayout


class Packing:
    """The packed values of one shard; for the ps's thread. What it returns is not to be written to, ever."""

    def __init__(self, store: Store) -> None:
        self._store, self._tuning = store, store.runtime.tuning.serving
        self._counter = -1
        self._made: OrderedDict[str, Array] = OrderedDict()
        self._changes: OrderedDict[tuple[str, int], Array | None] = OrderedDict()
        self._kept: OrderedDict[tuple[str, int], Array] = OrderedDict()

    def packed(self, packed: PackedLayout, keep: bool = False) -> Array:
        """The bytes of what is wanted at the store's version. `keep`: `changes` will be asked since this version."""
        if self._counter != self._store.counter:
            self._counter = self._store.counter
            self._made.clear()
            self._changes.clear()
        found = self._made.get(packed.key)
        if found is None:
            found = self._made[packed.key] = self._make(packed)
            _bound(self._made, self._tuning.packed_ways)
        if keep:
            self._kept[packed.key, self._counter] = found
            _bound(self._kept, self._tuning.packed_versions)
        return found

    def changes(self, packed: PackedLayout, base: int) -> Array | None:
        """What changed from the version `base` to that of the last `packed`; None: all has to be sent."""
        before, key = self._kept.get((packed.key, base)), (packed.key, base)
        if before is None:
            return None
        if key not in self._changes:
            self._changes[key] = difference(packed, before, self._made[packed.key])
            _bound(self._changes, self._tuning.packed_versions)
        return self._changes[key]

    def _make(self, packed: PackedLayout) -> Array:
        data = np.zeros(packed.nbytes, np.uint8)
        self._store.refresh([part.index for part, _, _, _ in packed.entries])
        for part, form, offset, nbytes in packed.entries:
            values, target = self._store.part(part).reshape(-1), data[offset : offset + nbytes]
            if form:
                cast = kernels.to_float16 if form == "float16" else kernels.to_bfloat16
                cast(target.view(np.uint16), values)
            else:
                target[:] = values.view(np.uint8)
        return data


def _bound(table: OrderedDict[str, Array] | OrderedDict[tuple[str, int], Array]
           | OrderedDict[tuple[str, int], Array | None], most: int) -> None:  # fmt: skip
    """Let the oldest go."""
    while len(table) > most:
        table.popitem(last=False)
