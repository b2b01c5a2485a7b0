"""One shard in one run epoch: its store, the sessions' ledgers, the reads that wait, and the update mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from dps.actors.messages import Waiting
from dps.actors.ref import Ref, Sender
from dps.actors.system import Node
from dps.errors import Aborted
from dps.protocol import (
    NO_BASE,
    NOWHERE,
    REFUSED,
    Changes,
    Look,
    Members,
    NotNewer,
    Pull,
    Push,
    Pushed,
    Release,
    SharedValues,
    Shown,
    Step,
    Stepped,
    Values,
)
from dps.ps.intake.borrowed import Borrowed
from dps.ps.intake.credit import Credits
from dps.ps.intake.intake import Intake
from dps.ps.intake.ledger import Ledger
from dps.ps.intake.staged import PushOf, Staged
from dps.ps.serving.lending import Lending
from dps.ps.serving.lookups import Lookups
from dps.ps.serving.notices import Notices
from dps.ps.serving.packing import Packing
from dps.ps.serving.room import Wait
from dps.ps.serving.saving import Saving
from dps.ps.serving.sending import Answer, Sending, cut
from dps.ps.store.draft import Draft
from dps.ps.store.hold import Hold
from dps.ps.store.store import Store
from dps.transport.message import changed
from dps.transport.wire import Array
from dps.variables.packed import PackedLayout
from dps.variables.plan import Plan


class Mode(Protocol):
    """An update mode on one shard."""

    frees: bool
    """Whether the memory of a push goes piece by piece while it is applied."""

    @property
    def reached(self) -> int:
        """The highest step that anybody was told of, on the step ps."""

    def begin(self, push: PushOf) -> Intake:
        """Open the intake of a push that comes in pieces."""

    def whole(self, staged: Staged, sender: Sender) -> None:
        """A push is complete and, unless that is left to its pass, checked."""

    def again(self, ledger: Ledger, number: int, sender: Sender) -> None:
        """A push that is whole or decided came again: answer what there is to say."""

    def enter(self, sender: Sender) -> None:
        """A session wants to take part in synchronous steps."""

    def may_read(self, sender: Sender, pull: Pull) -> str:
        """ "" when the session may read now, else who it waits for."""

    def pulled(self, ledger: Ledger) -> None:
        """A session has pulled the current version."""

    def members(self, message: Members) -> None:
        """Who takes part has changed; the ledgers of new sessions are there."""

    def cut(self, name: str) -> None:
        """A checkpoint is wanted: have `shard.saving.cut(name)` called at the right moment."""

    def waiting_for(self) -> str:
        """Who is waited for now, for errors and status; "" when nobody is."""

    def step(self, step: Step, sender: Sender) -> bool:
        """Take a push that may be part of a step at once; False where it is for the ordinary way."""

    def taken_back(self) -> list[tuple[Push, Sender]]:
        """The pushes that `step` took and that have no answer yet: they are for the ordinary way now."""


@dataclass
class _Read:
    """A pull that is not answered yet."""

    sender: Sender
    pull: Pull
    packed: PackedLayout | None
    wait: Wait


class Shard:
    """What a ps holds between two Configure messages. All methods run on the node's thread."""

    def __init__(
        self, node: Node, epoch: int, plan: Plan, ps: int, addresses: dict[int, str], settings: dict[str, Any],
        device: str = "", threads: int = 1,
    ) -> None:  # fmt: skip
        """`device`, `threads`: as of `Store`, which may raise ConfigError for the device."""
        self.node, self.epoch, self.plan, self.ps = node, epoch, plan, ps
        self.layout = plan.layouts[ps]
        self.store = Store(self.layout, node.runtime, device, threads)
        self.settings = settings
        self.peers = {task: Ref(address, "ps") for task, address in addresses.items()}
        self.step_ps = plan.ps[0]
        self.ready = False
        self.ledgers: dict[int, Ledger] = {}
        self.members_version = -1
        self.notes: dict[str, Any] = {}
        """Of the newest Members, for another chief."""
        self.saving = Saving(self.store, plan, ps, node, self._decided)
        self.checks_finite = bool(settings.get("check_finite", True))
        self.takes_steps = len(self.layout.arenas) == 1 and bool(self.layout.trained)
        """Whether a Step can name all that a push brings."""
        self.ended = False
        """A newer run epoch has replaced this shard; what it still asked for is moot."""
        self.mode: Mode
        self.counts = {"applied": 0, "dropped": 0, "refused": 0, "pulls": 0, "copied_pulls": 0, "aborted": 0}
        self.staleness: dict[str, int] = {}
        self.lending = Lending(self.store)
        self.credits = Credits(self.layout.gradient_nbytes, node.runtime.tuning)
        self.lookups = Lookups(self)
        self.notices = Notices(node, node.runtime.tuning.serving.moment_s)
        self._packing = Packing(self.store)
        self._sending = Sending(node, epoch, plan, self.store, self.ledgers)
        self._reads: dict[tuple[Any, int], _Read] = {}

    @property
    def is_step_ps(self) -> bool:
        return self.ps == self.step_ps

    @property
    def spares(self) -> bool:
        """Whether memory is worth that pushes come one after the other."""
        return self.store.is_large and self.mode.frees

    def waiting_for(self) -> str:
        """Who is waited for now, for errors and status; "" when nobody is."""
        return self.mode.waiting_for()

    # -- sessions ---------------------------------------------------------------------------------------------

    def ledger(self, sender: Sender, epoch: int) -> Ledger:
        """The ledger of a message's session; Aborted for another epoch or an incarnation not admitted."""
        if epoch != self.epoch or not self.ready:
            self.counts["aborted"] += 1
            raise Aborted(f"run epoch {epoch} is not the one of {self.node.name}, which is {self.epoch}")
        found = self.ledgers.get(sender.incarnation)
        if found is None:
            self.counts["aborted"] += 1
            raise Aborted(f"{self.node.name} has not admitted incarnation {sender.incarnation} of {sender.name}")
        return found

    def set_members(self, message: Members) -> None:
        """Admit new sessions and, in its own time, the mode forgets those that ended."""
        if message.version <= self.members_version:
            return
        self.members_version, self.notes = message.version, message.notes
        self.ready = True
        for incarnation, name, task, _ in message.live:
            if incarnation not in self.ledgers:
                self.ledgers[incarnation] = Ledger(task, incarnation, name, Borrowed(self.node.runtime))
        self.mode.members(message)
        self.wake_reads()

    def forget(self, incarnation: int) -> None:
        """Drop a session that has ended: its staged pushes, its results, its waiting reads."""
        ledger = self.ledgers.pop(incarnation, None)
        if ledger is not None:
            ledger.clear()
        self.lending.forget(incarnation)
        self.lookups.forget(incarnation)
        self._sending.rates.forget(incarnation)
        for key in [k for k, read in self._reads.items() if read.sender.incarnation == incarnation]:
            del self._reads[key]

    def _decided(self) -> list[list[int]]:
        """Of each session the number of its last push that has a result, with all before it."""
        return sorted([incarnation, ledger.done] for incarnation, ledger in self.ledgers.items() if ledger.done)

    def decide(self, ledger: Ledger, result: Pushed) -> Pushed:
        """Record a push's result on this shard."""
        ledger.record(result)
        self.counts[result.status] += 1
        return result

    # -- reads ------------------------------------------------------------------------------------------------

    def read(self, sender: Sender, pull: Pull) -> None:
        """Answer a pull now, or keep it until it may be answered."""
        self.ledger(sender, pull.epoch)
        if pull.released:
            self.released(sender.incarnation, pull.released)
        key = sender.route, sender.request
        if self._sending.is_on_its_way(sender):  # a slow answer is not sent twice
            return
        wanted, earlier = pull.packed or pull.base != NO_BASE, self._reads.pop(key, None)
        wait = Wait() if earlier is None else earlier.wait
        read = _Read(sender, pull, PackedLayout(self.layout, pull.parts, pull.packed) if wanted else None, wait)
        for index in pull.parts:
            if type(index) is not int or index not in self.layout.place:
                raise ValueError(f"part {index!r} is not on {self.node.name}")
        if self._not_yet(sender, pull):
            self._reads[key] = read
            self.notices.add(partial(self._say_why, key))
        else:
            self._answer(read)

    def _say_why(self, key: tuple[Any, int]) -> None:
        read = self._reads.get(key)
        if read is not None:
            self.node.answer(read.sender, Waiting(self._not_yet(read.sender, read.pull)))

    def waits(self, sender: Sender) -> bool:
        """Whether a read still has no answer."""
        return (sender.route, sender.request) in self._reads

    def wake_reads(self) -> None:
        """Answer the reads and lookups that waited for what has just happened."""
        self.lookups.wake()
        if not self._reads:
            return
        for key, read in list(self._reads.items()):
            if read.sender.incarnation not in self.ledgers:
                del self._reads[key]
            elif not self._not_yet(read.sender, read.pull):
                del self._reads[key]
                self._answer(read)

    def _wake(self) -> None:
        """Later: room may have become free."""
        if not self.ended:
            self.wake_reads()

    def released(self, incarnation: int, number: int) -> None:
        """A session reads nothing under lower numbers any more."""
        self._sending.room.sent += self.lending.give_back_below(incarnation, number) * self.layout.nbytes
        if self._reads:
            self.node.post(self._wake)

    def _not_yet(self, sender: Sender, pull: Pull) -> str:
        """Why a pull has to wait; "" when it may be answered."""
        if self.store.step < pull.min_step:
            return (
                f"{self.node.name} is at step {self.store.step}, step {pull.min_step} is wanted: "
                + self.mode.waiting_for()
            )
        if pull.after and not self.ledgers[sender.incarnation].decided(pull.after):
            return f"push {pull.after} has no result on {self.node.name}: " + self.mode.waiting_for()
        return self.mode.may_read(sender, pull)

    def _answer(self, read: _Read) -> None:
        sender, store = read.sender, self.store
        if read.pull.shared and self._again(sender):
            return
        if read.pull.newer_than >= store.counter:
            self._note(sender)
            self.node.answer(sender, NotNewer(self.epoch, store.counter, store.step))
            return
        if read.packed is not None:
            self._note(sender, record=True)
            self._send_packed(read, read.packed)
            return
        arenas = store.refresh(read.pull.parts)
        if read.pull.shared and not read.pull.parts and (hold := self.lend(sender)) is not None:
            self.node.answer(sender, SharedValues(self.epoch, hold.counter, hold.step, hold.memories))
            return
        asked_at = read.wait.until
        hold = self._sending.room.hold(read.wait, arenas)
        self.counts["copied_pulls"] = self._sending.room.copies
        if hold is None:
            self._reads[sender.route, sender.request] = read
            if read.wait.until != asked_at:
                self.node.after(read.wait.until - self.node.runtime.now(), self._wake)
            return
        self._note(sender, record=True)
        self._sending.send(sender, read.pull, hold, self._left)

    def _left(self) -> None:
        """Values have left: room may have become free."""
        if self._reads:
            self.node.post(self._wake)

    def answer_draft(self, incarnation: int, number: int, draft: Draft) -> tuple[Answer, Callable[[bool], None]] | None:
        """Begin to answer the pull that waits for a push with the version that a draft of the push will be; and what to
        call when it is, or (False) never will be. None if nobody waits, or has to be answered otherwise."""
        waiting = (
            read for read in self._reads.values() if (read.sender.incarnation, read.pull.after) == (incarnation, number)
        )
        read = next(waiting, None)
        if read is None or read.packed is not None or read.pull.parts or read.pull.shared:
            return None
        sender, pull = read.sender, read.pull
        hold = None if pull.min_step > draft.step else self.store.hold_draft(draft)
        if hold is None:
            return None
        del self._reads[sender.route, sender.request]
        over = partial(self._draft_is_over, read)
        return self._sending.begin(sender, pull, hold, self._left), over

    def _draft_is_over(self, read: _Read, published: bool) -> None:
        if published:
            self._note(read.sender, record=True)
        elif read.sender.incarnation in self.ledgers:
            self._reads[read.sender.route, read.sender.request] = read
            self.node.post(self._wake)

    def _note(self, sender: Sender, record: bool = False) -> None:
        """A pull is answered with the current version; `record`: with its values."""
        ledger = self.ledgers[sender.incarnation]
        ledger.pulled = self.store.counter
        self.counts["pulls"] += 1
        self.mode.pulled(ledger)
        if record:
            self.node.runtime.record(
                "pulled", incarnation=sender.incarnation, epoch=self.epoch, counter=self.store.counter
            )  # fmt: skip

    def lend(self, sender: Sender) -> Hold | None:
        """Let a reader on this machine read in place; None when it has to be sent the values."""
        hold = self.lending.lend(sender.incarnation, sender.request)
        if hold is not None:
            self._note(sender, record=True)
        return hold

    def lend_all(self, senders: Sequence[Sender]) -> list[int]:
        """Let several readers of this machine read the current version; where the memory of the only arena is, or
        NOWHERE when they have to be sent the values."""
        self.store.refresh([])
        place = NOWHERE
        for sender in senders if len(self.layout.arenas) == 1 else ():
            hold = self.lend(sender)
            if hold is None:  # so it is for all of them: what keeps one from holding the current version keeps the next
                return NOWHERE
            place = hold.memories[0]
        return place

    def gradients_of(self, step: Step, sender: Sender) -> list[Array]:
        """What a Step brings, by arena, where it lies. ProtocolError and Unavailable as of `Borrowed.run`."""
        name = step.process, step.descriptor, step.inode, step.nbytes
        return self.ledgers[sender.incarnation].memory.arrays(name, self.layout)

    def look(self, sender: Sender, message: Look) -> None:
        """Answer who reads in place, if that goes at once."""
        self.ledger(sender, message.epoch)
        if message.released:
            self.released(sender.incarnation, message.released)
        place = self.lend_all([sender])
        if place is NOWHERE:
            self.node.answer(sender, Waiting(f"{self.node.name} has no room for one more reader"))
        else:
            self.node.answer(sender, Shown(self.store.counter, self.store.step, *place))

    def stepped(self, sender: Sender, step: Step, staleness: int) -> None:
        """Tell of a push that was just applied, with the values where its sender wants them and they can be lent."""
        store = self.store
        place = self.lend_all([sender]) if step.lend else NOWHERE
        self.node.answer(sender, Stepped(step.number, store.step, staleness, store.counter, *place))

    def hears(self, message: Push, sender: Sender) -> None:
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
                self.store.refresh([])
                hold = self.lend(sender)
            if hold is not None:
                result = changed(result, lent=[hold.counter, hold.step, hold.memories])
        self.node.answer(sender, result)

    def _again(self, sender: Sender) -> bool:
        """A pull that was lent a version comes again: it is told of that version, or has returned it."""
        hold = self.lending.lent(sender.incarnation, sender.request)
        if hold is not None:
            self.node.answer(sender, SharedValues(self.epoch, hold.counter, hold.step, hold.memories))
        return hold is not None or self.lending.is_over(sender.incarnation, sender.request)

    def release(self, sender: Sender, message: Release) -> None:
        """A reader is done."""
        self.ledger(sender, message.epoch)
        for number in message.numbers:
            self._sending.room.sent += self.lending.give_back(sender.incarnation, number) * self.layout.nbytes
        self.node.answer(sender)
        self.wake_reads()

    def _send_packed(self, read: _Read, packed: PackedLayout) -> None:
        """One version in fewer bytes, or what changed since the one that the asker has."""
        base, store = read.pull.base, self.store
        data = self._packing.packed(packed, keep=base != NO_BASE)
        changes = self._packing.changes(packed, base)
        data = data if changes is None else changes
        for piece in cut([(0, data.nbytes)], self.node.runtime.tuning.piece_nbytes):
            arrays = tuple(data[offset : offset + n] for offset, n in piece)
            about, offsets = (self.epoch, store.counter, store.step), [offset for offset, _ in piece]
            if changes is None:
                self.node.answer(read.sender, Values(*about, data.nbytes, offsets, 0, arrays))
            else:
                self.node.answer(read.sender, Changes(*about, base, data.nbytes, offsets, arrays))
