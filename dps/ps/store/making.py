"""Makes the first values of a shard's variables that have an initializer, a block at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from dps.checkpoint.source import VariableSource
from dps.errors import ConfigError
from dps.kernels.first_values import FirstValues
from dps.ps.store.arena import ArenaMemory, rows_of
from dps.training.initializers import FromFile, from_wire

if TYPE_CHECKING:
    from dps.checkpoint import Storage
    from dps.ps.store.store import Store
    from dps.variables.columns import VariableSpec
    from dps.variables.plan import Part, Plan


def check_room(nbytes: int, who: str) -> None:
    """Raise ConfigError for a shard that is larger than the machine's memory. A few bytes describe it, and a mistake in
    a shape must not end the ps: Linux would kill it."""
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else sys.maxsize
    if nbytes > has:
        raise ConfigError(
            f"{who} would hold variables of {nbytes / 1e9:,.1f} GB, and its machine has {has / 1e9:,.1f} GB of memory; "
            "use more ps with a partitioner, or a smaller shape"
        )


class Making:
    """The first values that are still to be made. The ps's thread makes them, and handles messages between two
    blocks."""

    def __init__(self, store: Store, plan: Plan, storage: Storage) -> None:
        """`storage`: where files of `FromFile` are read."""
        self._store, self._plan, self._storage = store, plan, storage
        self._block_nbytes = store.runtime.tuning.store.made_nbytes
        found = [
            (memory, part, start, plan.variables[part.variable])
            for memory in store.arenas
            for part, start in zip(memory.arena.parts, memory.arena.starts, strict=True)
        ]
        self._parts = [entry for entry in found if entry[3].init is not None]
        self._nbytes, self._done = sum(p.size * m.arena.itemsize for m, p, _, _ in self._parts), 0
        self._blocks = self._all_blocks()

    def make_block(self) -> bool:
        """Make the next block, of one variable or of many small ones; returns False when all values are made. Raises
        ConfigError or CheckpointError for a file that does not have them."""
        until = self._done + self._block_nbytes
        while self._done < until:
            made = next(self._blocks, None)
            if made is None:
                return False
            self._done += made
        return True

    @property
    def text(self) -> str:
        """How far it is, for people."""
        return f"makes first values, {100 * self._done // max(1, self._nbytes)} % of {self._nbytes / 1e6:.1f} MB"

    def _all_blocks(self) -> Iterator[int]:
        """Makes values of one variable each time it is asked, at most a block, and yields their bytes."""
        for memory, part, start, spec in self._parts:
            init, itemsize = from_wire(spec.init), memory.arena.itemsize
            blocks = (
                self._read(memory, part, start, spec, init)
                if isinstance(init, FromFile)
                else self._compute(memory, part, start, FirstValues(init, spec.name, spec.shape, spec.dtype))
            )
            for size in blocks:
                yield size * itemsize

    def _compute(self, memory: ArenaMemory, part: Part, start: int, values: FirstValues) -> Iterator[int]:
        if values.are_zeros:
            yield part.size
            return
        block = max(1, self._block_nbytes // memory.arena.itemsize)
        before = part.row0 * part.row_size
        for at in range(0, part.size, block):
            size = min(block, part.size - at)
            memory.make_values(start + at, size, values.fill, before + at)
            yield size

    def _read(self, memory: ArenaMemory, part: Part, start: int, spec: VariableSpec, init: FromFile) -> Iterator[int]:
        dtype = np.dtype(spec.dtype).name
        source = VariableSource(self._storage, init.path, init.name or spec.name, spec.name, spec.shape, dtype)
        rows, row_size = rows_of(part), part.row_size
        block = max(1, self._block_nbytes // max(1, row_size * memory.arena.itemsize))
        for row in range(0, rows, block):
            values = source.read(part.row0 + row, min(block, rows - row))
            memory.fill_values(start + row * row_size, values)
            yield values.size
