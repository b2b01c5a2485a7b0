"""Pulls of values in fewer bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.client.lanes import Peer
from dps.client.transfers import PullTransfer
from dps.errors import ProtocolError
from dps.protocol import Changes, Pull, Values
from dps.transport.message import Message
from dps.transport.wire import Array
from dps.variables.packed import PackedLayout


class PackedPull(PullTransfer):
    """The values of one shard, some of them cast for the way, or only what changed since a version that is here.

    What it has in the end, in `taken`, is as of any pull; `arrived` are the packed bytes.
    """

    plain = 0
    """Bytes that the answer would have had without casts and changes."""
    base: Array | None = None
    """The packed bytes of the version that the message names as its base; set right after the pull was started."""
    arrived: Array | None = None

    def __init__(self, peer: Peer, message: Pull, *others: Any) -> None:
        self._packed = PackedLayout(peer.layout, message.parts, message.packed)
        self._parts: Array | None = None
        """Bytes of the PackedLayout, or of what changed in it, as they come."""
        self._changes = False
        self._got: dict[int, int] = {}
        super().__init__(peer, message, *others)

    def feed(self, message: Message) -> bool:
        over = self._take(message) if isinstance(message, Changes) else super().feed(message)
        if over:  # a transfer and its request keep each other alive; memory that others may use is let go
            self.base = self._parts = None
        return over

    def _take(self, piece: Values | Changes) -> bool:
        """Pieces of two versions, or of values and of changes, are never mixed: a higher one starts anew."""
        changes = isinstance(piece, Changes)
        if piece.counter < self.counter or len(piece.offsets) != len(piece.arrays):
            return False
        if isinstance(piece, Changes) and (self.base is None or piece.base != self._message.base):
            return False
        if not 0 <= piece.nbytes <= self._packed.nbytes or (piece.nbytes < self._packed.nbytes and not changes):
            raise ProtocolError(f"an answer of {piece.nbytes} bytes; wanted {self._packed.nbytes}, or fewer of changes")
        if piece.counter > self.counter or self._parts is None or self._changes != changes:
            self.counter, self.step, self._changes = piece.counter, piece.step, changes
            self._got, self._parts = {}, np.empty(piece.nbytes, np.uint8)
        for offset, data in zip(piece.offsets, piece.arrays, strict=True):
            if type(offset) is not int or not 0 <= offset <= offset + data.nbytes <= len(self._parts):
                raise ProtocolError(f"bytes {offset} to {offset + data.nbytes} are not in an answer of {piece.nbytes}")
            self._parts[offset : offset + data.nbytes] = data.reshape(-1).view(np.uint8)
            self._got[offset] = data.nbytes
        if self.received < piece.nbytes:
            return False
        self._unpack(self._patched(self._parts) if changes else self._parts)
        return True

    @property
    def received(self) -> int:
        return sum(self._got.values())

    def _patched(self, changes: Array) -> Array:
        """The version that the changes lead to; other pulls may still need the base."""
        from dps.variables.deltas import patch

        assert self.base is not None
        arrived = self.base.copy()
        patch(self._packed, arrived, changes)
        return arrived

    def _unpack(self, arrived: Array) -> None:
        from dps.kernels import compress as kernels

        self.arrived, self.plain = arrived, self._packed.plain
        self.taken = self._take_run(self.peer.layout)
        views = self.peer.layout.views(self.taken.bytes)
        for part, form, offset, nbytes in self._packed.entries:
            source, target = arrived[offset : offset + nbytes], views[part.index].reshape(-1)
            if form:
                restore = kernels.from_float16 if form == "float16" else kernels.from_bfloat16
                restore(target, source.view(np.uint16))
            else:
                target[:] = source.view(target.dtype)
