"""The next version of a synchronous step, computed while the ps agree on its set, and published when it is that set.

All that a ps needs for its part of a step is there when its own last push is whole; the step ps has to hear so of every
ps, and each of them of the decision. Where that usually takes long the time is used, block by block, with an ear for
what comes. Where another set is decided, or the shard has changed, the work was for nothing, and the step is
made as if it had never been begun. For optimizers without slots: a pass over slots is not taken back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dps.protocol import Members
from dps.ps.intake.staging import Staged
from dps.ps.modes.combine import mean
from dps.ps.modes.quorum import PushId
from dps.ps.shard import Shard
from dps.ps.store.ahead import Ahead, Worth
from dps.ps.store.gradients import Mean, Pieces, cut
from dps.transport.wire import Array

GAIN = 0.5
"""A decision that usually takes less than so much of a pass is waited for: a pass in place is up to twice as fast as
one to other memory."""
BLOCK = 4
"""Pieces that are updated between two looks at what has come."""
SHARE = 0.25
"""Of the last one in what is usual."""


class Foreseen:
    """What one shard expects of the step to come. At most one version at a time is made ahead."""

    def __init__(self, shard: Shard, aggregate: int | None) -> None:
        """`aggregate`: how many pushes make a step; None: one of each worker."""
        self._shard, self._aggregate, self._workers = shard, aggregate, 0
        self._whole: dict[PushId, Staged] = {}
        """Sound pushes without a decision, in the order in which they became whole."""
        self._since: float | None = None
        """When all was there."""
        self._wait_s = 0.0
        self._pass_s: float | None = None
        """How long decisions usually take from then on, and passes that were not begun before."""
        self._ahead: Ahead | None = None
        self._set: tuple[PushId, ...] = ()
        self._blocks: Iterator[tuple[int, int, Array | Mean]] = iter(())
        """What is still to be done: arena, first element, gradient."""
        self._left = 0
        """Bytes of that."""
        self._worth = Worth()

    def members(self, message: Members) -> None:
        """Who takes part now."""
        self._workers = len(
            {name for _, name, _, worker in message.live if worker} | {*message.waiting, *message.absent}
        )

    def whole(self, staged: Staged) -> None:
        """A push is whole here, and may have a decision already."""
        if staged.problem or staged.number not in self._shard.ledgers[staged.incarnation].staged:
            return
        self._whole[staged.id] = staged
        if self._pushes():
            self._since = self._shard.node.runtime.now()
            if self._pass_s is not None and self._wait_s >= GAIN * self._pass_s:
                self._shard.node.flush()  # the others hear of it first
                self._shard.node.after(0, self._begin)

    def forget(self, push: PushId) -> None:
        """A push has its decision."""
        self._whole.pop(push, None)
        if push in self._set:
            self._drop()

    def forget_all(self, incarnation: int) -> None:
        """A session has ended."""
        for push in [push for push in self._whole if push[1] == incarnation]:
            self.forget(push)

    def gives_back(self, push: PushId) -> None:
        """The memory of a push is about to be its session's own again: read it now, if it is to be read."""
        if self._ahead is not None and push in self._set:
            self._finish()

    def took(self, seconds: float) -> None:
        """A step was made after its decision, in this time."""
        self._pass_s = seconds if self._pass_s is None else self._pass_s + SHARE * (seconds - self._pass_s)

    def publish(self, chosen: tuple[PushId, ...], step: int) -> bool:
        """The set of a step is decided: whether its version was made, and is the shard's now."""
        if self._since is not None:
            self._wait_s += SHARE * (self._shard.node.runtime.now() - self._since - self._wait_s)
            self._since = None
        if self._ahead is None:
            return False
        good = chosen == self._set and self._ahead.makes(step)
        self._worth.note(good)
        if not good or self._left > self._shard.layout.gradient_nbytes // 2:
            self._drop()
            return False
        self._finish()
        self._ahead.publish()
        self._ahead, self._set = None, ()
        return True

    def _drop(self) -> None:
        """Nothing comes of what was begun."""
        ahead, self._ahead, self._set = self._ahead, None, ()
        if ahead is not None:
            ahead.drop()

    def _finish(self) -> None:
        while self._go_on():
            pass

    def _pushes(self) -> list[Staged]:
        """Those of the step to come, if all are there as far as this shard knows."""
        found = [push for push in self._whole.values() if push.step == self._shard.store.step]
        return found if len(found) == (self._aggregate or self._workers) else []

    def _begin(self) -> None:
        store, layout, pushes = self._shard.store, self._shard.layout, self._pushes()
        if self._shard.ended or self._ahead is not None or not pushes or any(push.run is None for push in pushes):
            return
        if not self._worth.a_try() or (ahead := Ahead.of(store, store.step + 1, 1.0)) is None:
            return
        run = mean(pushes, layout).run
        assert run is not None, "the mean of runs is one"
        self._ahead, self._set, self._left = ahead, tuple(sorted(push.id for push in pushes)), layout.gradient_nbytes
        self._blocks = self._cut(run)
        self._turn()

    def _cut(self, run: Sequence[Array | Mean | Pieces]) -> Iterator[tuple[int, int, Array | Mean]]:
        for number, (arena, gradient) in enumerate(zip(self._shard.layout.arenas, run, strict=True)):
            if arena.optimizer is None:
                continue
            assert not isinstance(gradient, Pieces), "pushes of a step lie in runs"
            size = max(1, BLOCK * self._shard.node.runtime.piece_nbytes // 4)
            for start in range(0, arena.size, size):
                yield number, start, cut(gradient, start, start + size)

    def _turn(self) -> None:
        if not self._shard.ended and self._go_on():
            self._shard.node.after(0, self._turn)

    def _go_on(self) -> bool:
        """One block more; False where none is left."""
        block = None if self._ahead is None else next(self._blocks, None)
        if self._ahead is None or block is None:
            return False
        number, start, gradient = block
        self._ahead.add(number, start, gradient, check=False)
        self._left -= (gradient.arrays[0] if isinstance(gradient, Mean) else gradient).nbytes
        return True
