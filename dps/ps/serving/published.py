"""The published versions of one shard: copied at a cut, kept under a number, pulled as they are or cast."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dps.actors.ref import Sender
from dps.errors import Aborted
from dps.messages.sessions import Pull, VersionCut
from dps.ps.serving.packing import pack
from dps.ps.store.hold import Hold
from dps.transport.wire import Array
from dps.variables.packed import PackedLayout
from dps.variables.plan import Part

if TYPE_CHECKING:
    from dps.ps.shard import Shard


@dataclass(eq=False)
class _Copy:
    """A copy of the shard's values, which nobody changes. `number`, `label` and `step` once it is published."""

    counter: int
    at_step: int
    """The shard's step, which in async is not that of the version."""
    arrays: list[Array]
    """The values of each arena."""
    number: int = 0
    label: str = ""
    step: int = 0
    packed: dict[str, Array] = field(default_factory=dict)
    """Its bytes by form, which the task that makes them alone writes."""
    wanted: dict[str, list[Sender]] = field(default_factory=dict)
    """Who waits for bytes that are being made, by their form."""


class PublishedVersions:
    """Keeps the newest published version until all ps have a newer one. Runs on the node's thread; casts are made in
    tasks of their own."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._kept: dict[int, _Copy] = {}
        """By their numbers, which rise."""
        self._cut: tuple[str, _Copy] | None = None
        """The name of the last cut, and its copy."""
        self._asked: tuple[str, Sender] | None = None
        """The cut that the chief has asked for last."""

    def notes(self) -> list[list[Any]]:
        """[number, label, step] of each version that is kept, for a chief that is started again."""
        return [[copy.number, copy.label, copy.step] for copy in self._kept.values()]

    # -- publishing ---------------------------------------------------------------------------------------------

    def ask_cut(self, sender: Sender, cut: str) -> None:
        """The chief asks to be told when the copy is made."""
        self._asked = cut, sender
        self._answer_cut()

    def make_copy(self, cut: str) -> None:
        """Copy the values as they are now, unless the newest published version has them."""
        if self.has_copy(cut):
            return
        store, newest = self._shard.store, self._newest
        if newest is None or newest.counter != store.counter:
            arrays = [memory.read(None, 0, None) for memory in store.arenas]
            newest = _Copy(store.counter, store.step, arrays)
        self._cut = cut, newest
        self._answer_cut()

    def has_copy(self, cut: str) -> bool:
        """Whether the copy of this cut was the last one made."""
        return self._cut is not None and self._cut[0] == cut

    def _answer_cut(self) -> None:
        if self._cut is not None and self._asked is not None and self._cut[0] == self._asked[0]:
            copy, sender = self._cut[1], self._asked[1]
            self._shard.node.answer(sender, VersionCut(copy.at_step, copy.counter, copy.number))

    def commit(self, cut: str, number: int, label: str, step: int) -> None:
        """Keep the copy of a cut under a number. Raises Aborted if there is no such copy."""
        if number in self._kept:  # the answer was lost
            return
        if self._cut is None or self._cut[0] != cut or number <= max(self._kept, default=0):
            raise Aborted(f"{self._shard.node.name} has no copy {cut!r} for the published version {number}")
        copy = self._cut[1]
        self._kept[number] = _Copy(copy.counter, copy.at_step, copy.arrays, number, label, step)
        shard = self._shard
        shard.node.runtime.record("committed", epoch=shard.epoch, number=number, counter=copy.counter)

    def settle(self, number: int) -> None:
        """All ps keep this version: drop the older ones."""
        if number in self._kept:
            for older in [older for older in self._kept if older < number]:
                del self._kept[older]

    @property
    def _newest(self) -> _Copy | None:
        return next(reversed(self._kept.values()), None)

    # -- reading ------------------------------------------------------------------------------------------------

    def answer_pull(self, sender: Sender, pull: Pull, packed: PackedLayout | None) -> None:
        """Answer a pull of a published version. Raises ValueError if it is not kept."""
        copy, shard = self._kept.get(pull.published), self._shard
        if copy is None:
            newest = self._newest
            now = "no published version" if newest is None else f"version {newest.number} ({newest.label!r})"
            raise ValueError(
                f"pull: the published version {pull.published} is not kept any more, or not yet; {shard.node.name} "
                f"has {now}: pull that, or publish again"
            )
        if packed is None:
            hold = Hold(copy.counter, copy.at_step, copy.arrays, [], (), threading.Lock())
            shard.reading.send_copy(sender, pull, hold)
        elif (data := copy.packed.get(packed.key)) is not None:
            self._send(copy, sender, data)
        elif packed.key in copy.wanted:
            others = [other for other in copy.wanted[packed.key] if (other.route, other.request) != _key(sender)]
            copy.wanted[packed.key] = [*others, sender]
        elif len(copy.packed) + len(copy.wanted) >= shard.node.runtime.tuning.serving.packed_ways:
            self._send(copy, sender, self._packed(copy, packed))  # too many forms to keep the bytes of each
        else:
            self._make(copy, packed, sender)

    def _make(self, copy: _Copy, packed: PackedLayout, sender: Sender) -> None:
        """Make the bytes of a form, in a task of their own, and send them to all who have asked meanwhile."""
        node = self._shard.node
        copy.wanted[packed.key] = [sender]

        def work() -> None:
            data = self._packed(copy, packed)
            node.post(lambda: made(data))

        def made(data: Array) -> None:
            copy.packed[packed.key] = data
            for waiting in copy.wanted.pop(packed.key):
                if not self._shard.ended:
                    self._send(copy, waiting, data)

        node.runtime.spawn(f"cast version {copy.number}", work)

    def _packed(self, copy: _Copy, packed: PackedLayout) -> Array:
        place = self._shard.layout.place

        def values(part: Part) -> Array:
            arena, start = place[part.index]
            return copy.arrays[arena][start : start + part.size]

        return pack(packed, values)

    def _send(self, copy: _Copy, sender: Sender, data: Array) -> None:
        if sender.incarnation in self._shard.ledgers:
            self._shard.reading.send_bytes(sender, copy.counter, copy.at_step, data)


def _key(sender: Sender) -> tuple[Any, int]:
    return sender.route, sender.request
