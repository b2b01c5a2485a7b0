"""Values in fewer bytes, made once for all sessions that pull the same version the same way."""

from __future__ import annotations

import numpy as np

from dps.kernels import compress as kernels
from dps.ps.store import Store
from dps.transport.wire import Array
from dps.variables.packed import Entry, PackedLayout

KEPT = 4
"""Ways to pull one version that are kept."""


class Packing:
    """The packed values of one shard; for the ps's thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counter = -1
        self._made: dict[tuple[Entry, ...], Array] = {}

    def packed(self, packed: PackedLayout) -> Array:
        """The bytes of what is wanted at the store's version; not to be written to, ever."""
        key = packed.entries
        if self._counter != self._store.counter:
            self._counter, self._made = self._store.counter, {}
        found = self._made.get(key)
        if found is None:
            while len(self._made) >= KEPT:
                del self._made[next(iter(self._made))]
            found = self._made[key] = self._make(packed)
        return found

    def _make(self, packed: PackedLayout) -> Array:
        data = np.zeros(packed.nbytes, np.uint8)
        parts = [part.index for part, _, _, _ in packed.entries]
        self._store.refresh(parts)
        for part, form, offset, nbytes in packed.entries:
            values, target = self._store.part(part).reshape(-1), data[offset : offset + nbytes]
            if form:
                cast = kernels.to_float16 if form == "float16" else kernels.to_bfloat16
                cast(target.view(np.uint16), values)
            else:
                target[:] = values.view(np.uint8)
        return data
