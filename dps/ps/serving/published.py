"""The published versions of one shard: copied at a cut, kept under a number, pulled as they are or cast."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from dps.actors.ref import Sender
from dps.errors import DeadlineExceeded
from dps.messages.sessions import NO_BASE, Pull, VersionCut
from dps.ps.serving.packing import pack
from dps.ps.store.hold import Hold
from dps.transport.wire import Array
from dps.variables.packed import PackedLayout
from dps.variables.plan import Part
from dps.variables.sparse_changes import difference

if TYPE_CHECKING:
    from dps.ps.shard import Shard


MOST_CHANGES = 8
"""From how many versions changes are kept."""
WORTH = 0.75
"""Changes are sent only if they are shorter than this share of the bytes."""


@dataclass(eq=False)
class _Copy:
    """A copy of the shard's values, which nobody changes. `number`, `label` and `step` once it is published."""

    counter: int
    at_step: int
    """The shard's step, which in async is not that of the version."""
    counted: int
    """As of ShardCut."""
    arrays: list[Array]
    """The values of each arena."""
    number: int = 0
    label: str = ""
    step: int = 0
    packed: dict[str, tuple[Array, int]] = field(default_factory=dict)
    """By form its bytes, once they are made, and their checksum."""
    wanted: dict[str, list[tuple[Sender, int]]] = field(default_factory=dict)
    """Who waits for bytes that are being made, by their form, and which version each has."""


@dataclass(eq=False)
class _Form:
    """The newest version that was asked for in one form: its bytes, their checksum, and how they came about."""

    number: int
    data: Array
    checksum: int
    changes: dict[int, tuple[int, Array]] = field(default_factory=dict)
    """By the number of a version, the next one that was asked for and the changes to that; the last few."""


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
        self._forms: dict[str, _Form] = {}

    def notes(self) -> list[list[Any]]:
        """[number, label, step] of each version that is kept, for a chief that is started again."""
        return [[copy.number, copy.label, copy.step] for copy in self._kept.values()]

    # -- publishing ---------------------------------------------------------------------------------------------

    def answer_when_cut(self, sender: Sender, cut: str) -> None:
        """The chief asks to be told when the copy is made."""
        self._asked = cut, sender
        self._answer_cut()

    def perform_cut(self, cut: str) -> None:
        """Copy the values as they are now, unless the newest published version has them."""
        if self.has_copy(cut):
            return
        store, newest = self._shard.store, self._newest
        if newest is None or newest.counter != store.counter:
            arrays = [memory.read(None, 0, None) for memory in store.arenas]
            newest = _Copy(store.counter, store.step, self._shard.counted, arrays)
        self._cut = cut, newest
        self._answer_cut()

    def has_copy(self, cut: str) -> bool:
        """Whether the copy of this cut was the last one made."""
        return self._cut is not None and self._cut[0] == cut

    def _answer_cut(self) -> None:
        if self._cut is not None and self._asked is not None and self._cut[0] == self._asked[0]:
            copy, sender = self._cut[1], self._asked[1]
            self._shard.gate.answer(sender, VersionCut(copy.at_step, copy.counter, copy.number, copy.counted))

    def commit(self, cut: str, number: int, label: str, step: int) -> None:
        """Keep the copy of a cut under a number. Raises DeadlineExceeded if there is no such copy any more."""
        if number in self._kept:  # the answer was lost
            return
        if self._cut is None or self._cut[0] != cut or number <= max(self._kept, default=0):
            raise DeadlineExceeded(f"{self._shard.node.name} has no copy any more for the published version {number}")
        copy = self._cut[1]
        self._kept[number] = _Copy(copy.counter, copy.at_step, copy.counted, copy.arrays, number, label, step)
        shard = self._shard
        shard.node.runtime.record("committed", epoch=shard.epoch, number=number, counter=copy.counter)

    def drop_older(self, number: int) -> None:
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
            hold = Hold(copy.counter, copy.at_step, copy.arrays, [])
            shard.reading.send_copy(sender, pull, hold)
        elif packed.key in copy.packed:
            self._send(copy, sender, packed.key, pull.base)
        elif packed.key in copy.wanted:
            others = [waits for waits in copy.wanted[packed.key] if _key(waits[0]) != _key(sender)]
            copy.wanted[packed.key] = [*others, (sender, pull.base)]
        elif len(copy.packed) + len(copy.wanted) >= shard.node.runtime.tuning.serving.packed_ways:
            data = self._packed(copy, packed)  # too many forms to keep the bytes of each
            self._send_whole(copy, sender, data, crc32(data.data))
        else:
            self._make(copy, packed, sender, pull.base)

    def _make(self, copy: _Copy, packed: PackedLayout, sender: Sender, base: int) -> None:
        """Make the bytes of a form, and the changes since the last version that was asked for in it, in a task of their
        own; then send them to all who have asked meanwhile."""
        node, key, last = self._shard.node, packed.key, self._forms.get(packed.key)
        copy.wanted[key] = [(sender, base)]

        def work() -> None:
            try:
                data = self._packed(copy, packed)
                changes = None if last is None or last.number >= copy.number else difference(packed, last.data, data)
                form = _Form(copy.number, data, crc32(data.data))
            except Exception as error:  # such as no memory
                node.post(lambda error=error: failed(error))  # type: ignore[misc]
            else:
                node.post(lambda: made(form, changes))

        def failed(error: Exception) -> None:
            for waiting, _ in copy.wanted.pop(key):
                node.answer(waiting, error)

        def made(form: _Form, changes: Array | None) -> None:
            copy.packed[key] = form.data, form.checksum
            now = self._forms.get(key)
            if now is None or now.number < form.number:
                form.changes = {} if now is None else now.changes
                if last is not None and changes is not None:
                    form.changes[last.number] = form.number, changes
                    for older in sorted(form.changes)[:-MOST_CHANGES]:
                        del form.changes[older]
                self._keep_form(key, form)
            for waiting, has in copy.wanted.pop(key):
                if not self._shard.ended:
                    self._send(copy, waiting, key, has)

        node.runtime.spawn(f"cast version {copy.number}", work)

    def _keep_form(self, key: str, form: _Form) -> None:
        """Keep a form as the newest one; of many forms the last few."""
        self._forms.pop(key, None)
        self._forms[key] = form
        while len(self._forms) > self._shard.node.runtime.tuning.serving.packed_ways:
            del self._forms[next(iter(self._forms))]

    def _packed(self, copy: _Copy, packed: PackedLayout) -> Array:
        place = self._shard.layout.place

        def values(part: Part) -> Array:
            arena, start = place[part.index]
            return copy.arrays[arena][start : start + part.size]

        return pack(packed, values)

    def _send(self, copy: _Copy, sender: Sender, key: str, base: int) -> None:
        """Send the bytes of a form, or what leads to them from the version `base`, if that is known and shorter."""
        data, checksum = copy.packed[key]
        changes = None if base == NO_BASE else self._changes(copy.number, key, base)
        if changes is None or changes.nbytes > WORTH * data.nbytes:
            self._send_whole(copy, sender, data, checksum)
        elif sender.incarnation in self._shard.ledgers:
            self._shard.reading.send_bytes(sender, copy.counter, copy.at_step, changes, base, checksum)

    def _send_whole(self, copy: _Copy, sender: Sender, data: Array, checksum: int) -> None:
        if sender.incarnation in self._shard.ledgers:
            self._shard.reading.send_bytes(sender, copy.counter, copy.at_step, data, checksum=checksum)

    def _changes(self, number: int, key: str, base: int) -> Array | None:
        """The changes from version to version that lead to this one, each after its length; None if some of them are
        not known."""
        form, found, at = self._forms.get(key), list[Array](), base
        if form is None or form.number != number:
            return None
        while at != number:
            if at not in form.changes:
                return None
            at, changes = form.changes[at]
            found += [np.array([changes.nbytes], "<u4").view(np.uint8), changes]
        chain: Array = np.concatenate(found) if found else np.empty(0, np.uint8)
        return chain


def _key(sender: Sender) -> tuple[Any, int]:
    return sender.route, sender.request
