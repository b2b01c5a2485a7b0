"""A version that is not overwritten while somebody reads it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType

from dps.ps.store.arena import Buffer
from dps.transport.wire import Array


class Hold:
    """One version of a shard, for a reader: answers on their way, and readers on this machine who read in place.

    Nobody writes to its values until `release`, which any thread may call, as may the end of a `with` block.
    """

    def __init__(
        self, counter: int, step: int, arrays: list[Array], memories: list[list[int]], buffers: Sequence[Buffer],
        lock: threading.Lock,
    ) -> None:  # fmt: skip
        """`arrays`: the values of each arena, read-only, and `memories`: where others on this machine find them.
        `buffers`: those to hold, guarded by `lock`, which the caller has; none if the arrays are copies."""
        self.counter, self.step, self.arrays, self.memories = counter, step, arrays, memories
        self._buffers, self._lock = buffers, lock
        for buffer in buffers:
            buffer.leases += 1

    def release(self, abandon: bool = False) -> None:
        """Let the buffers go; a second call does nothing. `abandon`: the reader was given up and may read on, so they
        are never written again, and other memory takes their place."""
        with self._lock:
            buffers, self._buffers = self._buffers, ()
            for buffer in buffers:
                buffer.leases -= 1
                buffer.abandoned |= abandon

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()
