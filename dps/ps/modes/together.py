"""Makes a small synchronous step in one go, when the last of its pushes is complete.

In the usual case every worker pushes all of the shard, and nothing else is under way. Then the pushes need not be
reported to the quorum, decided and granted one by one: the first ones are kept until the last one is there, and one
look and one pass serve all. The books are afterwards as if each push had been reported. Whatever else asks
the quorum meanwhile has the kept pushes reported first (`SyncMode`). For a cluster with one ps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dps.actors.ref import Sender
from dps.protocol import APPLIED, Pushed
from dps.ps.intake.staged import Staged
from dps.ps.modes.quorum import PushId, Quorum
from dps.ps.shard import Shard
from dps.ps.store.gradients import Gradient, Sum

Asked = tuple[Staged, Sender]
"""A complete push, and who waits for its result."""


class Together:
    """The complete pushes of the step to come that were not reported to the quorum yet."""

    def __init__(
        self, shard: Shard, quorum: Quorum, granted: Callable[[int, Pushed], None], reduction: str
    ) -> None:  # fmt: skip
        """`granted(incarnation, result)` notes a result that may be asked for again. `reduction`: "mean" or "sum"."""
        self._shard, self._quorum, self._granted, self._reduction = shard, quorum, granted, reduction
        self._kept: dict[int, Asked] = {}
        """By incarnation."""
        self._wanted = 0
        """How many pushes make the step."""

    def keep(self, staged: Staged, sender: Sender) -> bool:
        """Keep a push that is complete; False where it has to be reported, as have those that are kept."""
        push, gradient = staged.push, staged.gradient
        if not self._shard.is_small or gradient is None or gradient.run is None or staged.problem:
            return False
        self._wanted = self._quorum.undisturbed
        if not self._wanted or push.incarnation in self._kept:
            return False
        if not self._quorum.awaits(push.incarnation, push.number, push.step):
            return False
        self._kept[push.incarnation] = staged, sender
        return True

    @property
    def kept(self) -> int:
        """How many pushes are kept."""
        return len(self._kept)

    @property
    def complete(self) -> bool:
        """Whether the last push of the step is there."""
        return len(self._kept) == self._wanted

    def taken(self) -> list[Asked]:
        """The pushes that are kept, in the order in which they came; they are kept no longer."""
        kept, self._kept = self._kept, {}
        return list(kept.values())

    def make(self) -> bool:
        """Make the step of the kept pushes; False, and nothing has happened, where a gradient is not finite."""
        shard, store = self._shard, self._shard.store
        kept = sorted(self._kept.values(), key=lambda asked: asked[0].push[:3])
        gradients = [staged.sound() for staged, _ in kept]
        divisor = len(kept) if self._reduction == "mean" else 1
        total = Sum(tuple([gradient.flats()[0] for gradient in gradients]), divisor)
        checked = all(gradient.checked for gradient in gradients)
        step, pushes = self._quorum.step + 1, tuple([staged.push[:3] for staged, _ in kept])
        if store.apply(Gradient([total], {}, checked=checked), step, record=partial(self._record, pushes, step)):
            return False
        self._kept = {}
        for staged, sender in kept:  # one by one: the first are at work again while the last are answered
            _, incarnation, number = staged.push[:3]
            shard.reading.answer_push(sender, shard.ledgers[incarnation].results[number])
            shard.node.flush()
        shard.reading.wake()
        return True

    def _record(self, pushes: tuple[PushId, ...], step: int, counter: int) -> None:
        """The pushes will be version `counter`, step `step`."""
        shard = self._shard
        self._quorum.made_at_once(pushes)
        shard.node.runtime.record("applied", epoch=shard.epoch, counter=counter, step=step, pushes=pushes)
        for _, incarnation, number in pushes:
            result = Pushed(number, APPLIED, step, 0, counter, "")
            shard.decide(shard.ledgers[incarnation], result)
            self._granted(incarnation, result)
