"""Admits, applies and answers pushes of whole gradients, the same way in every update mode.

In the usual case a push is the next of its session, and nothing else is under way. Then `admit_push` decides by the
shard's books alone: `Books`, and a `Ledger` for each session. The push is kept until as many are here as make the next
update: 1 in async and bounded mode, in sync one of each worker. One pass applies them, and `Shard.commit_push` records
each result. Whatever is not usual goes to the update mode, as a push that is staged. Before anything else asks the
quorum, `stage_kept` hands it the kept pushes, so that the books are as if each had been reported when it came.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from dps.actors.ref import Sender
from dps.ps.intake.borrowed import Place
from dps.ps.intake.intake import PushOf, Staged
from dps.ps.intake.ledger import Ledger
from dps.ps.modes.combine import combined_runs
from dps.ps.store.gradients import Gradient
from dps.transport.wire import Array

if TYPE_CHECKING:
    from dps.ps.shard import Shard

Verdict: TypeAlias = Literal["apply", "keep", "again", "unusual"]
TAKEN = ("apply", "keep")


class KeptPush(NamedTuple):
    """A push that waits for the others of its update. They are summed in the order of task, incarnation, number."""

    about: PushOf
    row: Ledger
    run: list[Array]
    """The gradient of each arena; in the session's memory, unless the push is staged."""
    sender: Sender
    lend: bool | None
    """As of `ShardReads.answer_push`."""
    staged: Staged | None = None
    """The push, if it came in pieces. Then it was checked."""


_order: Callable[[KeptPush], PushOf] = itemgetter(0)
_kept_push = partial(tuple.__new__, KeptPush)


@dataclass(slots=True)
class Books:
    """What `admit_push` asks about the shard. The update mode writes all of it but `kept`."""

    nbytes: int
    """Bytes of a gradient of all that is trained."""
    wanted: int = 0
    """How many pushes make the next update; 0 while something unusual is under way."""
    is_sync: bool = False
    """Whether a push must have been computed at `step`."""
    step: int = 0
    is_mean: bool = False
    """Whether the sum of the pushes is divided by their number."""
    kept: list[KeptPush] = field(default_factory=list)


def admit_push(books: Books, row: Ledger, number: int, step: int, is_whole: bool) -> Verdict:
    """Decide about a message of a push that was computed at `step`. `is_whole`: it has all of a gradient. Changes
    nothing.

    - "again": the push has its result, or waits for it.
    - "unusual", unless all of this holds: number = done + 1; no other push of the session is here; it is whole;
      wanted > 0; in sync step = the shard's.
    - "apply": kept + 1 = wanted.
    - "keep": kept + 1 < wanted.
    """
    if number != row.done + 1 or row.kept or row.staged or row.arriving:
        return "again" if row.is_complete(number) else "unusual"
    wanted = books.wanted
    if not is_whole or not wanted or (books.is_sync and step != books.step):
        return "unusual"
    return "apply" if len(books.kept) + 1 == wanted else "keep"


class WholePushes:
    """The pushes of one shard that `admit_push` admits. Runs on the node's thread."""

    def __init__(self, shard: Shard) -> None:
        self._shard, self._layout, self._reading = shard, shard.layout, shard.reading
        self._checks = shard.checks_finite
        self.books = Books(shard.layout.gradient_nbytes)

    def take_push(self, push: PushOf, row: Ledger, nbytes: int, place: Place, sender: Sender, lend: bool) -> Verdict:
        """Take a push of so many bytes, if it is admitted. `place`: in the session's memory; () if it is not there.
        Returns the verdict: after "again" and "unusual" the caller goes on. Raises as `Borrowed.flats`; then nothing
        has changed."""
        books = self.books
        verdict = admit_push(books, row, push[2], push[3], nbytes == books.nbytes and place != ())
        if verdict in TAKEN:
            run = row.memory.flats(place, self._layout)
            row.received += nbytes
            self._keep_or_apply(_kept_push((push, row, run, sender, lend, None)), verdict)
        return verdict

    def accept_staged(self, staged: Staged, row: Ledger, sender: Sender) -> None:
        """Take a push that is staged, if it has come in pieces in sync and is admitted. Otherwise the mode takes it."""
        gradient, push = staged.gradient, staged.push
        if self.books.is_sync and staged.in_pieces and gradient is not None:
            del row.staged[push.number]
            verdict = admit_push(self.books, row, push.number, push.step, True)
            if verdict in TAKEN:
                self._keep_or_apply(KeptPush(push, row, gradient.flats(), sender, None, staged), verdict)
                return
            row.staged[push.number] = staged
        self.stage_kept()
        self._shard.mode.accept_push(staged, sender)
        self._shard.mode.settle()

    def stage_kept(self) -> None:
        """Hand the kept pushes to the update mode one by one, in the order in which they came."""
        if self.books.kept:
            self._stage(self._end_keeping())

    def _keep_or_apply(self, push: KeptPush, verdict: Verdict) -> None:
        if verdict == "keep":
            self.books.kept.append(push)
            push.row.kept = push.about.number
            self._shard.mode.begin_wait(push)
        elif self.books.kept:
            self._apply(sorted([*self._end_keeping(), push], key=_order))
        else:
            self._apply([push])
        self._shard.mode.settle()

    def _end_keeping(self) -> list[KeptPush]:
        kept, self.books.kept = self.books.kept, []
        for push in kept:
            push.row.kept = 0
        return kept

    def _apply(self, pushes: list[KeptPush]) -> None:
        """Apply the pushes of one update and answer them. If a gradient is not finite, they are staged instead."""
        mode, first = self._shard.mode, pushes[0]
        if len(pushes) == 1:
            update = Gradient(first.run, {}, False, not self._checks or first.staged is not None)
        else:
            update = combined_runs([push.run for push in pushes], self.books.is_mean)
            update.checked = not self._checks or None not in [push.staged for push in pushes]
        step = mode.step_of(pushes)
        if self._shard.store.apply_update(update, step, 1.0, partial(mode.commit_pushes, pushes, step)):
            self._stage(pushes)
            return
        answer = self._reading.answer_applied
        for push in pushes:  # one by one: the first are at work again while the last are answered
            answer(push.sender, push.row.results[push.about.number], push.lend)
        self._reading.answer_waiting()

    def _stage(self, pushes: list[KeptPush]) -> None:
        for kept in pushes:
            about, staged = kept.about, kept.staged
            if staged is None:
                self._reading.lending.record_wish(about.incarnation, kept.sender.request, bool(kept.lend))
                staged = Staged(about, Gradient(kept.run, {}, borrowed=True, checked=not self._checks))
            kept.row.stage_push(staged, 0)
            self._shard.mode.accept_push(staged, kept.sender)
