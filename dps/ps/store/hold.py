"""A version that is not overwritten while somebody reads it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from dps.transport.endpoint import Memory
from dps.transport.wire import Array

_counting = threading.Lock()
"""Guards the lease counts of buffers: the ps's thread takes leases, and any thread may release them."""


@dataclass(slots=True)
class Buffer:
    """One copy of the values. `missed` are the element ranges in which it is older than the current one."""

    values: Array
    given: Array
    """The values as they are given to kernels."""
    memory: Memory | None = None
    """The memory that readers on this machine attach; None if it cannot be shared."""
    leases: int = 0
    abandoned: bool = False
    """Whether a reader in another process that was given up may still read it. Then it is never written again."""
    missed: list[tuple[int, int]] | None = field(default_factory=list)
    """None: all elements."""
    drafted: bool = False
    """Whether a draft that may still be dropped is written to it. Then no other update uses it."""

    @property
    def is_free(self) -> bool:
        """Whether nobody reads it, and no reversible draft writes it. This may be true of the current buffer, too,
        which is not one to write the next version to."""
        return self.leases == 0 and not self.drafted


class Hold:
    """One version of a shard, for a reader: an answer in flight, or a reader on this machine that reads in place.
    Nobody writes to its values until `release`, which any thread may call."""

    __slots__ = ("__weakref__", "_buffers", "arrays", "counter", "memories", "step")

    def __init__(
        self, counter: int, step: int, arrays: Sequence[Array], memories: list[list[int]],
        buffers: Sequence[Buffer] = (),
    ) -> None:  # fmt: skip
        """`arrays`: the values of each arena, read-only. `memories`: the names by which processes on this machine
        attach them. `buffers`: those to hold; none if the arrays are copies. For the ps's thread."""
        self.counter, self.step, self.arrays, self.memories = counter, step, arrays, memories
        self._buffers = buffers
        with _counting:
            for buffer in buffers:
                buffer.leases += 1

    def release(self, abandon: bool = False) -> None:
        """Release the buffers; a second call does nothing. `abandon`: the reader was given up and may still read, so
        these buffers are never written again, and new memory takes their place."""
        with _counting:
            buffers, self._buffers = self._buffers, ()
            for buffer in buffers:
                buffer.leases -= 1
                buffer.abandoned |= abandon
