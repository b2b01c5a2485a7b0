"""The ps as an actor: takes a shard of the plan from the chief and serves it to sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from dps.actors.actor import Actor
from dps.actors.answers import Waiting
from dps.actors.authorization import Unproven, digest
from dps.actors.ref import Sender
from dps.checkpoint import load_told
from dps.errors import Aborted, DpsError, NotAuthenticated, ProtocolError
from dps.messages.runs import (
    AskServing,
    AskStats,
    AskStatus,
    Configure,
    Configured,
    ConfiguredBefore,
    CutShard,
    Init,
    Members,
    MembersKnown,
    SaveShard,
    Stats,
)
from dps.messages.sessions import (
    CUT,
    SHARED,
    STEP_PS,
    WINDOW,
    CommitVersion,
    CountSteps,
    Credit,
    CutVersion,
    Decide,
    Enter,
    Exchange,
    HoldPushes,
    Lookup,
    Probe,
    Probed,
    Pull,
    Push,
    PushesHeld,
    PushMissing,
    PushStatus,
    Release,
    Report,
    ResumePushes,
    SettleVersion,
)
from dps.ps.intake.borrowed import place_of
from dps.ps.intake.intake import Intake, IntakeState, Staged, made_push, push_of
from dps.ps.intake.ledger import Ledger
from dps.ps.intake.receiving import receive
from dps.ps.modes.asynchronous import AsyncMode, BoundedMode
from dps.ps.modes.mode import Mode
from dps.ps.modes.sync import SyncMode
from dps.ps.modes.whole_pushes import TAKEN
from dps.ps.serving.saving import restore
from dps.ps.shard import Shard
from dps.ps.store.memory import check_device
from dps.ps.warm import warm, warm_tables
from dps.training.update_modes import Async, Bounded, SyncReplicas, Update, from_wire, on_ps
from dps.transport.endpoint import Memory
from dps.transport.shared_memory import ASKED, ASKER, expected, marked, proof
from dps.variables.plan import Plan, as_applied

if TYPE_CHECKING:
    from dps.actors.shortcuts import Integers
    from dps.ps.store.making import Making

MODES: dict[type[Update], Callable[[Shard, Any], Mode]] = {
    Async: AsyncMode, Bounded: BoundedMode, SyncReplicas: SyncMode,
}  # fmt: skip
"""How the ps work in each update mode (`on_ps`)."""


class PsActor(Actor):
    """Serves one shard. Everything it holds belongs to a run epoch; a new epoch starts from nothing."""

    def __init__(self, device: str = "", threads: int = 1) -> None:
        """`device`: the device of variables whose placement names none, such as "gpu:0"; "" is the CPU. `threads`: as
        of `Store`. Raises ConfigError for a device that cannot be used."""
        check_device(device)
        self.device, self.threads = device, threads
        self.shard: Shard | None = None
        self.epoch = 0
        """The highest run epoch seen."""
        self._configuration: Configure | None = None
        """The message that configured the shard."""
        self._ended = 0, 0
        """The last run epoch that trained here and is over, and its last step; 0 if this was not its step ps."""
        self._probe: Memory | None = None
        self._making: Making | None = None
        """The first values that this ps is making for its shard."""
        self._asked_to_make: Sender | None = None

    def started(self) -> None:
        self.node.after(self.node.runtime.tuning.intake.credit_s / 2, self._expire_credit)

    def too_late(self) -> DpsError:
        """Have sessions ask the chief what comes next: another epoch, or the end of the run."""
        return Aborted(f"{self.node.name} has stopped")

    # -- from the chief ---------------------------------------------------------------------------------------

    def on_Configure(self, message: Configure, sender: Sender) -> None:
        if message.epoch < self.epoch:
            raise Aborted(f"{self.node.name} has seen run epoch {self.epoch}; {message.epoch} is over")
        if self.shard is None or self.shard.epoch != message.epoch:
            self._configure(message)
        assert self.shard is not None
        if self._making is None:
            self._answer_configured(self.shard, sender)
        else:
            self._asked_to_make = sender
            self.node.answer(sender, Waiting(self._making.text))

    def _answer_configured(self, shard: Shard, sender: Sender) -> None:
        self.node.answer(sender, Configured(shard.epoch, shard.store.step, *self._ended))

    def _configure(self, message: Configure) -> None:
        plan = as_applied(Plan.from_wire(message.plan), message.settings["update"])
        if message.shard not in plan.ps:
            raise ProtocolError(f"the plan has ps {list(plan.ps)}, not {message.shard}")
        if self.shard is not None and self.shard.is_ready and self.shard.is_step_ps:
            self._ended = self.shard.epoch, self.shard.mode.reached
        self._close_shard()
        self.epoch, self._configuration, self._making = message.epoch, message, None
        addresses = {int(task): str(address) for task, address in message.addresses}
        self.node.tickets.admit("ps", [(ticket, name, "ps", ()) for ticket, name in message.tickets])
        for address in addresses.values():
            self.node.present(address)
        makes = not message.restore and any(spec.init is not None for spec in plan.variables)
        if makes:
            from dps.ps.store.making import Making, check_room  # here: most runs make none

            check_room(plan.layouts[message.shard].nbytes, self.node.name)
        shard = self._make_shard(message, plan, addresses)
        self.shard = shard
        if makes:
            self._making = Making(shard.store, plan, self.node.runtime.storage)
            self.node.after(0.0, lambda: self._make_block(shard))

    def _close_shard(self) -> None:
        """The run epoch of the shard has ended, or its first values cannot be made."""
        shard, self.shard = self.shard, None
        if shard is not None:
            shard.ended = True
            shard.store.close()

    def _make_shard(self, message: Configure, plan: Plan, addresses: dict[int, str]) -> Shard:
        """A shard with its update mode, and the values of the checkpoint if it is restored. All that it runs is
        compiled."""
        own = self.device, self.threads
        shard = Shard(self.node, message.epoch, plan, message.shard, addresses, message.settings, *own)
        if message.restore:
            manifest = load_told(self.node.runtime.storage, message.checkpoint_dir, message.restore, self.node.name)
            restore(shard.store, plan, message.shard, self.node, message.checkpoint_dir, manifest)
        self.node.accepted.allow(2 * WINDOW * (shard.layout.nbytes + shard.store.tables_nbytes))
        update = on_ps(from_wire(message.settings["update"]))
        shard.mode = MODES[type(update)](shard, update)
        warm(shard.layout.arenas, shard.mode.least_pushes)
        warm_tables(shard.layout.tables)
        return shard

    def _make_block(self, shard: Shard) -> None:
        """Make a block of first values, and the next one after the messages that are waiting."""
        making = self._making
        if shard is not self.shard or making is None:
            return  # another run epoch has begun
        try:
            if making.make_block():
                self.node.after(self.node.runtime.tuning.store.made_pause_s, lambda: self._make_block(shard))
                return
            answer: Exception | None = None
        except Exception as error:
            answer = error
            self._close_shard()
        self._making = None
        self.node.runtime.record("first values", epoch=shard.epoch)
        if self._asked_to_make is not None:
            sender, self._asked_to_make = self._asked_to_make, None
            if answer is None:
                self._answer_configured(shard, sender)
            else:
                self.node.answer(sender, answer)

    def on_Init(self, message: Init, sender: Sender) -> None:
        shard = self._shard(message.epoch)
        if shard.is_ready:
            self.node.answer(sender)
            return
        assert self._configuration is not None
        if self._configuration.opener not in ("", digest(message.opener)):
            raise NotAuthenticated(f"{self.node.name} takes first values only from the session that the chief chose")
        if len(message.offsets) != len(message.arrays):
            raise ProtocolError(f"{len(message.offsets)} offsets for {len(message.arrays)} arrays")
        for offset, data in zip(message.offsets, message.arrays, strict=True):
            shard.store.fill_values(offset, data)
        self.node.answer(sender)

    def on_Members(self, message: Members, sender: Sender) -> None:
        shard = self._shard(message.epoch)
        shard.set_members(message)
        shard.gate.answer(sender, MembersKnown(shard.outcomes()))

    def on_AskServing(self, message: AskServing, sender: Sender) -> None:
        shard, told = self.shard, self._configuration
        if shard is None or told is None:
            self.node.answer(sender, ConfiguredBefore(0, False, 0, {}, {}, "", "", {}))
            return
        what = told.plan, told.settings, told.checkpoint_dir, told.restore
        self.node.answer(sender, ConfiguredBefore(shard.epoch, shard.is_ready, shard.store.step, *what, shard.notes()))

    def on_SaveShard(self, message: SaveShard, sender: Sender) -> None:
        self._shard(message.epoch).saving.write_copy(sender, message)

    def on_CutShard(self, message: CutShard, sender: Sender) -> None:
        shard = self._shard(message.epoch)
        if message.cut.startswith(CUT):
            raise ProtocolError(f"{message.cut!r:.40} is no name of a cut for a checkpoint")
        shard.saving.answer_when_cut(sender, message.cut)
        shard.mode.schedule_cut(message.cut)

    def on_HoldPushes(self, message: HoldPushes, sender: Sender) -> None:
        self.node.answer(sender, PushesHeld(self._shard(message.epoch).mode.hold_pushes(message.cut)))

    def on_ResumePushes(self, message: ResumePushes, sender: Sender) -> None:
        self._shard(message.epoch).mode.resume_pushes(message.cut)
        self.node.answer(sender)

    def on_CutVersion(self, message: CutVersion, sender: Sender) -> None:
        shard = self._shard(message.epoch)
        if not message.cut.startswith(CUT):
            raise ProtocolError(f"{message.cut!r:.40} is no name of a cut for a published version")
        shard.versions.answer_when_cut(sender, message.cut)
        if message.holds:
            shard.mode.schedule_cut_at(message.cut, message.numbers, sender)
        else:
            shard.mode.schedule_cut(message.cut)

    def on_CommitVersion(self, message: CommitVersion, sender: Sender) -> None:
        self._shard(message.epoch).versions.commit(message.cut, message.number, message.label, message.step)
        self.node.answer(sender)

    def on_SettleVersion(self, message: SettleVersion, sender: Sender) -> None:
        self._shard(message.epoch).versions.drop_older(message.number)
        self.node.answer(sender)

    def on_AskStats(self, message: AskStats, sender: Sender) -> None:
        own = None if self.shard is None else self.shard.ledgers.get(sender.incarnation)
        self.node.answer(sender, Stats(self._stats(() if own is None else (own,))))

    def on_AskStatus(self, message: AskStatus, sender: Sender) -> None:
        self.node.answer(sender, Stats(self._stats(() if self.shard is None else self.shard.ledgers.values())))

    def _stats(self, ledgers: Iterable[Ledger]) -> dict[str, Any]:
        """The counters of the shard, and of the sessions of these ledgers."""
        shard = self.shard
        if shard is None:
            return {"state": "waits for the chief"}
        assert self._configuration is not None
        by_pushes = sorted(ledgers, key=lambda ledger: ledger.done)  # of two sessions of a task the busier one is shown
        return {
            "state": "ready" if shard.is_ready else "filling", "epoch": shard.epoch, "step": shard.store.step,
            "version": shard.store.counter, "nbytes": shard.layout.data_nbytes, "leases": shard.store.leased(),
            "sessions": {ledger.name: ledger.counters(shard.is_step_ps) for ledger in by_pushes},
            "update": self._configuration.settings["update"], "standstill": shard.mode.standstill(),
            "waits": shard.mode.waiting_for(), "refused_messages": self.node.refused_messages, **shard.counts,
            **({"tables": shard.store.described_tables()} if shard.store.tables else {}),
        }  # fmt: skip

    # -- from sessions ----------------------------------------------------------------------------------------

    def on_Pull(self, message: Pull, sender: Sender) -> None:
        self._shard(message.epoch).reading.answer_pull(sender, message)

    # -- memory of this machine -------------------------------------------------------------------------------

    def on_Release(self, message: Release, sender: Sender) -> None:
        self._shard(message.epoch).reading.give_back(sender, message)

    def on_Probe(self, message: Probe, sender: Sender) -> None:
        """Find out whether a session and this ps read each other's memory. The first answer says where to read."""
        if not sender.peer.name:
            raise Unproven(f"{self.node.name} shares memory only with processes that the chief has admitted")
        self._probe = self._probe or marked(self.node.runtime)
        own = [] if self._probe is None else self._probe.name
        found = proof(self.node.runtime, message.memory, ASKED, own)
        if not found or self._probe is None:
            self.node.answer(sender, Probed([]))
            return
        peer = sender.peer
        peer.near = peer.near or message.proof == expected(self._probe, ASKER, message.memory)
        direct = self.node.tickets.pair(sender.route, message.direct) if peer.near else b""
        self.node.answer(sender, Probed(own, found, peer.near, direct))

    def on_Lookup(self, message: Lookup, sender: Sender) -> None:
        self._shard(message.epoch).reading.lookups.answer_lookup(sender, message)

    def on_Enter(self, message: Enter, sender: Sender) -> None:
        shard = self._shard(message.epoch)
        shard.ledger(sender)
        shard.mode.answer_enter(sender)

    def on_Credit(self, message: Credit, sender: Sender) -> None:
        shard = self._shard(message.epoch)
        ledger = shard.ledger(sender)
        key = sender.incarnation, message.number
        if key in shard.credits.held or ledger.is_complete(message.number):
            self.node.answer(sender)
            return
        ledger.check_reach(message.number)
        shard.credits.wanted[key] = sender
        self._grant_credit(shard)
        if key in shard.credits.wanted:
            most = self.node.runtime.tuning.intake.credits
            self.node.answer(sender, Waiting(f"{self.node.name} takes {most} large pushes at a time"))

    def _grant_credit(self, shard: Shard) -> None:
        """Give credit to the sessions that may have it now."""
        now = self.node.runtime.now()
        for sender in shard.credits.take_granted(now, shard.saves_memory):
            self.node.answer(sender)
        seconds = shard.credits.next_grant_s(now)
        if seconds is not None:
            self.node.after(seconds, lambda: None if shard.ended else self._grant_credit(shard))

    def _expire_credit(self) -> None:
        """Take credit and pieces from senders that have sent nothing for too long."""
        self.node.after(self.node.runtime.tuning.intake.credit_s / 2, self._expire_credit)
        shard = self.shard
        if shard is None:
            return
        for incarnation, number in shard.credits.expire_credit(self.node.runtime.now()):
            ledger = shard.ledgers.get(incarnation)
            if ledger is not None and not ledger.is_complete(number):
                ledger.discard_push(number)
        self._grant_credit(shard)

    def take_Push(self, sender: Sender, integers: Integers) -> None:
        """A whole gradient in the session's memory, as `Push.expanded` names the integers."""
        epoch, number, step, counter, nbytes, clock, lend, released = integers[1:9]
        shard = self.shard
        if shard is None or shard.epoch != epoch:
            shard = self._shard(epoch)
        ledger = shard.ledgers.get(sender[3])
        if ledger is None:
            ledger = shard.ledger(sender)
        if released > ledger.released:
            shard.reading.release_below(ledger, released)
        push = made_push((ledger.task, ledger.incarnation, number, step, counter, clock, STEP_PS))
        verdict = shard.pushes.take_push(push, ledger, nbytes, (*integers[9:], 0), sender, lend != 0)
        if verdict not in TAKEN:
            self.on_Push(Push.expanded(*integers[1:]), sender)

    def on_Push(self, message: Push, sender: Sender) -> None:
        shard = self._shard(message.epoch)
        ledger = shard.ledger(sender)
        if message.times:
            ledger.record_times(message.times)
        if message.released > ledger.released:
            shard.reading.release_below(ledger, message.released)
        is_whole = message.form == SHARED and not message.offsets  # and in the session's memory
        place = place_of(message.parts) if is_whole else ()
        about = push_of(message, ledger), ledger, message.nbytes, place
        verdict = shard.pushes.take_push(*about, sender, message.lend)
        if verdict in TAKEN:
            return
        shard.reading.lending.record_wish(sender.incarnation, sender.request, message.lend)
        if verdict == "again":
            shard.mode.answer_repeated(ledger, message.number, sender)
        else:
            how = shard.layout, shard.checks_finite, shard.mode.open_intake, shard.store.tables
            self._take_received(shard, receive(message, ledger, *how), ledger, message.number, sender)

    def _take_received(
        self, shard: Shard, came: Intake | Staged, ledger: Ledger, number: int, sender: Sender
    ) -> None:  # fmt: skip
        """A push that was not admitted is complete, or a part of it has come."""
        key = sender.incarnation, number
        if isinstance(came, Staged):
            shard.pushes.accept_staged(came, ledger, sender)
            if key in shard.credits.held:
                shard.credits.return_credit(key, self.node.runtime.now())
                self._grant_credit(shard)
        elif came.state is IntakeState.LOST:
            self.node.answer(sender, PushMissing(number))
        else:
            shard.credits.record_piece(key, came.ranges.nbytes, self.node.runtime.now())

    def on_PushStatus(self, message: PushStatus, sender: Sender) -> None:
        shard = self._shard(message.epoch)
        ledger = shard.ledger(sender)
        if ledger.is_complete(message.number):
            shard.mode.answer_repeated(ledger, message.number, sender)
        else:
            self.node.answer(sender, PushMissing(message.number))

    def on_Exchange(self, message: Exchange, sender: Sender) -> None:
        shard = self._shard(message.epoch)
        shard.ledger(sender)
        shard.mode.join_exchange(message, sender)

    # -- from other ps ----------------------------------------------------------------------------------------

    def on_Report(self, message: Report, sender: Sender) -> None:
        self._ready_shard(message.epoch).mode.on_report(message)
        self.node.answer(sender)

    def on_CountSteps(self, message: CountSteps, sender: Sender) -> None:
        self._ready_shard(message.epoch).mode.count_steps(message, sender)

    def on_Decide(self, message: Decide, sender: Sender) -> None:
        self._shard(message.epoch).mode.on_decide(message)
        self.node.answer(sender)

    def _shard(self, epoch: int) -> Shard:
        if self.shard is None or self.shard.epoch != epoch:
            now = "none yet" if self.shard is None else str(self.shard.epoch)
            raise Aborted(f"{self.node.name} serves run epoch {now}, not {epoch}")
        return self.shard

    def _ready_shard(self, epoch: int) -> Shard:
        shard = self._shard(epoch)
        if not shard.is_ready:
            raise Aborted(f"{self.node.name} is not ready in run epoch {epoch}")
        return shard
