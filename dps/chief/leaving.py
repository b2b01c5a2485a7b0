"""Lets a ps leave that was told to end while the run goes on: saves a checkpoint first, or drains the run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dps.actors.node import Node
from dps.actors.ref import Sender
from dps.chief.cluster import Cluster
from dps.chief.ending import RunEnding
from dps.chief.epoch import Epoch
from dps.chief.epochs import Epochs
from dps.messages.runs import HOLD, RUN, SETTLE, StopTask

HEAR_S = 1.0
"""How long a ps waits for permission to leave. If all tasks got a Ctrl-C, it reaches the chief within this time, and
then the ps stays until the workers have stopped."""

SETTLE_S, LOOK_S = 5.0, 0.05
"""How long the sessions may take to complete the pushes that are on their way, and how often that is looked at."""


class Leaving:
    """Handles the ps that ask to leave. If a ps holds variables and there is a checkpoint_dir, sessions complete the
    pushes that only some ps have applied, nobody trains while the values are saved, and the run goes on from there when
    the ps is back. Without a checkpoint_dir the workers stop after their step; the run ends with 3."""

    def __init__(
        self, node: Node, cluster: Cluster, epochs: Epochs, ending: RunEnding, lost: Callable[[int, str], None]
    ) -> None:
        """`lost(task, why)` is called when a ps was allowed to leave."""
        self._node, self._cluster, self._epochs, self._ending, self._lost = node, cluster, epochs, ending, lost
        self._asked: dict[int, Sender] = {}
        self._going: dict[int, str] = {}
        """The ps that leave once the values are saved, and why."""

    def ask_to_leave(self, task: int, why: str, sender: Sender) -> None:
        """A ps was told to end and asks to leave. It repeats the request until it is answered."""
        known = self._cluster.ps.known.get(task)
        if self._ending.shutdown.message is not None:
            self._node.answer(sender, self._ending.shutdown.message)
        elif known is None or known.ticket != sender.peer.ticket or not known.alive:
            self._node.answer(sender)
        elif not self._is_run():
            self._node.answer(sender, StopTask(0, ""))
        else:
            before = self._asked.get(task)
            news = before is None or before.peer is not sender.peer
            self._asked[task] = sender
            if news:
                self._node.after(HEAR_S, lambda: self._decide(task, why))

    def _is_run(self) -> bool:
        """Whether any session trains or is expected."""
        workers = self._cluster.workers
        return self._epochs.run is not None or bool(workers.known or workers.expected)

    def _decide(self, task: int, why: str) -> None:
        if self._must_stay(task):
            return
        run, now = self._epochs.run, self._epochs.current
        if now is not None and now.phase in (SETTLE, HOLD):
            self._going[task] = why
        elif run is None or not self._cluster.is_needed(task) or self._epochs.phase != RUN:
            self._let_leave(task, why)
        elif now is None or now.checkpoints is None:
            lost = "without a checkpoint_dir its values are lost; give the session a checkpoint_dir"
            self._ending.drain_run(f"ps:{task} {why}: {lost}", 3)
        else:
            self._going[task] = why
            if now.may_have_halves:
                now.settle_pushes()
                self._epochs.publish_members()
            self._settle_pushes(now, self._node.now() + SETTLE_S)

    def _settle_pushes(self, now: Epoch, until: float) -> None:
        """Take the sessions out of the run once they have completed their pushes, or when their time is over."""
        if self._epochs.current is not now or now.phase not in (RUN, SETTLE):
            self._finish_save(now, -1)
        elif now.phase == SETTLE and self._epochs.is_unsettled() and self._node.now() < until:
            self._node.after(LOOK_S, lambda: self._settle_pushes(now, until))
        else:
            now.hold_training(partial(self._save_values, now))
            self._epochs.publish_members()

    def _save_values(self, now: Epoch) -> None:
        """Nobody trains any more, or the run epoch is over."""
        if self._epochs.current is now and now.checkpoints is not None:

            def saved(name: str | Exception, step: int) -> None:
                if isinstance(name, str):
                    self._epochs.pushes.mark_saved(name)
                self._finish_save(now, step)

            now.checkpoints.save(saved)
        else:
            self._finish_save(now, -1)

    def _finish_save(self, now: Epoch, step: int) -> None:
        """The checkpoint of this step was written, or has failed (-1), which the log says. Let the ps leave."""
        going, self._going = self._going, {}
        if step >= 0:
            self._ending.mark_all_saved()
            self._epochs.losses.record_last_step(now.number, step)
        here = self._epochs.current is now
        if here:
            now.resume_training()
            self._ending.end_if_done()
        for task, why in going.items():
            if not self._must_stay(task):
                self._let_leave(task, why)
        if here and self._epochs.current is now:
            self._epochs.losses.begin_epoch(now.number, now.run.step, unknown=True)
        if here:
            self._epochs.advance()

    def _must_stay(self, task: int) -> bool:
        """Whether not to let the ps leave: it will hear of the run's end with all others, or is gone already."""
        known = self._cluster.ps.known.get(task)
        here = known is not None and known.alive and known.ticket == self._asked[task].peer.ticket
        return self._ending.is_near or not here

    def _let_leave(self, task: int, why: str) -> None:
        known = self._cluster.ps.known[task]
        self._node.answer(self._asked.pop(task))
        self._cluster.ps.mark_lost(known.address)
        self._node.unwatch(known.address)
        self._lost(task, why)
