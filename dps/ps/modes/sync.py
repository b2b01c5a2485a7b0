"""Synchronous updates on one shard: report complete pushes, carry out the step ps's decisions in order."""

from __future__ import annotations

from functools import partial
from typing import Any

from dps.actors.answers import Waiting
from dps.actors.ref import Sender
from dps.errors import ProtocolError
from dps.messages.runs import Members
from dps.messages.sessions import (
    APPLIED,
    DROPPED,
    REFUSED,
    WINDOW,
    CountSteps,
    Decide,
    Exchange,
    Pushed,
    PushHeld,
    Report,
    Token,
)
from dps.ps.intake.intake import Gathering, Intake, PushOf, Staged
from dps.ps.intake.ledger import Ledger
from dps.ps.modes.combine import assigned, combined
from dps.ps.modes.exchanges import Exchanges
from dps.ps.modes.mode import Mode
from dps.ps.modes.quorum import Decision, Grant, PushId, Quorum, QuorumMember
from dps.ps.modes.whole_pushes import KeptPush
from dps.ps.serving.long_waits import LongWaits, Waits
from dps.ps.shard import Shard
from dps.training.update_modes import SyncReplicas
from dps.transport.message import Message

EXCHANGE = -1
"""The number under which a session waits in a call of all workers."""
MOST_CUTS = 16
"""How many cuts a step ps remembers, so that an order that comes again makes none. One or two are ordered at a time."""


class SyncMode(Mode):
    """On every ps, a complete push is reported to the step ps, and is not applied before the step ps says so. Only the
    step ps has the `Quorum`. Its decisions go to all ps under dense numbers and are carried out in that order, so a
    step has the same set everywhere. A cluster of one ps sends no messages for this.

    More than 12 attributes: three machines meet here, which see the same pushes and members.
    """

    frees = False

    def __init__(self, shard: Shard, settings: SyncReplicas) -> None:
        self.shard, self._settings = shard, settings
        self.least_pushes = settings.replicas_to_aggregate or 2  # before the number of workers is known
        self.quorum: Quorum | None = None
        if shard.is_step_ps:
            self.quorum = Quorum(
                shard.plan.ps, shard.store.step, settings.replicas_to_aggregate, settings.total_num_replicas,
                settings.initial_tokens,
            )  # fmt: skip
        self._others = [ps for ps in shard.plan.ps if ps != shard.ps]
        held_s = shard.node.runtime.tuning.modes.held_s
        self._long_waits = shard.reading.long_waits if self.quorum is not None else LongWaits(shard.node, held_s)
        self._decisions: dict[int, Decide] = {}
        self._decided = 0
        """The number of the last decision that was carried out here."""
        self._askers: dict[tuple[int, int], Sender] = {}
        self._granted: dict[tuple[int, int], Pushed] = {}
        self._waits = Waits(shard.node, shard.ledgers)
        """On the step ps."""
        self._cuts: list[str] = []
        """The last cuts that were ordered."""
        self._pushes, self._books = shard.pushes, shard.pushes.books
        self._books.is_sync, self._books.is_mean = True, settings.reduction == "mean"
        self._keeps_pushes = shard.is_small and not self._others
        """Whether pushes may be kept for their step and not reported."""
        self._exchanges: Exchanges | None = None
        if self.quorum is not None:
            self._exchanges = Exchanges(self.quorum, self._has_pushed, self._answer_exchange)
        self._accepted: list[tuple[int, int]] = []
        """The pushes that count, by incarnation and number, of sessions that were not told yet."""

    # -- Mode -------------------------------------------------------------------------------------------------

    def open_intake(self, push: PushOf) -> Intake:
        """Pieces are copied into one run, for the pass that sums it with others."""
        return Gathering(push, self.shard.layout, self.shard.checks_finite)

    def begin_wait(self, push: KeptPush) -> None:
        self._waits.begin_wait(*push.about[1:3])
        if len(self._books.kept) == 1:
            self._long_waits.add_wait(partial(self._report_late, self._books.step))

    def step_of(self, pushes: list[KeptPush]) -> int:
        if len(pushes) > 1:
            self._waits.end_waits([push.about[1:3] for push in pushes])
        return self._books.step + 1

    def commit_pushes(self, pushes: list[KeptPush], step: int, counter: int) -> None:
        assert self.quorum is not None
        chosen = tuple([push.about[:3] for push in pushes])
        self.quorum.record_step(chosen)
        self._books.step = step
        self._record_step(chosen, step, counter)
        for push in pushes:  # it may ask again
            self._keep_granted(push.about.incarnation, push.row.results[push.about.number])

    def _report_late(self, step: int) -> None:
        """The step takes long: tell the sessions that wait for whom they wait."""
        if self.shard.store.step == step and not self.shard.ended:
            self._pushes.stage_kept()

    def accept_push(self, staged: Staged, sender: Sender) -> None:
        staged.check_finite(self.shard.store)
        if self.shard.store.tables and not staged.problem:
            staged.problem = self._full_text(staged)
        push = staged.push
        key = push.incarnation, push.number
        self._askers[key] = sender
        self._report_pushes([[push.incarnation, push.number, push.step, staged.problem]])
        settings = self._settings
        goes_on = settings.replicas_to_aggregate or settings.total_num_replicas or settings.initial_tokens
        if self.quorum is None and goes_on:  # a session may usually go on before its push is part of a step
            self._say_held(key)
        elif key in self._askers:
            self._long_waits.add_wait(partial(self._say_held, key))

    def _full_text(self, staged: Staged) -> str:
        """Why the keyed tables have no room for a push beside those that may be part of a step; "" if they have. So the
        push is refused on all ps, and a step that is decided finds room."""
        others = [
            other.sound()
            for ledger in self.shard.ledgers.values()
            for other in ledger.staged.values()
            if other is not staged and not other.problem
        ]
        return self.shard.store.full_text([staged.sound(), *others], self.shard.store.step)

    def _say_held(self, key: tuple[int, int]) -> None:
        """Answer a session that waits. From a ps that is not the step ps, a session needs no other answer."""
        sender = self._askers.get(key)
        if sender is None or self.shard.ended:
            return
        if self.quorum is None:
            ledger = self.shard.ledgers.get(key[0])
            if ledger is not None and (staged := ledger.staged.get(key[1])) is not None:
                staged.copy_borrowed()
            del self._askers[key]
        self.shard.gate.answer(sender, PushHeld(key[1], False, self.waiting_for()))

    def answer_repeated(self, ledger: Ledger, number: int, sender: Sender) -> None:
        self._pushes.stage_kept()
        result = self._granted.get((sender.incarnation, number)) if self.quorum else ledger.results.get(number)
        if result is not None:
            self.shard.reading.answer_push(sender, result)
            return
        self._askers[sender.incarnation, number] = sender
        self._say_held((sender.incarnation, number))

    def answer_enter(self, sender: Sender) -> None:
        self._pushes.stage_kept()
        if self.quorum is None:
            self.shard.gate.answer(sender, Token(self.shard.store.step))
            return
        self._askers[sender.incarnation, 0] = sender
        self._carry_out(self.quorum.enter_session(sender.incarnation))
        if (sender.incarnation, 0) in self._askers:
            self.shard.node.answer(sender, Waiting(self.waiting_for()))

    def set_members(self, message: Members) -> None:
        self._pushes.stage_kept()
        if self.quorum is None:
            self._own_all_but({incarnation for incarnation, *_ in message.live})
        else:
            members = {
                incarnation: QuorumMember(task, name, worker) for incarnation, name, task, worker in message.live
            }
            self._carry_out(self.quorum.set_members(members, message.waiting, message.gone, message.absent))
            self.settle()

    def _own_all_but(self, live: set[int]) -> None:
        """Copy the pushes of sessions that have ended. Their memory may soon be that of their next incarnations, but
        the pushes may be part of a step that is decided already."""
        for incarnation, ledger in self.shard.ledgers.items():
            for staged in ledger.staged.values() if incarnation not in live else ():
                staged.copy_borrowed()

    def standstill(self) -> dict[str, Any]:
        if self.quorum is None:
            return {}
        self._pushes.stage_kept()
        return self._waits.standstill(self.quorum.missing())

    @property
    def reached(self) -> int:
        return max(self.shard.store.step, 0 if self.quorum is None else self.quorum.step)

    def waiting_for(self) -> str:
        self._pushes.stage_kept()
        if self.quorum is None:
            return f"{self.shard.node.name} waits for the step ps, ps:{self.shard.step_ps}"
        shortage, missing = self.quorum.shortage(), self.quorum.missing()
        if shortage and not missing:
            return shortage
        waits = f"step {self.quorum.step + 1} waits for " + (", ".join(missing) or "workers that have a token")
        return f"{shortage}: {waits}" if shortage else waits

    # -- calls of all workers -----------------------------------------------------------------------------------

    def join_exchange(self, message: Exchange, sender: Sender) -> None:
        """A worker makes a call that all workers in sync make together."""
        if self._exchanges is None:
            raise ValueError(f"{self.shard.node.name} is not the step ps; that is ps:{self.shard.step_ps}")
        self._exchanges.join_call(message, sender)

    def _answer_exchange(self, sender: Sender, message: Message | Exception) -> None:
        if isinstance(message, Waiting):
            self._waits.begin_wait(sender.incarnation, EXCHANGE)
        else:
            self._waits.end_waits([(sender.incarnation, EXCHANGE)])
        self.shard.node.answer(sender, message)

    def settle(self) -> None:
        if self._exchanges is not None and self._exchanges.open:
            self._exchanges.settle_calls()

    def _has_pushed(self, incarnation: int) -> bool:
        """Whether a push of this session for the next step is complete."""
        ledger = self.shard.ledgers.get(incarnation)
        is_kept = ledger is not None and ledger.kept > 0
        return is_kept or bool(self.quorum and self.quorum.has_pushed(incarnation))

    # -- decisions --------------------------------------------------------------------------------------------

    def on_report(self, message: Report) -> None:
        """Another ps reports complete pushes. On the step ps only."""
        if self.quorum is None:
            raise ValueError(f"{self.shard.node.name} is not the step ps; that is ps:{self.shard.step_ps}")
        self._report_to_quorum(self.quorum, message.ps, message.pushes)
        self.settle()

    def count_steps(self, message: CountSteps, sender: Sender) -> None:
        raise ProtocolError(f"ps:{message.ps} counts {message.pushes} pushes as steps; in sync the step ps counts all")

    def on_decide(self, message: Decide) -> None:
        """A decision of the step ps; carried out when all earlier ones are."""
        if message.index > self._decided:
            self._decisions[message.index] = message
        while (decision := self._decisions.pop(self._decided + 1, None)) is not None:
            self._decided += 1
            self._carry_out_one(_decided(decision), decision.cut)
        self.shard.reading.answer_waiting()

    def schedule_cut(self, cut: str) -> None:
        """Copy the shard between two steps, the same two on every ps: the step ps numbers the cut as a decision."""
        self._pushes.stage_kept()
        if self.quorum is not None and cut not in self._cuts:
            self._cuts = [*self._cuts[-MOST_CUTS:], cut]
            self._issue_decision(Decision(self.quorum.step), cut)

    def hold_pushes(self, cut: str) -> list[list[int]]:
        raise ValueError(f"{self.shard.node.name} cuts between two steps, and holds no pushes back")

    def schedule_cut_at(self, cut: str, numbers: list[Any], sender: Sender) -> None:
        self.hold_pushes(cut)

    def _report_pushes(self, pushes: list[list[Any]]) -> None:
        if self.quorum is not None:
            self._report_to_quorum(self.quorum, self.shard.ps, pushes)
            return
        shard = self.shard
        report = Report(shard.epoch, shard.ps, pushes)
        self._tell_until_done(shard.step_ps, report)

    def _report_to_quorum(self, quorum: Quorum, ps: int, pushes: list[Any]) -> None:
        for incarnation, number, step, refusal in pushes:
            had_all = quorum.has_all(incarnation, number)
            actions = quorum.report_push(ps, incarnation, number, step, refusal)
            if not had_all and quorum.has_all(incarnation, number):
                self._waits.begin_wait(incarnation, number)
            self._carry_out(actions)

    def _tell_until_done(self, ps: int, message: Message) -> None:
        """Send a request to a ps until it is answered. A new run epoch, which ends this shard, ends this, too."""
        shard = self.shard

        def answered(answer: Message | Exception) -> None:
            if isinstance(answer, Exception) and not shard.ended:
                shard.node.after(0.05, lambda: None if shard.ended else self._tell_until_done(ps, message))

        shard.node.ask(shard.peers[ps], message, shard.node.runtime.tuning.modes.peer_s, answered)

    def _carry_out(self, actions: list[Decision | Grant]) -> None:
        """Do what follows from an event of the quorum."""
        if self.quorum is not None and self._keeps_pushes:
            self._books.wanted, self._books.step = self.quorum.undisturbed, self.quorum.step
        if actions:  # before the update, which is no waiting for others
            self._waits.end_waits([(a.incarnation, a.number) for a in actions if isinstance(a, Grant)])
        for action in actions:
            if isinstance(action, Decision):
                self._issue_decision(action)
            else:
                self._answer_granted(action)
        if actions:
            self._say_accepted()
            self.shard.reading.answer_waiting()

    def _say_accepted(self) -> None:
        """Answer the sessions whose push counts and whose token is still to come."""
        for incarnation, number in self._accepted:
            asker = self._askers.get((incarnation, number))
            if asker is not None:
                self.shard.gate.answer(asker, PushHeld(number, True, "waits for its token"))
        self._accepted.clear()

    def _issue_decision(self, decision: Decision, cut: str = "") -> None:
        """Number a decision, send it to the other ps, and carry it out here."""
        self._decided += 1
        if self._others:
            message = Decide(
                self.shard.epoch, self._decided, decision.step, [list(p) for p in decision.chosen],
                [list(p) for p in decision.dropped], [[list(p), reason] for p, reason in decision.refused],
                list(decision.ended), cut,
            )  # fmt: skip
            for ps in self._others:
                self._tell_until_done(ps, message)
            self.shard.node.flush()  # they do their part while this one does its own
        self._carry_out_one(decision, cut)

    def _carry_out_one(self, decision: Decision, cut: str) -> None:
        if decision.chosen:
            self._apply_step(decision.chosen, decision.step)
        for push in decision.dropped:
            self._record_undone(push, DROPPED)
        for push, reason in decision.refused:
            self._record_undone(push, REFUSED, reason)
        for incarnation in decision.ended:
            self._forget_session(incarnation)
        if cut:
            self.shard.perform_cut(cut)

    def _apply_step(self, chosen: tuple[PushId, ...], step: int) -> None:
        shard = self.shard
        pushes = [shard.ledgers[incarnation].staged[number] for _, incarnation, number in sorted(chosen)]
        update = combined([staged.sound() for staged in pushes], shard.layout, self._settings.reduction)
        update.values = assigned(pushes)
        problem = shard.store.apply_update(update, step, record=partial(self._record_step, chosen, step))
        assert not problem, f"what a step is made of was checked: {problem}"
        for _, incarnation, number in chosen:
            self._answer_result(incarnation, shard.ledgers[incarnation].results[number])

    def _record_step(self, chosen: tuple[PushId, ...], step: int, counter: int) -> None:
        """The pushes will be version `counter`."""
        shard = self.shard
        shard.node.runtime.record("applied", epoch=shard.epoch, counter=counter, step=step, pushes=chosen)
        for _, incarnation, number in chosen:
            shard.commit_push(shard.ledgers[incarnation], Pushed(number, APPLIED, step, 0, counter, ""))

    def _record_undone(self, push: PushId, status: str, reason: str = "") -> None:
        """A push that is part of no step."""
        ledger, store = self.shard.ledgers.get(push[1]), self.shard.store
        if ledger is not None:
            result = Pushed(push[2], status, store.step, 0, store.counter, reason)
            self._answer_result(push[1], self.shard.commit_push(ledger, result))

    def _answer_result(self, incarnation: int, result: Pushed) -> None:
        """Answer the session that waits for a result on this shard. On the step ps it is told its token instead."""
        asker = self._askers.get((incarnation, result.number))
        if self.quorum is None and asker is not None:
            del self._askers[incarnation, result.number]
            self.shard.reading.answer_push(asker, result)
        elif result.status == APPLIED and asker is not None:
            self._accepted.append((incarnation, result.number))

    def _answer_granted(self, grant: Grant) -> None:
        asker = self._askers.pop((grant.incarnation, grant.number), None)
        if not grant.number:
            if asker is not None:
                self.shard.gate.answer(asker, Token(grant.step))
            return
        ledger = self.shard.ledgers.get(grant.incarnation)
        if ledger is not None and (staged := ledger.staged.get(grant.number)) is not None:
            staged.copy_borrowed()  # a token that comes before the step
        result = Pushed(grant.number, grant.status, grant.step, 0, self.shard.store.counter, grant.reason)
        self.shard.node.runtime.record("token", epoch=self.shard.epoch, incarnation=grant.incarnation, step=grant.step)
        self._keep_granted(grant.incarnation, result)
        if asker is not None:
            self.shard.reading.answer_push(asker, result)

    def _keep_granted(self, incarnation: int, result: Pushed) -> None:
        """Keep the result that a session was granted, because it may ask again."""
        self._granted[incarnation, result.number] = result
        self._granted.pop((incarnation, result.number - WINDOW), None)

    def _forget_session(self, incarnation: int) -> None:
        self.shard.forget_session(incarnation)
        self._waits.forget_session(incarnation)
        for table in (self._askers, self._granted):
            for key in [k for k in table if k[0] == incarnation]:
                del table[key]


def _decided(message: Decide) -> Decision:
    """A decision as the step ps sent it."""
    chosen, dropped = ([(p[0], p[1], p[2]) for p in pushes] for pushes in (message.chosen, message.dropped))
    refused = tuple(((p[0], p[1], p[2]), reason) for p, reason in message.refused)
    return Decision(message.step, tuple(chosen), tuple(dropped), refused, tuple(message.ended))
