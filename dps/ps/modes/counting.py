"""Counts the pushes of which nothing goes to the step ps, and tells the step ps of them: in asynchronous mode.

Invariants: each push is counted by one ps, once, when that ps records it as applied. On the step ps `taken` of a ps
never exceeds what that ps has counted, and the step is the one from which the run epoch began, plus the pushes that the
step ps counts itself, plus all that it has taken. All numbers begin with the run epoch and only rise, so a message
that comes twice or late changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dps.actors.ref import Sender
from dps.errors import ProtocolError
from dps.messages.sessions import CountSteps, Token
from dps.ps.intake.ledger import Ledger
from dps.transport.message import Message

if TYPE_CHECKING:
    from dps.ps.shard import Shard


class StepCounts:
    """The counts of one shard, as a state machine: a ps that counts tells the step ps one number at a time."""

    def __init__(self) -> None:
        self.counted = 0
        """The pushes that count here, on a ps that is not the step ps."""
        self.heard = 0
        """The highest step of which the step ps has told this ps."""
        self._told = 0
        """How many of `counted` the step ps has."""
        self._is_telling = False
        self._taken: dict[int, int] = {}

    def count_push(self) -> bool:
        """A push that counts here is recorded. Returns whether a message to the step ps is to be begun."""
        self.counted += 1
        return self._begin_telling()

    def record_told(self, pushes: int, step: int) -> bool:
        """The step ps has so many of the pushes, and this step with them. Returns as `count_push`."""
        self._told, self.heard, self._is_telling = max(self._told, pushes), max(self.heard, step), False
        return self._begin_telling()

    def _begin_telling(self) -> bool:
        due = not self._is_telling and self.counted > self._told
        self._is_telling = self._is_telling or due
        return due

    @property
    def taken(self) -> int:
        """On the step ps: the pushes of which others have told it."""
        return sum(self._taken.values())

    def take_counted(self, ps: int, pushes: int) -> int:
        """On the step ps: another ps has counted so many. Returns how many of them are new. Raises ProtocolError for a
        number below 0."""
        if pushes < 0:
            raise ProtocolError(f"ps:{ps} counts {pushes} pushes; wanted a number from 0 on")
        new = max(0, pushes - self._taken.get(ps, 0))
        self._taken[ps] = self._taken.get(ps, 0) + new
        return new


class Counting:
    """The counts of one shard, as messages to the step ps and from the others. Runs on the node's thread."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def count_push(self, ledger: Ledger, number: int) -> None:
        """A push that this ps counts is recorded."""
        shard = self._shard
        ledger.counted += 1
        shard.node.runtime.record("counts", epoch=shard.epoch, push=(ledger.incarnation, number))
        if shard.step_counts.count_push():
            self._tell_later()

    def take_count(self, message: CountSteps, sender: Sender) -> None:
        """Another ps counts so many pushes: they are part of the global step. Raises ProtocolError if this is not the
        step ps, or the other is no ps of the plan."""
        shard = self._shard
        if not shard.is_step_ps or message.ps == shard.ps or message.ps not in shard.plan.ps:
            raise ProtocolError(f"{shard.node.name} takes no steps that ps:{message.ps} has counted")
        if new := shard.step_counts.take_counted(message.ps, message.pushes):
            shard.store.step += new
            shard.node.runtime.record("counted", epoch=shard.epoch, ps=message.ps, new=new, step=shard.store.step)
        shard.gate.answer(sender, Token(shard.store.step))

    def _tell_later(self) -> None:
        self._shard.node.after(self._shard.node.runtime.tuning.modes.count_s, self._tell_count)

    def _tell_count(self) -> None:
        """Tell the step ps how many pushes count here, again until it answers. A new run epoch ends this."""
        shard = self._shard
        if shard.ended:
            return
        told = shard.step_counts.counted

        def answered(answer: Message | Exception) -> None:
            if not isinstance(answer, Token) or shard.step_counts.record_told(told, answer.step):
                self._tell_later()

        message, peer_s = CountSteps(shard.epoch, shard.ps, told), shard.node.runtime.tuning.modes.peer_s
        shard.node.ask(shard.peers[shard.step_ps], message, peer_s, answered)
