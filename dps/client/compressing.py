"""Compresses what a session pushes and pulls, and keeps what compressed gradients left out until the next push."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from dps.client.lanes import PsPeer
from dps.client.transfers import AnswerPieces, PullTransfer
from dps.errors import ProtocolError
from dps.messages.sessions import NO_BASE, Pull, Values
from dps.training.compression import Bfloat16, Compressor, Float16, Int8, RandomK, Rules, TopK, check_names, chosen
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


@dataclass(eq=False)
class Change:
    """How one push changed the residuals: for each variable, by name, the array before and after."""

    push: object
    arrays: dict[str, tuple[Array, Array]] = field(default_factory=dict)


class Compression:
    """The compressors of one session, its residuals and its byte counts. It belongs to the user's thread.

    A residual is the part of a variable's gradients that earlier pushes have left out: an array of its size and dtype.
    A push that is not accepted does not change it: its gradient is lost whole, as without compression. While a push is
    in flight, the residual that it was made from is not written to but replaced, so that the change can be undone.
    """

    def __init__(self, push: Rules, pull: Rules, deltas: bool = False) -> None:
        """`deltas`: a pull moves only what changed since the last one."""
        self._push, self._pull, self._deltas = push, pull, deltas
        self.traffic = Traffic()
        self._compressor = cache(partial(chosen, push))
        self._casts: dict[int, dict[int, str]] = {}
        self._residuals: dict[str, Array] = {}
        self._under_way: list[Change] = []
        self._pushes = 0
        self._bases: dict[int, tuple[int, Array]] = {}
        """For each ps the version and the packed bytes of the last whole pull."""

    def check(self, plan: Plan) -> None:
        """Learn the variables' names. Raises ConfigError for a pattern that matches none."""
        self._names = [spec.name for spec in plan.variables]
        names = [*self._names, *plan.tables_by_name]
        check_names(self._push, names, "compression")
        check_names(self._pull, names, "pull_compression")

    # -- pulls ------------------------------------------------------------------------------------------------

    def pull(self, peer: PsPeer, message: Pull, *others: Any) -> PullTransfer:
        """A pull of one shard with the casts and deltas that are wanted; arguments as of `PullTransfer`."""
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
        """The name of the cast, by part, of the parts on a ps that have one."""
        if ps not in self._casts:
            found = self._casts[ps] = {}
            for arena in layout.arenas if self._pull else ():
                for part in arena.parts if arena.dtype in ("<f4", "<f8") else ():
                    compressor = chosen(self._pull, self._names[part.variable])
                    if compressor is not None:
                        found[part.index] = compressor.name
        return self._casts[ps]

    def pulled(self, transfers: Iterable[PullTransfer], whole: bool) -> None:
        """Count the bytes of a pull. If it was of all variables, keep its values as the base of the next delta."""
        for transfer in transfers:
            self.traffic.pulled += transfer.received  # nothing, if they were read in shared memory
            self.traffic.pulled_plain += transfer.plain if isinstance(transfer, PackedPull) else transfer.received
            if not isinstance(transfer, PackedPull):
                continue
            newer = transfer.counter > self._bases.get(transfer.ps, (-1, None))[0]
            if self._deltas and whole and newer and transfer.arrived is not None:
                self._bases[transfer.ps] = (transfer.counter, transfer.arrived)
            transfer.arrived = None

    # -- pushes -----------------------------------------------------------------------------------------------

    def pack(self, plan: Plan, gradients: Mapping[int, Gradient], push: object) -> Mapping[int, Gradient]:
        """Compress the gradients of a push. `record_outcome` has to be called when `push` has its results.

        `Rows`, halves, variables without a compressor and gradients with NaN or infinite values are not compressed; the
        ps refuses the last.
        """
        self._pushes += 1
        change = Change(push)
        found: dict[int, Gradient] = {}
        for index, gradient in gradients.items():
            name = plan.name_of(index)
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

    def _packed(
        self, compressor: Compressor, name: str, flat: Array, parts: tuple[Part, ...], change: Change
    ) -> PackedGradient | None:
        """Compress one variable's gradient; None if it is sent uncompressed."""
        from dps.client.packing import cast, largest, quantised, some

        if isinstance(compressor, Float16 | Bfloat16):
            return cast(compressor.name, flat, parts)
        if isinstance(compressor, Int8) and not compressor.feedback:
            return quantised(flat, parts, rest=False)
        before = self._residuals.get(name, _NOTHING)
        after = np.add(flat, before) if len(before) else flat.copy()
        packed: PackedGradient | None = None
        if isinstance(compressor, Int8):
            packed = quantised(after, parts, rest=True)
        elif isinstance(compressor, TopK):
            packed = largest(after, parts, compressor.count(len(flat)))
        elif isinstance(compressor, RandomK):
            packed = some(after, parts, compressor.count(len(flat)), _key(compressor.seed, name, self._pushes))
        if packed is not None:
            change.arrays[name] = (before, after)
            self._residuals[name] = after
        return packed

    def record_outcome(self, push: object, plan: Plan, applied: Callable[[int], bool]) -> None:
        """A push has its results. Undo its changes to the residuals of parts on a ps that has not `applied` it."""
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
        """The session has joined again: drop residuals and bases, which belong to values before the rollback."""
        self._residuals, self._under_way, self._bases, self._casts = {}, [], {}, {}


_NOTHING: Array = np.empty(0, np.float32)


def _nbytes(gradient: Gradient) -> int:
    if isinstance(gradient, np.ndarray | PackedGradient):
        return int(gradient.nbytes)
    return int(gradient.indices.nbytes + gradient.values.nbytes)


def _key(seed: int, name: str, push: int) -> int:
    """A number of 63 bits that depends only on a seed, a variable and a push."""
    import hashlib  # OpenSSL comes with it

    digest = hashlib.blake2b(f"{seed} {push} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class PackedPull(PullTransfer):
    """A pull of one shard in which some values are cast, or only changes since the base are sent.

    `values` is a run, as in any pull; `arrived` has the packed bytes.
    """

    plain = 0
    """Bytes of the answer without casts and deltas."""
    base: Array | None = None
    """The packed bytes of the version that the message names as its base; set before the pull begins."""
    arrived: Array | None = None

    def __init__(self, peer: PsPeer, message: Pull, *others: Any) -> None:
        self.packed = PackedLayout(peer.layout, message.parts, message.packed)
        super().__init__(peer, message, *others)

    def feed(self, message: Message) -> bool:
        over = super().feed(message)
        if over:  # a transfer and its request keep each other alive; the memory must go
            self.base = None
        return over

    def _begin(self, piece: Values) -> AnswerPieces:
        changes = self.base is not None and piece.base == self._message.base
        nbytes, most = piece.nbytes, self.packed.nbytes
        if not 0 <= nbytes <= most or not (changes or (nbytes == most and piece.base == NO_BASE)):
            raise ProtocolError(f"got {nbytes} bytes of values, wanted {most}, or fewer: changes")

        def check(offset: int, n: int) -> None:
            if type(offset) is not int or not 0 <= offset <= offset + n <= nbytes:
                raise ProtocolError(f"bytes {offset} to {offset + n} are not in an answer of {nbytes}")

        return AnswerPieces(piece, partial(np.empty, nbytes, np.uint8), check)

    def _finish(self, piece: Values, values: Array | list[Array]) -> None:
        assert isinstance(values, np.ndarray), "what is packed is copied"
        if piece.base == NO_BASE or self.base is None:
            self._unpack(values)
            return
        from dps.variables.deltas import patch

        arrived = self.base.copy()  # other pulls may need the base
        patch(self.packed, arrived, values)
        self._unpack(arrived)

    def _unpack(self, arrived: Array) -> None:
        from dps.kernels import compress as kernels

        self.arrived, self.plain = arrived, self.packed.plain
        self.values = run = self._take_run()
        views = self.peer.layout.views(run)
        for part, form, offset, nbytes in self.packed.entries:
            source, target = arrived[offset : offset + nbytes], views[part.index].reshape(-1)
            if form:
                restore = kernels.from_float16 if form == "float16" else kernels.from_bfloat16
                restore(target, source.view(np.uint16))
            else:
                target[:] = source.view(target.dtype)
