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
from dps.messages.sessions import APPLIED, Pushed
from dps.ps.intake.intake import Staged
from dps.ps.modes.combine import combined_runs
from dps.ps.modes.quorum import PushId, Quorum
from dps.ps.shard import Shard
from dps.transport.wire import Array

Asked = tuple[Staged, Sender]
"""A complete push, and the sender who waits for its result."""


class Together:
    """The complete pushes of the next step that were not reported to the quorum yet."""

    def __init__(
        self, shard: Shard, quorum: Quorum, granted: Callable[[int, Pushed], None], reduction: str
    ) -> None:  # fmt: skip
        """`granted(incarnation, result)` keeps a result for a session that asks again. `reduction`: "mean" or "sum"."""
        self._shard, self._quorum, self._granted, self._is_mean = shard, quorum, granted, reduction == "mean"
        self.kept: dict[PushId, Asked] = {}

    def keep(self, staged: Staged, sender: Sender) -> int | None:
        """Keep a complete push, and return how many more the step needs. None if it has to be reported, with all that
        are kept."""
        push, gradient = staged.push, staged.gradient
        if not self._shard.is_small or gradient is None or gradient.run is None or staged.problem:
            return None
        wanted = self._quorum.together(push.incarnation, push.number, push.step)
        if not wanted:
            return None
        self.kept[push[:3]] = staged, sender
        return wanted - len(self.kept)

    def taken(self) -> list[Asked]:
        """Take the pushes that are kept, in the order in which they came."""
        kept, self.kept = self.kept, {}
        return list(kept.values())

    def make(self) -> bool:
        """Make the step of the kept pushes. Returns False, and changes nothing, if a gradient is not finite."""
        shard, store = self._shard, self._shard.store
        step, pushes = self._quorum.step + 1, sorted(self.kept)
        runs, checked = list[list[Array]](), True
        for push in pushes:
            gradient = self.kept[push][0].sound()
            runs.append(gradient.run)  # type: ignore[arg-type]  # `keep` has looked; in sync it has neither pieces nor sums
            checked &= gradient.checked
        update = combined_runs(runs, self._is_mean)
        update.checked = checked
        if store.apply_update(update, step, record=partial(self._record, pushes, step)):
            return False
        kept, self.kept = self.kept, {}
        for push in pushes:  # one by one: the first are at work again while the last are answered
            _, incarnation, number = push
            shard.reading.answer_push(kept[push][1], shard.ledgers[incarnation].results[number], now=True)
        shard.reading.answer_waiting()
        return True

    def _record(self, pushes: list[PushId], step: int, counter: int) -> None:
        """The pushes will be version `counter`, step `step`."""
        shard = self._shard
        self._quorum.made_at_once(pushes)
        shard.node.runtime.record("applied", epoch=shard.epoch, counter=counter, step=step, pushes=tuple(pushes))
        for _, incarnation, number in pushes:
            result = Pushed(number, APPLIED, step, 0, counter, "")
            shard.record_result(shard.ledgers[incarnation], result)
            self._granted(incarnation, result)
