"""Answers the pulls of a shard's sessions when the mode allows it, and lends versions to readers on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dps.actors.answers import Waiting
from dps.actors.authorization import CountLimit
from dps.actors.ref import Sender
from dps.messages.sessions import (
    NO_BASE,
    NO_CHECKSUM,
    NOT_LENT,
    REFUSED,
    NotNewer,
    Pull,
    Pushed,
    Release,
    SharedValues,
    Values,
)
from dps.ps.serving.buffer_wait import Wait
from dps.ps.serving.lending import Lending
from dps.ps.serving.long_waits import LongWaits
from dps.ps.serving.lookups import ShardLookups
from dps.ps.serving.packing import Packing
from dps.ps.serving.sending import Answer, Sending
from dps.ps.store.draft import Draft
from dps.ps.store.hold import Hold
from dps.transport.message import changed
from dps.transport.wire import Array
from dps.variables.packed import PackedLayout
from dps.variables.plan import cut

if TYPE_CHECKING:
    from dps.ps.intake.ledger import Ledger
    from dps.ps.shard import Shard


PUSHED = Pushed.form_of


@dataclass
class _Read:
    """A pull that is not answered yet."""

    sender: Sender
    pull: Pull
    packed: PackedLayout | None
    wait: Wait


class ShardReads:
    """The reads of one shard's sessions. Runs on the node's thread."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.lending = Lending(shard.store)
        self.lookups = ShardLookups(shard)
        self.long_waits = LongWaits(shard.node, shard.node.runtime.tuning.serving.moment_s)
        self._packing = Packing(shard.store)
        self._sending = Sending(shard)
        self.piece_nbytes = self._sending.piece_nbytes
        self._waiting: dict[tuple[Any, int], _Read] = {}
        self._bound = CountLimit("pulls that wait", shard.node.runtime.tuning.serving.waiting_pulls)

    def answer_waiting(self) -> None:
        """Answer the pulls and lookups that waited for the present state."""
        if self.lookups.waiting:
            self.lookups.answer_waiting()
        for key, read in list(self._waiting.items()) if self._waiting else ():
            if read.sender.incarnation not in self._shard.ledgers:
                del self._waiting[key]
            elif not self._waiting_text(read.sender, read.pull):
                del self._waiting[key]
                self._answer_pull(read)

    def forget_session(self, incarnation: int) -> None:
        """A session has ended."""
        self.lending.forget_session(incarnation)
        self.lookups.forget_session(incarnation)
        for key in [key for key, read in self._waiting.items() if read.sender.incarnation == incarnation]:
            del self._waiting[key]

    def answer_pull(self, sender: Sender, pull: Pull) -> None:
        """Answer a pull now, or keep it until it may be answered."""
        ledger = self._shard.ledger(sender)
        if pull.released > ledger.released:
            self.release_below(ledger, pull.released)
        key = sender.incarnation, sender.request
        if self._sending.is_on_its_way(sender):  # a slow answer is not sent twice
            return
        wanted, earlier = pull.packed or pull.base != NO_BASE, self._waiting.pop(key, None)
        wait = Wait() if earlier is None else earlier.wait
        read = _Read(sender, pull, PackedLayout(self._shard.layout, pull.parts, pull.packed) if wanted else None, wait)
        for index in pull.parts:
            if type(index) is not int or index not in self._shard.layout.place:
                raise ValueError(f"part {index!r} is not on {self._shard.node.name}")
        if pull.published:
            self._shard.versions.answer_pull(sender, pull, read.packed)
            return
        if self._waiting_text(sender, pull):
            if len(self._waiting) >= self._bound.most:
                self._bound.check_count(sum(other == sender.incarnation for other, _ in self._waiting), sender.name)
            self._waiting[key] = read
            self.long_waits.add_wait(partial(self._tell_reason, key))
        else:
            self._answer_pull(read)

    def _tell_reason(self, key: tuple[Any, int]) -> None:
        read = self._waiting.get(key)
        if read is not None:
            self._shard.node.answer(read.sender, Waiting(self._waiting_text(read.sender, read.pull)))

    def is_waiting(self, sender: Sender) -> bool:
        """Whether a read was not answered yet."""
        return (sender.incarnation, sender.request) in self._waiting

    def _answer_waiting(self) -> None:
        """Answer waiting pulls later, because a buffer may be free now."""
        if not self._shard.ended:
            self.answer_waiting()

    def release_below(self, ledger: Ledger, number: int) -> None:
        """A session reads nothing under lower numbers any more."""
        ledger.released = number
        if ended := self.lending.give_back_below(ledger.incarnation, number):
            self._sending.buffers.sent += ended * self._shard.layout.nbytes
            if self._waiting:
                self._shard.node.post(self._answer_waiting)

    def _waiting_text(self, sender: Sender, pull: Pull) -> str:
        """Why a pull has to wait; "" if it may be answered."""
        if self._shard.store.step < pull.min_step:
            return (
                f"{self._shard.node.name} is at step {self._shard.store.step}, step {pull.min_step} is wanted: "
                + self._shard.mode.waiting_for()
            )
        if pull.after and not self._shard.ledgers[sender.incarnation].has_result(pull.after):
            return f"push {pull.after} has no result on {self._shard.node.name}: " + self._shard.mode.waiting_for()
        return "" if pull.averages else self._shard.mode.may_read(sender, pull)

    def _answer_pull(self, read: _Read) -> None:
        sender, store = read.sender, self._shard.store
        if read.pull.averages:
            self._sending.send_version(sender, read.pull, store.averages(), self._answer_soon)
            return
        if read.pull.shared and self._answer_lent(sender):
            return
        if read.pull.newer_than >= store.counter:
            self._record_pull(sender, parts=read.pull.parts)
            self._shard.gate.answer(sender, NotNewer(self._shard.epoch, store.counter, store.step))
            return
        if read.packed is not None:
            self._record_pull(sender, record=True, parts=read.pull.parts)
            self._send_packed(read, read.packed)
            return
        arenas = store.refresh(read.pull.parts)
        if read.pull.shared and not read.pull.parts and (hold := self.lend_version(sender)) is not None:
            self._shard.gate.answer(sender, SharedValues(self._shard.epoch, hold.counter, hold.step, hold.memories))
            return
        asked_at = read.wait.until
        hold = self._sending.buffers.hold(read.wait, arenas)
        self._shard.counts["copied_pulls"] = self._sending.buffers.copies
        if hold is None:
            self._waiting[sender.incarnation, sender.request] = read
            if read.wait.until != asked_at:
                self._shard.node.after(read.wait.until - self._shard.node.runtime.now(), self._answer_waiting)
            return
        self._record_pull(sender, record=True, parts=read.pull.parts)
        self._sending.send_version(sender, read.pull, hold, self._answer_soon)

    def _answer_soon(self) -> None:
        """Values have left, so a buffer may be free now."""
        if self._waiting:
            self._shard.node.post(self._answer_waiting)

    def answer_draft(self, incarnation: int, number: int, draft: Draft) -> tuple[Answer, Callable[[bool], None]] | None:
        """Begin to answer the pull that waits for a push, with the version that a draft of the push will be. Returns
        what to call when it is published, or (False) was dropped; None if no pull waits, or it has to be answered in
        another way."""
        waiting = (
            read
            for read in self._waiting.values()
            if (read.sender.incarnation, read.pull.after) == (incarnation, number)
        )
        read = next(waiting, None)
        if read is None or read.packed is not None or read.pull.parts or read.pull.shared:
            return None
        sender, pull = read.sender, read.pull
        hold = None if pull.min_step > draft.step else self._shard.store.hold_draft(draft)
        if hold is None:
            return None
        del self._waiting[sender.incarnation, sender.request]
        over = partial(self._end_draft, read)
        return self._sending.begin_answer(sender, pull, hold, self._answer_soon), over

    def _end_draft(self, read: _Read, published: bool) -> None:
        if published:
            self._record_pull(read.sender, record=True)
        elif read.sender.incarnation in self._shard.ledgers:
            self._waiting[read.sender.incarnation, read.sender.request] = read
            self._shard.node.post(self._answer_waiting)

    def _record_pull(self, sender: Sender, record: bool = False, lent: int = 0, parts: Sequence[int] = ()) -> None:
        """Note that a pull of these parts, or of all, is answered with the current version. `record`: with its values.
        `lent`: so many bytes, in place."""
        shard, incarnation = self._shard, sender.incarnation
        ledger = shard.ledgers[incarnation]
        ledger.sent += lent
        shard.counts["pulls"] += 1
        shard.mode.record_read(ledger, parts)
        if record:
            shard.node.runtime.record("pulled", incarnation=incarnation, epoch=shard.epoch, counter=shard.store.counter)

    def lend_version(self, sender: Sender) -> Hold | None:
        """Lend the values to a reader on this machine; None if they have to be sent."""
        hold = self.lending.lend_version(sender[3], sender[1])
        if hold is not None:
            self._record_pull(sender, True, self._shard.layout.data_nbytes)
        return hold

    def answer_push(self, sender: Sender, result: Pushed) -> None:
        """Tell a push's result at the end of this turn, with the values where its sender wants them, as it has said,
        maybe for an answer that was told before, and they can be lent."""
        self._shard.gate.answer(sender, self._with_values(sender, result))

    def _with_values(self, sender: Sender, result: Pushed) -> Pushed:
        wanted = self.lending.is_wanted(sender.incarnation, sender.request)
        if not wanted or result.status == REFUSED:
            return result
        hold = self.lending.lent(sender.incarnation, sender.request) or self.lend_version(sender)
        return result if hold is None else changed(result, lent=[hold.counter, hold.step, hold.memories])

    def answer_applied(self, sender: Sender, result: Pushed, lend: bool | None) -> None:
        """Tell now that a push was applied. `lend`: with the values, if they can be lent; None: as of `answer_push`."""
        gate, integers = self._shard.gate, result.compact()
        if lend is None or integers is None:
            gate.answer_now(sender, self._with_values(sender, result))
            return
        hold = self.lend_version(sender) if lend else None
        if hold is None:
            gate.answer_plain(sender, PUSHED, integers)
        elif len(hold.memories) == 1:
            integers = *integers[: -len(NOT_LENT)], hold.counter, hold.step, *hold.memories[0]
            gate.answer_plain(sender, PUSHED, integers)
        else:
            gate.answer_now(sender, changed(result, lent=[hold.counter, hold.step, hold.memories]))

    def _answer_lent(self, sender: Sender) -> bool:
        """A pull that was lent a version was sent again: answer with that version, unless it was returned."""
        hold = self.lending.lent(sender.incarnation, sender.request)
        if hold is not None:
            self._shard.gate.answer(sender, SharedValues(self._shard.epoch, hold.counter, hold.step, hold.memories))
        return hold is not None or self.lending.is_over(sender.incarnation, sender.request)

    def give_back(self, sender: Sender, message: Release) -> None:
        """A reader has finished."""
        self._shard.ledger(sender)
        for number in message.numbers:
            self._sending.buffers.sent += self.lending.give_back(sender.incarnation, number) * self._shard.layout.nbytes
        self._shard.node.answer(sender)
        self.answer_waiting()

    def _send_packed(self, read: _Read, packed: PackedLayout) -> None:
        """Send one version compressed, or the changes since the version that the session has."""
        base, store = read.pull.base, self._shard.store
        data = self._packing.pack_values(packed, keep=base != NO_BASE)
        changes = self._packing.changes(packed, base)
        data, base = (data, NO_BASE) if changes is None else (changes, base)
        self.send_bytes(read.sender, store.counter, store.step, data, base)

    def send_bytes(
        self, sender: Sender, counter: int, step: int, data: Array, base: int = NO_BASE, checksum: int = NO_CHECKSUM
    ) -> None:  # fmt: skip
        """Send the packed bytes of a version, or its changes since `base`. `checksum`: as of `Values`."""
        number = self._sending.next_number()
        self._shard.ledgers[sender.incarnation].sent += data.nbytes
        for piece in cut([(0, data.nbytes)], self._shard.node.runtime.tuning.piece_nbytes):
            arrays = tuple(data[offset : offset + n] for offset, n in piece)
            about, offsets = (self._shard.epoch, counter, step), [offset for offset, _ in piece]
            self._shard.gate.answer(sender, Values(*about, data.nbytes, offsets, number, base, checksum, arrays))

    def send_copy(self, sender: Sender, pull: Pull, hold: Hold) -> None:
        """Send a copy of an earlier version."""
        self._sending.send_version(sender, pull, hold, self._answer_soon)
