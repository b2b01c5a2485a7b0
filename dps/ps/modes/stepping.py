"""Synchronous steps at once: pushes are kept as they came, and all is done together when the last one is there.

What is foreseen is the usual: every worker pushes all of the shard out of its own memory and wants the values back. For
that nothing needs to be staged, reported, decided or granted push by push. Whatever else comes first, down to a
question about one of the pushes, finds them handed to the ordinary way before it is handled. So this is no second set
of rules, only their outcome in the one case. For a cluster with one ps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter

from dps.actors.ref import Sender
from dps.protocol import APPLIED, SHARED, Push, Pushed, Step, Stepped
from dps.ps.modes.quorum import PushId, Quorum
from dps.ps.shard import Shard
from dps.ps.store.gradients import Gradient, Mean
from dps.transport.wire import Array

_Kept = tuple[PushId, Step, Sender, list[Array]]


class Stepping:
    """The pushes of the step to come. `granted(incarnation, result)` notes a result that may be asked for again."""

    def __init__(self, shard: Shard, quorum: Quorum, granted: Callable[[int, Pushed], None]) -> None:
        self._shard, self._quorum, self._granted = shard, quorum, granted
        self._kept: dict[int, _Kept] = {}
        """By incarnation."""

    def take(self, step: Step, sender: Sender) -> bool:
        """Keep a push, and make the step when it is the last one; False where the push is for the ordinary way.

        Raises ProtocolError and Unavailable for memory that is none, or out of reach."""
        shard, incarnation = self._shard, sender.incarnation
        wanted, ledger = self._quorum.undisturbed, shard.ledgers.get(incarnation)
        if (
            not wanted
            or not shard.takes_steps
            or ledger is None
            or incarnation in self._kept
            or step.number != ledger.done + 1
        ):
            return False
        if ledger.staged or not self._quorum.awaits(incarnation, step.number, step.step):
            return False
        arrays = shard.gradients_of(step, sender)
        if step.released:
            shard.reading.released(incarnation, step.released)
        self._kept[incarnation] = (ledger.task, incarnation, step.number), step, sender, arrays
        if len(self._kept) == wanted and not self._make():
            kept = self._kept.pop(incarnation)
            assert kept[1] is step
            return False
        return True

    def taken_back(self) -> list[tuple[Push, Sender]]:
        """The pushes that are kept, as they would have come, in their order; they are kept no longer."""
        if not self._kept:
            return []
        kept, self._kept = self._kept, {}
        return [(as_push(step, self._shard.layout.gradient_nbytes), sender) for _, step, sender, _ in kept.values()]

    def _make(self) -> bool:
        """Make the step; False, and nothing has happened, where a gradient is not finite."""
        shard, store = self._shard, self._shard.store
        kept = sorted(self._kept.values(), key=itemgetter(0))
        gradients = tuple([gradient for *_, (gradient,) in kept])
        if shard.checks_finite and not store.arenas[0].is_finite(Mean(gradients)):
            return False
        self._kept = {}
        pushes = [push for push, *_ in kept]
        number = self._quorum.step_at_once(pushes)
        store.apply(Gradient([Mean(gradients)], {}), number, record=partial(self._record, pushes, number))
        try:
            self._answer(kept, number)
        finally:
            shard.reading.wake()
        return True

    def _record(self, pushes: list[PushId], number: int, counter: int) -> None:
        """The pushes will be version `counter`, step `number`."""
        shard = self._shard
        shard.node.runtime.record("applied", epoch=shard.epoch, counter=counter, step=number, pushes=tuple(pushes))
        for _, incarnation, push in pushes:
            result = Pushed(push, APPLIED, number, 0, counter, "")
            shard.decide(shard.ledgers[incarnation], result)
            self._granted(incarnation, result)

    def _answer(self, kept: list[_Kept], number: int) -> None:
        """Lend the values to all and tell them at once."""
        shard, node = self._shard, self._shard.node
        place = shard.reading.lend_all([sender for _, _, sender, _ in kept])
        for (_, _, push), _, sender, _ in kept:  # one by one: the first are at work again while the last are told
            node.answer(sender, Stepped(push, number, 0, shard.store.counter, *place))
            node.flush()


def as_push(step: Step, nbytes: int) -> Push:
    """The push that a Step stands for, to a shard with gradients of so many bytes."""
    place = [[step.process, step.descriptor, step.inode, step.nbytes], 0]
    return Push(
        step.epoch, step.number, step.step, step.counter, SHARED, nbytes, [], place, lend=bool(step.lend),
        released=step.released,
    )  # fmt: skip
