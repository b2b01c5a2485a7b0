"""Pulls of values in fewer bytes."""

from __future__ import annotations

import numpy as np

from dps.errors import ProtocolError
from dps.protocol import Changes, Pull, Values
from dps.transport.wire import Array, Message
from dps.variables.packed import PackedLayout
from dps.variables.plan import ShardLayout
from dps.variables.transfers import PullTransfer


class PackedPull(PullTransfer):
    """The values of one shard, some of them cast for the way, or only what changed since a version that is here.

    What it has in the end, in `run`, is as of any pull; `arrived` are the packed bytes.
    """

    plain = 0
    """Bytes that the answer would have had without casts and changes."""
    base: Array | None = None
    """The packed bytes of the version that the message names as its base; set right after the pull was started."""
    arrived: Array | None = None
    _changes: Array | None = None

    def _layout_of(self, message: Pull) -> ShardLayout | PackedLayout:
        self._packed = PackedLayout(self.layout, message.parts, message.packed)
        self._got_changes: dict[int, int] = {}
        return self._packed

    @property
    def received(self) -> int:
        return super().received + sum(self._got_changes.values())

    def _feed(self, message: Message) -> bool:
        over = self._take_changes(message) if isinstance(message, Changes) else super()._feed(message)
        if over:  # a transfer and its request keep each other alive; memory that others may use is let go
            self.base = self._changes = None
        return over

    def _take(self, piece: Values) -> bool:
        if not super()._take(piece):
            return False
        assert self.run is not None
        self._unpack(self.run)
        return True

    def _take_changes(self, piece: Changes) -> bool:
        """As pieces of values: those of two versions are never mixed."""
        if self.base is None or piece.base != self._message.base or piece.counter < self.counter:
            return False
        if len(piece.offsets) != len(piece.arrays) or not 0 <= piece.nbytes <= self._packed.nbytes:
            return False
        if piece.counter > self.counter or self._changes is None or len(self._changes) != piece.nbytes:
            self.counter, self.step, self.run = piece.counter, piece.step, None
            self._got_changes, self._changes = {}, np.empty(piece.nbytes, np.uint8)
        for offset, data in zip(piece.offsets, piece.arrays, strict=True):
            if type(offset) is not int or not 0 <= offset <= offset + data.nbytes <= piece.nbytes:
                raise ProtocolError(f"bytes {offset} to {offset + data.nbytes} are not in changes of {piece.nbytes}")
            self._changes[offset : offset + data.nbytes] = data.reshape(-1).view(np.uint8)
            self._got_changes[offset] = data.nbytes
        if sum(self._got_changes.values()) < piece.nbytes:
            return False
        from dps.variables.deltas import patch

        arrived = self._take_run(self._packed.nbytes)
        arrived[:] = self.base
        patch(self._packed, arrived, self._changes)
        self._unpack(arrived)
        return True

    def _unpack(self, arrived: Array) -> None:
        from dps.kernels import compress as kernels

        self.arrived, self.run, self.plain = arrived, self._take_run(self.layout.nbytes), self._packed.plain
        views = self.layout.views(self.run)
        for part, form, offset, nbytes in self._packed.entries:
            source, target = arrived[offset : offset + nbytes], views[part.index].reshape(-1)
            if form:
                restore = kernels.from_float16 if form == "float16" else kernels.from_bfloat16
                restore(target, source.view(np.uint16))
            else:
                target[:] = source.view(target.dtype)
