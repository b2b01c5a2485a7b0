"""Compresses what a session pushes and pulls, and keeps what compressed gradients left out until the next push."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dps.client.lanes import Peer
from dps.client.transfers import PullTransfer
from dps.compress import Bfloat16, Compressor, Float16, Int8, RandomK, Rules, TopK, check_names, chosen, rules
from dps.errors import ProtocolError
from dps.protocol import NO_BASE, Changes, Pull, Values
from dps.transport.message import Message, changed
from dps.transport.wire import Array
from dps.variables.layout import Gradient
from dps.variables.packed import PackedGradient, PackedLayout, first_element
from dps.variables.plan import Part, Plan, ShardLayout


@dataclass
class Traffic:
    """Bytes of gradients that a session sent and of values that it pulled, and what they would be uncompressed."""

    pushed: int = 0
    pushed_plain: int = 0
    pulled: int = 0
    pulled_plain: int = 0

    def copy(self) -> Traffic:
        return Traffic(self.pushed, self.pushed_plain, self.pulled, self.pulled_plain)


@dataclass(eq=False)
class Change:
    """What one push did to the residuals: for each variable, by name, the array before and after."""

    push: object
    arrays: dict[str, tuple[Array, Array]] = field(default_factory=dict)


def compression_of(pushes: object, pulls: object, deltas: bool) -> Compression | None:
    """What a session's arguments ask for; None where all travels as it is. Raises ConfigError naming the argument."""
    packed = rules(pushes, "compression"), rules(pulls, "pull_compression", pulls=True)
    return Compression(*packed, deltas) if any(packed) or deltas else None


class Compression:
    """The compressors of one session, its residuals and its byte counts; belongs to the user's thread.

    A residual is what earlier pushes of this session left out of a variable's gradient: an array of its size and
    dtype. A push that was not accepted leaves no trace in it: its gradient is lost whole, as without compression, and
    what earlier gradients left is there still. A residual is never changed while a push that was made of it is on its
    way, but replaced, so that this can be undone.
    """

    def __init__(self, push: Rules, pull: Rules, deltas: bool = False) -> None:
        """`deltas`: of pulled values only what changed since the last pull travels."""
        self._push, self._pull, self._deltas = push, pull, deltas
        self.traffic = Traffic()
        self._chosen: dict[str, Compressor | None] = {}
        self._casts: dict[int, dict[int, str]] = {}
        self._residuals: dict[str, Array] = {}
        self._under_way: list[Change] = []
        self._pushes = 0
        self._bases: dict[int, tuple[int, Array]] = {}
        """For each ps the version and the packed bytes of the last whole pull."""

    def check(self, plan: Plan) -> None:
        """Learn the variables' names. ConfigError for a pattern that matches none."""
        self._names = [spec.name for spec in plan.variables]
        check_names(self._push, self._names, "compression")
        check_names(self._pull, self._names, "pull_compression")

    # -- pulls ------------------------------------------------------------------------------------------------

    def pull(self, peer: Peer, message: Pull, *others: Any) -> PullTransfer:
        """Start a pull of one shard, as the constructor of `PullTransfer` does, in the bytes that are wanted."""
        ps, layout = peer.ps, peer.layout
        casts: dict[str, list[int]] = {}
        for index, name in self._casts_of(ps, layout).items():
            if not message.parts or index in message.parts:
                casts.setdefault(name, []).append(index)
        packed = [[name, parts] for name, parts in casts.items()]
        deltas = self._deltas and not message.parts and (bool(packed) or not message.shared)
        if not packed and not deltas:
            return PullTransfer(peer, message, *others)
        base, run = self._bases.get(ps, (-1, None)) if deltas else (NO_BASE, None)
        asked = changed(message, shared=False, packed=packed, base=base)
        transfer = PackedPull(peer, asked, *others)
        transfer.base = run
        return transfer

    def _casts_of(self, ps: int, layout: ShardLayout) -> dict[int, str]:
        """The name of the cast of each part on a ps that has one."""
        if ps not in self._casts:
            found = self._casts[ps] = {}
            for arena in layout.arenas if self._pull else ():
                for part in arena.parts if arena.dtype in ("<f4", "<f8") else ():
                    compressor = chosen(self._pull, self._names[part.variable])
                    if compressor is not None:
                        found[part.index] = compressor.name
        return self._casts[ps]

    def pulled(self, transfers: Iterable[PullTransfer], whole: bool) -> None:
        """Count the bytes of a pull, and keep what it brought as a base for the next, where all was asked for."""
        for transfer in transfers:
            self.traffic.pulled += transfer.received  # what was read in shared memory did not travel
            self.traffic.pulled_plain += transfer.plain if isinstance(transfer, PackedPull) else transfer.received
            if not isinstance(transfer, PackedPull):
                continue
            newer = transfer.counter > self._bases.get(transfer.ps, (-1, None))[0]
            if self._deltas and whole and newer and transfer.arrived is not None:
                self._bases[transfer.ps] = (transfer.counter, transfer.arrived)
            transfer.arrived = None

    # -- pushes -----------------------------------------------------------------------------------------------

    def pack(self, plan: Plan, gradients: Mapping[int, Gradient], push: object) -> Mapping[int, Gradient]:
        """The gradients of a push as they travel, by variable; `settle` is to be told of `push` later.

        `Rows`, halves, variables without a compressor and gradients with NaN or infinite values are left as they are:
        the ps refuses the last as it refuses any.
        """
        self._pushes += 1
        change = Change(push)
        found: dict[int, Gradient] = {}
        for index, gradient in gradients.items():
            name = plan.variables[index].name
            compressor = self._compressor(name)
            packed = None
            if compressor is not None and isinstance(gradient, np.ndarray) and gradient.size and gradient.itemsize > 2:
                packed = self._packed(compressor, name, gradient.reshape(-1), plan.parts_of[index], change)
            found[index] = packed or gradient
            self.traffic.pushed += _nbytes(found[index])
            self.traffic.pushed_plain += _nbytes(gradient)
        if change.arrays:
            self._under_way.append(change)
        return found

    def _compressor(self, name: str) -> Compressor | None:
        if name not in self._chosen:
            self._chosen[name] = chosen(self._push, name)
        return self._chosen[name]

    def _packed(
        self, compressor: Compressor, name: str, flat: Array, parts: tuple[Part, ...], change: Change
    ) -> PackedGradient | None:
        """One variable's gradient; None for one that is better left as it is."""
        from dps.client.packing import cast, largest, quantised, some

        if isinstance(compressor, Float16 | Bfloat16):
            return cast(compressor.name, flat, parts)
        if isinstance(compressor, Int8) and not compressor.feedback:
            return quantised(flat, parts, rest=False)
        after = self._with_residual(name, flat)
        packed: PackedGradient | None = None
        if isinstance(compressor, Int8):
            packed = quantised(after, parts, rest=True)
        elif isinstance(compressor, TopK):
            packed = largest(after, parts, compressor.count(len(flat)))
        elif isinstance(compressor, RandomK):
            packed = some(after, parts, compressor.count(len(flat)), _key(compressor.seed, name, self._pushes))
        if packed is not None:
            change.arrays[name] = (self._residuals.get(name, _NOTHING), after)
            self._residuals[name] = after
        return packed

    def _with_residual(self, name: str, flat: Array) -> Array:
        """A gradient and what earlier ones left, in memory of its own."""
        before = self._residuals.get(name)
        return flat.copy() if before is None else np.add(flat, before)

    def settle(self, push: object, plan: Plan, applied: Callable[[int], bool]) -> None:
        """A push has its results: `applied(ps)`. What it did to the residuals of other parts is undone."""
        place = next((place for place, change in enumerate(self._under_way) if change.push is push), None)
        if place is None:
            return
        change, later = self._under_way.pop(place), self._under_way[place:]
        for name, (before, after) in change.arrays.items():
            stretches = [
                slice(first_element(part), first_element(part) + part.size)
                for part in plan.parts_of[plan.by_name[name]]
                if not applied(part.ps)
            ]
            if not stretches:
                continue
            others = [array for c in later for array in c.arrays.get(name, ())] + [self._residuals[name]]
            distinct = {id(array): array for array in others if array is not after}
            for stretch in stretches:
                old = before[stretch] if len(before) else after.dtype.type(0)
                for array in distinct.values():
                    array[stretch] += old - after[stretch]
                after[stretch] = old

    def forget(self) -> None:
        """The session has joined anew: what was left out belongs to values that are no more, or may have arrived."""
        self._residuals, self._under_way, self._bases, self._casts = {}, [], {}, {}


_NOTHING: Array = np.empty(0, np.float32)


def _nbytes(gradient: Gradient) -> int:
    if isinstance(gradient, np.ndarray | PackedGradient):
        return int(gradient.nbytes)
    return int(gradient.indices.nbytes + gradient.values.nbytes)


def _key(seed: int, name: str, push: int) -> int:
    """A number of 63 bits that follows from a seed, a variable and a push, and from nothing else."""
    import hashlib  # OpenSSL comes with it

    digest = hashlib.blake2b(f"{seed} {push} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


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
