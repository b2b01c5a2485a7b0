"""Asynchronous and bounded updates: a push is applied when complete, after all earlier ones of its session."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dps.actors.answers import Waiting
from dps.actors.ref import Sender
from dps.errors import ConfigError, DeadlineExceeded
from dps.messages.runs import Members
from dps.messages.sessions import (
    APPLIED,
    DROPPED,
    NOTHING,
    REFUSED,
    STEP_PS,
    CountSteps,
    Exchange,
    Pull,
    Pushed,
    Token,
)
from dps.process.backoff import Backoff
from dps.process.telemetry import log
from dps.ps.intake.intake import Applying, Intake, Keeping, PushOf, Staged
from dps.ps.intake.ledger import Ledger
from dps.ps.modes.clocks import Clocks
from dps.ps.modes.compensation import Compensation
from dps.ps.modes.counting import Counting
from dps.ps.modes.mode import Mode
from dps.ps.serving.long_waits import Waits
from dps.ps.serving.streaming_pull import StreamingPull
from dps.ps.shard import Shard
from dps.ps.store.draft import Draft
from dps.training.update_modes import Async, Bounded

if TYPE_CHECKING:
    from dps.ps.modes.holding import HeldPushes
    from dps.ps.modes.whole_pushes import KeptPush


MOST_ASSIGNED = 1000
"""How many versions that only set values are remembered; an older one counts as an update."""


class AsyncMode(Mode):
    """Applies pushes on arrival, in the order of each session's numbers."""

    sends_early = True
    """Whether a pull that waits for a push may be answered while the push arrives."""
    least_pushes = 1

    def __init__(self, shard: Shard, settings: Async) -> None:
        self.shard, self.settings = shard, settings
        self.frees = not settings.compensation
        self._counting = Counting(shard)
        self._askers: dict[tuple[int, int], Sender] = {}
        self._compensation = Compensation(shard, settings.compensation)
        self._assigned: deque[int] = deque(maxlen=MOST_ASSIGNED)
        """The last versions that only set values, in rising order."""
        self._backoff = Backoff(shard.node.runtime.tuning.store.most_skipped)
        """Whether the next push is applied while it arrives. If another push comes in between, the work is lost."""
        self._wanted = int(settings == Async())
        """1 if the settings ignore a push's staleness, so that the next push can be applied without staging."""
        shard.pushes.books.wanted = self._wanted
        self._held: HeldPushes | None = None
        self._cuts: deque[str] = deque(maxlen=16)
        """The last cuts for which pushes were held back."""

    def accept_push(self, staged: Staged, sender: Sender) -> None:
        incarnation = staged.push.incarnation
        ledger = self.shard.ledgers[incarnation]
        self._askers[incarnation, staged.push.number] = sender
        self._apply_staged(ledger)
        if self._held is not None:
            self._held.finish_if_whole()
        self.shard.reading.answer_waiting()

    def _apply_staged(self, ledger: Ledger) -> None:
        """Apply and answer the pushes of a session that are complete and next."""
        while (ready := ledger.staged.get(ledger.done + 1)) is not None:
            if self._held is not None and not self._held.may_apply(ledger):
                return
            result = self._apply_push(ledger, ready)
            asker = self._askers.pop((ledger.incarnation, ready.push.number), None)
            if asker is not None:
                self.shard.reading.answer_push(asker, result)

    def step_of(self, pushes: list[KeptPush]) -> int:
        push = pushes[0].about
        return self._step(push.step, push.counted_by)

    def commit_pushes(self, pushes: list[KeptPush], step: int, counter: int) -> None:
        self._record_applied(pushes[0].row, pushes[0].about, step, False, counter)

    def open_intake(self, push: PushOf) -> Intake:
        """The pieces of a session's next push are applied as they come, if that is possible. If no other session can
        push in between, applied pieces are not kept. In the rare case that one does, this session is asked to send them
        again.
        """
        about = push, self.shard.layout, self.shard.checks_finite
        draft = None if self.settings.compensation else self._open_draft(push)
        return Keeping(*about) if draft is None else Applying(*about, draft, lets_go=self._is_alone)

    def _open_draft(self, push: PushOf) -> Draft | None:
        """The draft to which a push is written while it arrives; None if it is applied once it is complete."""
        store, staleness, limit = self.shard.store, self._staleness(push.counter), self.settings.max_staleness
        is_next = push.number == self.shard.ledgers[push.incarnation].done + 1 and self._held is None
        if not is_next or (limit is not None and staleness > limit) or not self._backoff.may_try():
            return None
        least = store.runtime.tuning.store.ahead_pieces * self.shard.reading.piece_nbytes(push.incarnation)
        if store.layout.gradient_nbytes < least:
            return None
        step = self._step(push.step, push.counted_by)
        draft = store.open_draft(step, self._scale(staleness), reversible=True)
        if draft is not None and self.sends_early:
            draft.listener = StreamingPull(self.shard, push.incarnation, push.number, draft)
        return draft

    def answer_repeated(self, ledger: Ledger, number: int, sender: Sender) -> None:
        result = ledger.results.get(number)
        if result is not None:
            self.shard.reading.answer_push(sender, result)
            return
        self._askers[sender.incarnation, number] = sender
        self.shard.node.answer(sender, Waiting(f"push {number} waits for push {ledger.done + 1} of {ledger.name}"))

    def answer_enter(self, sender: Sender) -> None:
        self.shard.gate.answer(sender, Token(self.shard.store.step))

    def record_read(self, ledger: Ledger, parts: Sequence[int] = (), rows: Any = ...) -> None:
        self._compensation.record_read(ledger.incarnation, parts, rows)

    def set_members(self, message: Members) -> None:
        live = {member[0] for member in message.live}
        for incarnation in [i for i in self.shard.ledgers if i not in live]:
            self.shard.forget_session(incarnation)
            self._compensation.forget_session(incarnation)
        self._askers = {key: sender for key, sender in self._askers.items() if key[0] in live}
        if self._held is not None:
            self._held.finish_if_whole()

    def schedule_cut(self, cut: str) -> None:
        self.shard.perform_cut(cut)

    def hold_pushes(self, cut: str) -> list[list[int]]:
        from dps.ps.modes.holding import HeldPushes  # here: few runs publish, and a start is short

        if cut not in self._cuts:  # an order that comes again late holds nothing back again
            if self._held is not None:
                self._held.end_hold()
            self._cuts.append(cut)
            self.shard.pushes.books.wanted = 0
            self._held = HeldPushes(self.shard, cut, self._resume)
        return [[incarnation, ledger.done] for incarnation, ledger in self.shard.ledgers.items()]

    def schedule_cut_at(self, cut: str, numbers: list[Any], sender: Sender) -> None:
        if self._held is None or self._held.cut != cut:
            if not self.shard.versions.has_copy(cut):
                # Not Aborted, which would have the session that publishes join again.
                raise DeadlineExceeded(f"{self.shard.node.name} holds its pushes back no more; nothing was published")
            return
        self._held.set_limits(numbers, sender)
        for ledger in self.shard.ledgers.values():
            self._apply_staged(ledger)
        self._held.finish_if_whole()
        self.shard.reading.answer_waiting()

    def resume_pushes(self, cut: str) -> None:
        if self._held is not None and self._held.cut == cut:
            self._held.end_hold()

    def _resume(self) -> None:
        """Pushes are not held back any more: apply those that were."""
        self._held, self.shard.pushes.books.wanted = None, self._wanted
        for ledger in self.shard.ledgers.values():
            self._apply_staged(ledger)
        self.shard.reading.answer_waiting()

    def join_exchange(self, message: Exchange, sender: Sender) -> None:
        raise ConfigError(f"{message.what}: workers reduce values through a ps in sync alone")

    def count_steps(self, message: CountSteps, sender: Sender) -> None:
        self._counting.take_count(message, sender)

    @property
    def reached(self) -> int:
        return self.shard.store.step

    def _apply_push(self, ledger: Ledger, staged: Staged) -> Pushed:
        if staged.assigns:
            return self._assign_values(ledger, staged)
        number, store = staged.push.number, self.shard.store
        staleness, limit = self._staleness(staged.push.counter), self.settings.max_staleness
        stale = limit is not None and staleness > limit
        if stale or self.settings.compensation:
            staged.check_finite(store)
        credit = staged.in_pieces and store.is_large and self._is_alone
        if not stale and not staged.problem:
            staged.problem = self._publish_push(ledger, staged, staleness, credit)
            if not staged.problem:
                return ledger.results[number]
        status = REFUSED if staged.problem else DROPPED
        about, settles = (number, status, store.step, staleness, store.counter, staged.problem), self.shard.settles
        return self.shard.commit_push(ledger, Pushed(*about, credit=credit, settles=settles))

    def _assign_values(self, ledger: Ledger, staged: Staged) -> Pushed:
        """Set values. The step does not change, because nothing was learned, and no option looks at the staleness."""
        number, store = staged.push.number, self.shard.store
        if staged.problem:
            self.shard.commit_push(ledger, Pushed(number, REFUSED, store.step, 0, store.counter, staged.problem))
        else:
            store.apply_update(staged.sound(), store.step, record=partial(self._record_assigned, ledger, number))
        return ledger.results[number]

    def _record_assigned(self, ledger: Ledger, number: int, counter: int) -> None:
        """Values will be version `counter`."""
        shard = self.shard
        shard.commit_values(ledger, Pushed(number, APPLIED, shard.store.step, 0, counter, ""))
        self._assigned.append(counter)
        shard.node.runtime.record(
            "assigned", epoch=shard.epoch, counter=counter, step=shard.store.step,
            pushes=((ledger.task, ledger.incarnation, number),),
        )  # fmt: skip

    def _publish_push(self, ledger: Ledger, staged: Staged, staleness: int, credit: bool) -> str:
        """Make a push the next version, and record its result; why it is refused, or ""."""
        draft, staged.draft = staged.draft, None
        push = staged.push
        step = self._step(push.step, push.counted_by)
        about = ledger, push, step, credit
        if draft is not None:
            self._backoff.record_try(draft.is_valid)
            try:
                if draft.is_valid:
                    self._record_applied(*about, draft.counter)
                    draft.publish()
                    return ""
            finally:
                draft.drop()
        gradient, scale, record = staged.sound(), self._scale(staleness), self._record_applied
        if self.settings.compensation:
            gradient = self._compensation.compensate(gradient, push.incarnation)
        elif staged.in_pieces and self.shard.store.is_large:
            record = self._record_and_answer
        return self.shard.store.apply_update(gradient, step, scale, partial(record, *about))

    def _record_applied(self, ledger: Ledger, push: PushOf, step: int, credit: bool, counter: int) -> None:
        """A push will be version `counter`."""
        shard, number = self.shard, push.number
        if push.counted_by == shard.ps and not shard.is_step_ps:
            self._counting.count_push(ledger, number)
        ledger.applied += 1
        staleness = self._staleness(push.counter) if push.counter >= 0 else 0
        shard.commit_push(ledger, Pushed(number, APPLIED, step, staleness, counter, "", NOTHING, credit, shard.settles))
        pushes = ((ledger.task, ledger.incarnation, number),)
        shard.node.runtime.record("applied", epoch=shard.epoch, counter=counter, step=step, pushes=pushes)

    def _record_and_answer(self, ledger: Ledger, push: PushOf, step: int, credit: bool, counter: int) -> None:
        """Answer a large push before the pass that applies it, because its memory is not the session's. Later requests
        of the session are handled after the pass. If the ps is lost in between, it loses all that it has applied.
        """
        self._record_applied(ledger, push, step, credit, counter)
        number = push.number
        asker = self._askers.get((ledger.incarnation, number))
        if asker is None or self.shard.reading.lending.is_wanted(asker.incarnation, asker.request):
            return
        try:
            self.shard.gate.answer(asker, ledger.results[number])
            self.shard.node.flush()
        except OSError as error:
            log.warning("%s: %s is answered only after the update: %s", self.shard.node.name, ledger.name, error)
        else:
            del self._askers[ledger.incarnation, number]

    @property
    def _is_alone(self) -> bool:
        """Whether no other session can push between two pushes of a session."""
        return len(self.shard.ledgers) == 1

    def _staleness(self, counter: int) -> int:
        """The number of updates between the version that a push was computed from (-1: none) and the current one."""
        passed = self.shard.store.counter - counter
        if counter < 0 or passed <= 0:
            return 0
        return (
            max(0, passed - len(self._assigned) + bisect_right(self._assigned, counter)) if self._assigned else passed
        )

    def _step(self, computed_at: int, counted_by: int) -> int:
        """The step that a push makes if it is applied now; rates are of the step that it was computed at or later. On
        another ps than the step ps it is one that has been reached: the highest that is known here, with this push
        where it is known that no other ps has counted it. The step ps adds up what it was told, so that each step is
        one push: there the header, which may be ahead, is for rates alone."""
        shard, step = self.shard, self.shard.store.step
        shard.store.seen_step = max(shard.store.seen_step, computed_at)
        if shard.is_step_ps:
            return step + (counted_by in (STEP_PS, shard.ps))
        if counted_by == STEP_PS:
            return max(step, computed_at + 1)
        return max(step, computed_at, shard.step_counts.heard) + (counted_by == shard.ps)

    def _scale(self, staleness: int) -> float:
        """The factor of the learning rate for a push of this staleness."""
        damping = self.settings.damping
        return 1.0 if damping is None else 1.0 / (1.0 + staleness) ** damping


class BoundedMode(AsyncMode):
    """As AsyncMode, but the step ps lets no session read that is more than the bound ahead of the slowest worker."""

    sends_early = False  # who may read is known when the push counts

    def __init__(self, shard: Shard, settings: Bounded) -> None:
        super().__init__(shard, Async())
        self.clocks = Clocks(settings.staleness)
        self._waits = Waits(shard.node, shard.ledgers)
        self._timed: set[tuple[int, int]] = set()

    def may_read(self, sender: Sender, pull: Pull) -> str:
        if not self.shard.is_step_ps:
            return ""
        before = self.clocks.lowest()
        self.clocks.record_pushes(sender.incarnation, pull.clock)
        if self.clocks.lowest() != before:
            self.shard.node.post(self.shard.reading.answer_waiting)
        if self.clocks.may_read(sender.incarnation):
            self._waits.end_waits([(sender.incarnation, sender.request)])
            return ""
        late_s = pull.patience_ms / 1000 * self.shard.node.runtime.tuning.modes.late_share
        self._waits.begin_wait(sender.incarnation, sender.request, late_s)
        self._set_deadline(sender, pull)
        return f"{self.waiting_for()} to come within {self.clocks.bound} steps"

    def _set_deadline(self, sender: Sender, pull: Pull) -> None:
        """Shortly before the deadline of a reader, stop counting the workers for which it waits."""
        key = (sender.incarnation, sender.request)
        if not pull.patience_ms or key in self._timed:
            return
        self._timed.add(key)

        def passed() -> None:
            self._timed.discard(key)
            if self.shard.ended or not self.shard.reading.is_waiting(sender):
                return
            late = self.clocks.drop_late(sender.incarnation)
            if late:
                log.warning(
                    "%s: %s waited for %s until its deadline; the others go on without", self.shard.node.name,
                    sender.name, ", ".join(late),
                )  # fmt: skip
            self.shard.reading.answer_waiting()

        self.shard.node.after(pull.patience_ms / 1000 * self.shard.node.runtime.tuning.modes.late_share, passed)

    def _apply_push(self, ledger: Ledger, staged: Staged) -> Pushed:
        """With one ps an applied push is an acknowledged one. With more, only the session knows, and tells the step
        ps."""
        result = super()._apply_push(ledger, staged)
        self._advance_clock(ledger, staged.push.clock)
        return result

    def commit_pushes(self, pushes: list[KeptPush], step: int, counter: int) -> None:
        super().commit_pushes(pushes, step, counter)
        self._advance_clock(pushes[0].row, pushes[0].about.clock)

    def _advance_clock(self, ledger: Ledger, clock: int) -> None:
        """A push has its result. `clock`: as of the message."""
        if self.shard.is_step_ps:
            alone = len(self.shard.plan.ps) == 1
            self.clocks.record_pushes(ledger.incarnation, ledger.applied if alone else clock)

    def standstill(self) -> dict[str, Any]:
        return self._waits.standstill(self.clocks.slowest())

    def set_members(self, message: Members) -> None:
        before = set(self.shard.ledgers)
        super().set_members(message)
        for incarnation in before - self.shard.ledgers.keys():
            self._waits.forget_session(incarnation)
        self.clocks.set_members({m[0]: m[1] for m in message.live if m[3]})
        self.shard.node.runtime.record("clocks", clocks=self.clocks.now())

    def waiting_for(self) -> str:
        return "waits for " + ", ".join(self.clocks.slowest())
