"""A push that is applied while it arrives: each piece, hot in the cache, goes into a version that nobody reads yet.

It becomes the shard's version when all of the push is there and finite, and is as if it had never been when it does not
come to that. Only where the shard has stayed what it was meanwhile; so the bits are those of one pass at the end.
"""

from __future__ import annotations

from collections.abc import Mapping

from dps.ps.store.arena import ArenaMemory
from dps.ps.store.store import Store
from dps.transport.tuning import ORDINARY
from dps.transport.wire import Array


class Worth:
    """Whether to apply the next push ahead. Each time that another one came in between, which makes the work be for
    nothing, twice as many are left alone; each time that none did, half as many."""

    def __init__(self, most: int = ORDINARY.store.most_skipped) -> None:
        """`most`: how many are left alone at most."""
        self._most, self._skips, self._left = most, 0, 0

    def a_try(self) -> bool:
        """Whether this push is to be tried."""
        self._left -= self._left > 0
        return self._left == 0

    def note(self, good: bool) -> None:
        """What came of a try."""
        self._skips = self._skips // 2 if good else min(self._most, 2 * self._skips + 1)
        self._left = self._skips + 1 if self._skips else 0


class Ahead:
    """One update of all of a shard under way. At most one per shard; used by the ps's thread."""

    def __init__(self, store: Store, aside: dict[int, int], step: int, scale: float) -> None:
        self._store, self._aside, self._step, self._scale = store, aside, step, scale
        self._of = (store.counter, store.step)

    @staticmethod
    def of(store: Store, step: int, scale: float) -> Ahead | None:
        """An update that will be step `step`, its rate multiplied by `scale`; None where it cannot be made ahead."""
        if store.layout.gradient_nbytes < store.tuning.ahead_pieces * store.runtime.tuning.piece_nbytes:
            return None
        aside = store.set_aside()
        return None if aside is None else Ahead(store, aside, step, scale)

    @property
    def buffers(self) -> Mapping[int, int]:
        """Those that it is written to, by arena."""
        return self._aside

    @property
    def holds(self) -> bool:
        """Whether the shard still is what the update is made from."""
        return self._of == (self._store.counter, self._store.step)

    def add(self, number: int, start: int, gradient: Array, check: bool) -> bool:
        """Take a piece of the gradient of arena `number`, from element `start` on; False where it is not finite, and
        that was to be looked for (`check`): what was added is of no use then."""
        store, index = self._store, self._aside[number]
        memory: ArenaMemory = store.arenas[number]
        if check and not memory.looks_itself(index) and not memory.is_finite(gradient):
            return False
        return store.write(memory, index, start, gradient, self._step, self._scale) or not check

    def publish(self) -> None:
        """All of the gradient has been added, and was finite: it is the next version."""
        self._store.publish_aside(self._aside, self._step)

    def drop(self) -> None:
        """Leave the shard as it is."""
        self._store.take_back(self._aside)
