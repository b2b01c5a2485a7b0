"""Pulls of values in fewer bytes."""

from __future__ import annotations

import numpy as np

from dps.protocol import Pull, Values
from dps.transport.wire import Array
from dps.variables.packed import PackedLayout
from dps.variables.plan import ShardLayout
from dps.variables.transfers import PullTransfer


class PackedPull(PullTransfer):
    """The values of one shard, some of them cast for the way; what it has in the end is as of any pull."""

    plain = 0
    """Bytes that the answer would have had without casts."""

    def _layout_of(self, message: Pull) -> ShardLayout | PackedLayout:
        self._packed = PackedLayout(self.layout, message.parts, message.packed)
        return self._packed

    def _take(self, piece: Values) -> bool:
        if not super()._take(piece):
            return False
        assert self.run is not None
        self.plain = self._packed.plain
        arrived, self.run = self.run, self._take_run(self.layout.nbytes)
        self._unpack(arrived, self.layout.views(self.run))
        return True

    def _unpack(self, arrived: Array, views: dict[int, Array]) -> None:
        from dps.kernels import compress as kernels

        for part, form, offset, nbytes in self._packed.entries:
            source, target = arrived[offset : offset + nbytes], views[part.index].reshape(-1)
            if form:
                restore = kernels.from_float16 if form == "float16" else kernels.from_bfloat16
                restore(target, source.view(np.uint16))
            else:
                target[:] = source.view(target.dtype)
