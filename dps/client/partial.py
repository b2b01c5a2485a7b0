"""Selects what one shard gets of a push of some variables, of rows, of compressed gradients or of values to set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dps.client.cargo import About, Cargo, Run
from dps.client.lanes import Peer
from dps.protocol import DENSE, EMPTY, PACKED, PARTS, ROWS, VALUE, Push
from dps.transport.wire import Array
from dps.variables.packed import Packed
from dps.variables.rowlists import RowsOfPart

ALIGNED = 64
"""Arrays in a run begin at multiples of this number of bytes."""


class _Sent:
    """The gradient of one part, or what it is set to. `values` are the user's own, or, where they had to be moved, in
    the run at `offset`."""

    __slots__ = ("form", "how", "index", "offset", "rows", "values")

    def __init__(self, index: int, gradient: Array | RowsOfPart | Packed, how: int = DENSE) -> None:
        """`how`: an array is sent."""
        self.index, self.how, self.offset = index, how, -1
        self.form = gradient.form if isinstance(gradient, Packed) else None
        self.rows = gradient if isinstance(gradient, RowsOfPart) else None
        if isinstance(gradient, Packed):
            self.values: Array = gradient.data
        elif isinstance(gradient, RowsOfPart):  # as the user gave them, not in their order yet
            self.values = gradient.values[gradient.first : gradient.last]
        else:
            self.values = gradient

    def move(self, run: Array) -> None:
        """Copy the values into the run, rows in the order in which they are sent."""
        end = self.offset + self.values.nbytes
        target = run[self.offset : end].view(self.values.dtype).reshape(self.values.shape)
        if self.rows is not None:
            self.rows.fill(target)
        else:
            target[...] = self.values
        self.values = target


class PartsCargo(Cargo):
    """Gradients of some parts of a shard, each dense, of rows, or compressed; of none, too. And values to set."""

    def __init__(
        self, peer: Peer, about: About, parts: list[tuple[int, Array | RowsOfPart | Packed]],
        take: Callable[[int], Run], values: Sequence[tuple[int, Array]] = (),
    ) -> None:  # fmt: skip
        """`parts`: gradients by the index of each; `values`: what parts are set to. `take` gives a run of at least so
        many bytes; the arrays are gathered here."""
        super().__init__(peer, about)
        self._parts = [_Sent(index, gradient) for index, gradient in parts]
        self._parts += [_Sent(index, value, VALUE) for index, value in values]
        self._gather(take)

    def _gather(self, take: Callable[[int], Run]) -> None:
        """Copy large values for a ps on this machine into a shared run; else only rows that have to be reordered."""
        large = sum(sent.values.nbytes for sent in self._parts) >= self.peer.caller.runtime.tuning.shared_nbytes
        shared = large and self.peer.lane.on
        moved = [
            s for s in self._parts if s.form is None and (shared or (s.rows is not None and s.rows.order is not None))
        ]
        at = 0
        for sent in moved:
            sent.offset = at
            at += -(-sent.values.nbytes // ALIGNED) * ALIGNED
        if not at:
            return
        if large:
            self.run = take(at)
        run = np.empty(at, np.uint8) if self.run is None else self.run.bytes
        for sent in moved:
            sent.move(run)

    def messages(self) -> list[Push]:
        """One message. Values in shared memory are named by their place."""
        if not self._parts:
            return [self.about.push(EMPTY, 0, [], [])]
        memory = self.memory
        described: list[Any] = []
        arrays: list[Array] = []
        nbytes = 0
        for sent in self._parts:
            how, place = sent.how, list[Any]()
            if sent.form is not None:
                how, place = PACKED, sent.form
            elif sent.rows is not None:
                how = ROWS
                arrays.append(sent.rows.numbers)
                nbytes += 8 * len(sent.values)
            nbytes += sent.values.nbytes
            if memory is not None and sent.offset >= 0:
                place = [memory.name, sent.offset]
            else:
                arrays.append(sent.values)
            described.append([sent.index, how, place])
        return [self.about.push(PARTS, nbytes, [], described, tuple(arrays))]
