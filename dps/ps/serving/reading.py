"""The pulls of a shard's sessions, answered when they may be, and the versions that they read in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dps.actors.bounds import Bound
from dps.actors.messages import Waiting
from dps.actors.ref import Sender
from dps.protocol import NO_BASE, REFUSED, Changes, NotNewer, Pull, Push, Pushed, Release, SharedValues, Values
from dps.ps.serving.lending import Lending
from dps.ps.serving.lookups import Lookups
from dps.ps.serving.notices import Notices
from dps.ps.serving.packing import Packing
from dps.ps.serving.room import Wait
from dps.ps.serving.sending import Answer, Sending, cut
from dps.ps.store.draft import Draft
from dps.ps.store.hold import Hold
from dps.transport.message import changed
from dps.variables.packed import PackedLayout

if TYPE_CHECKING:
    from dps.ps.shard import Shard


@dataclass
class _Read:
    """A pull that is not answered yet."""

    sender: Sender
    pull: Pull
    packed: PackedLayout | None
    wait: Wait


class Reading:
    """What one shard's sessions read. Runs on the node's thread."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.lending = Lending(shard.store)
        self.lookups = Lookups(shard)
        self.notices = Notices(shard.node, shard.node.runtime.tuning.serving.moment_s)
        self._packing = Packing(shard.store)
        self._sending = Sending(shard.node, shard.epoch, shard.plan, shard.store, shard.ledgers)
        self._waiting: dict[tuple[Any, int], _Read] = {}
        self._bound = Bound("pulls that wait", shard.node.runtime.tuning.serving.waiting_pulls)

    def wake(self) -> None:
        """Answer the pulls and lookups that waited for what has just happened."""
        if self.lookups.waiting:
            self.lookups.wake()
        for key, read in list(self._waiting.items()) if self._waiting else ():
            if read.sender.incarnation not in self._shard.ledgers:
                del self._waiting[key]
            elif not self._not_yet(read.sender, read.pull):
                del self._waiting[key]
                self._answer(read)

    def forget(self, incarnation: int) -> None:
        """A session has ended."""
        self.lending.forget(incarnation)
        self.lookups.forget(incarnation)
        self._sending.rates.forget(incarnation)
        for key in [key for key, read in self._waiting.items() if read.sender.incarnation == incarnation]:
            del self._waiting[key]

    def read(self, sender: Sender, pull: Pull) -> None:
        """Answer a pull now, or keep it until it may be answered."""
        self._shard.ledger(sender, pull.epoch)
        if pull.released:
            self.released(sender.incarnation, pull.released)
        key = sender.incarnation, sender.request
        if self._sending.is_on_its_way(sender):  # a slow answer is not sent twice
            return
        wanted, earlier = pull.packed or pull.base != NO_BASE, self._waiting.pop(key, None)
        wait = Wait() if earlier is None else earlier.wait
        read = _Read(sender, pull, PackedLayout(self._shard.layout, pull.parts, pull.packed) if wanted else None, wait)
        for index in pull.parts:
            if type(index) is not int or index not in self._shard.layout.place:
                raise ValueError(f"part {index!r} is not on {self._shard.node.name}")
        if self._not_yet(sender, pull):
            if len(self._waiting) >= self._bound.most:
                self._bound.check(sum(other == sender.incarnation for other, _ in self._waiting), sender.name)
            self._waiting[key] = read
            self.notices.add(partial(self._say_why, key))
        else:
            self._answer(read)

    def _say_why(self, key: tuple[Any, int]) -> None:
        read = self._waiting.get(key)
        if read is not None:
            self._shard.node.answer(read.sender, Waiting(self._not_yet(read.sender, read.pull)))

    def waits(self, sender: Sender) -> bool:
        """Whether a read still has no answer."""
        return (sender.incarnation, sender.request) in self._waiting

    def _wake(self) -> None:
        """Later: room may have become free."""
        if not self._shard.ended:
            self.wake()

    def released(self, incarnation: int, number: int) -> None:
        """A session reads nothing under lower numbers any more."""
        self._sending.room.sent += self.lending.give_back_below(incarnation, number) * self._shard.layout.nbytes
        if self._waiting:
            self._shard.node.post(self._wake)

    def _not_yet(self, sender: Sender, pull: Pull) -> str:
        """Why a pull has to wait; "" when it may be answered."""
        if self._shard.store.step < pull.min_step:
            return (
                f"{self._shard.node.name} is at step {self._shard.store.step}, step {pull.min_step} is wanted: "
                + self._shard.mode.waiting_for()
            )
        if pull.after and not self._shard.ledgers[sender.incarnation].decided(pull.after):
            return f"push {pull.after} has no result on {self._shard.node.name}: " + self._shard.mode.waiting_for()
        return "" if pull.averages else self._shard.mode.may_read(sender, pull)

    def _answer(self, read: _Read) -> None:
        sender, store = read.sender, self._shard.store
        if read.pull.averages:
            self._sending.send(sender, read.pull, store.averages(), self._left)
            return
        if read.pull.shared and self._again(sender):
            return
        if read.pull.newer_than >= store.counter:
            self._note(sender)
            self._shard.node.answer(sender, NotNewer(self._shard.epoch, store.counter, store.step))
            return
        if read.packed is not None:
            self._note(sender, record=True)
            self._send_packed(read, read.packed)
            return
        arenas = store.refresh(read.pull.parts)
        if read.pull.shared and not read.pull.parts and (hold := self.lend(sender)) is not None:
            self._shard.node.answer(sender, SharedValues(self._shard.epoch, hold.counter, hold.step, hold.memories))
            return
        asked_at = read.wait.until
        hold = self._sending.room.hold(read.wait, arenas)
        self._shard.counts["copied_pulls"] = self._sending.room.copies
        if hold is None:
            self._waiting[sender.incarnation, sender.request] = read
            if read.wait.until != asked_at:
                self._shard.node.after(read.wait.until - self._shard.node.runtime.now(), self._wake)
            return
        self._note(sender, record=True)
        self._sending.send(sender, read.pull, hold, self._left)

    def _left(self) -> None:
        """Values have left: room may have become free."""
        if self._waiting:
            self._shard.node.post(self._wake)

    def answer_draft(self, incarnation: int, number: int, draft: Draft) -> tuple[Answer, Callable[[bool], None]] | None:
        """Begin to answer the pull that waits for a push with the version that a draft of the push will be; and what to
        call when it is, or (False) never will be. None if nobody waits, or has to be answered otherwise."""
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
        over = partial(self._draft_is_over, read)
        return self._sending.begin(sender, pull, hold, self._left), over

    def _draft_is_over(self, read: _Read, published: bool) -> None:
        if published:
            self._note(read.sender, record=True)
        elif read.sender.incarnation in self._shard.ledgers:
            self._waiting[read.sender.incarnation, read.sender.request] = read
            self._shard.node.post(self._wake)

    def _note(self, sender: Sender, record: bool = False, lent: int = 0) -> None:
        """A pull is answered with the current version; `record`: with its values; `lent`: so many bytes, in place."""
        ledger = self._shard.ledgers[sender.incarnation]
        ledger.pulled = self._shard.store.counter
        ledger.sent += lent
        self._shard.counts["pulls"] += 1
        self._shard.mode.pulled(ledger)
        if record:
            self._shard.node.runtime.record(
                "pulled", incarnation=sender.incarnation, epoch=self._shard.epoch, counter=self._shard.store.counter
            )  # fmt: skip

    def lend(self, sender: Sender) -> Hold | None:
        """Let a reader on this machine read in place; None when it has to be sent the values."""
        hold = self.lending.lend(sender.incarnation, sender.request)
        if hold is not None:
            self._note(sender, True, self._shard.layout.data_nbytes)
        return hold

    def heard(self, message: Push, sender: Sender) -> None:
        """What a push says of values that were lent, and of those that are wanted with its result."""
        if message.released:
            self.released(sender.incarnation, message.released)
        if message.lend:
            self.lending.want(sender.incarnation, sender.request)

    def answer_push(self, sender: Sender, result: Pushed) -> None:
        """Tell a push's result, with the values where its sender wants them and they can be lent."""
        if self.lending.wants(sender.incarnation, sender.request) and result.status != REFUSED:
            hold = self.lending.lent(sender.incarnation, sender.request)
            if hold is None:
                hold = self.lend(sender)
            if hold is not None:
                result = changed(result, lent=[hold.counter, hold.step, hold.memories])
        self._shard.node.answer(sender, result)

    def _again(self, sender: Sender) -> bool:
        """A pull that was lent a version comes again: it is told of that version, or has returned it."""
        hold = self.lending.lent(sender.incarnation, sender.request)
        if hold is not None:
            self._shard.node.answer(sender, SharedValues(self._shard.epoch, hold.counter, hold.step, hold.memories))
        return hold is not None or self.lending.is_over(sender.incarnation, sender.request)

    def give_back(self, sender: Sender, message: Release) -> None:
        """A reader is done."""
        self._shard.ledger(sender, message.epoch)
        for number in message.numbers:
            self._sending.room.sent += self.lending.give_back(sender.incarnation, number) * self._shard.layout.nbytes
        self._shard.node.answer(sender)
        self.wake()

    def _send_packed(self, read: _Read, packed: PackedLayout) -> None:
        """One version in fewer bytes, or what changed since the one that the asker has."""
        base, store = read.pull.base, self._shard.store
        data = self._packing.packed(packed, keep=base != NO_BASE)
        changes = self._packing.changes(packed, base)
        data = data if changes is None else changes
        self._shard.ledgers[read.sender.incarnation].sent += data.nbytes
        for piece in cut([(0, data.nbytes)], self._shard.node.runtime.tuning.piece_nbytes):
            arrays = tuple(data[offset : offset + n] for offset, n in piece)
            about, offsets = (self._shard.epoch, store.counter, store.step), [offset for offset, _ in piece]
            if changes is None:
                self._shard.node.answer(read.sender, Values(*about, data.nbytes, offsets, 0, arrays))
            else:
                self._shard.node.answer(read.sender, Changes(*about, base, data.nbytes, offsets, arrays))
