"""The calls of a session in local mode: it trains a copy of its own, and pushes the copy's difference once a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dps.client.loading import check_all_finite
from dps.client.training import Held, PsTraining, SessionParts
from dps.messages.replies import Push, Reply, Version
from dps.process.telemetry import log
from dps.variables.local_copy import LocalCopy


class LocalTraining(PsTraining):
    """These calls. They send messages to the ps only when the session joins and at the end of each round.

    More than 12 attributes: those of the calls with the values on the ps, which end a round, and the copy.
    """

    def __init__(self, parts: SessionParts, steps: int) -> None:
        """`steps`: of a round."""
        super().__init__(parts)
        self._own = LocalCopy(self._connection.agreed.plan, self._connection.membership)
        self._round = steps

    def ready(self, timeout: float | None) -> LocalCopy:
        """The session's own copy. At the beginning of a round it takes the common values, and blocks for them."""
        self._waiter.check_open()
        connection = self._connection
        while self._own.ended or self._own.membership is not connection.membership:
            self._pushes.drain()
            common = self._pulls.pull(None, None, timeout)
            if self._own.membership is not connection.membership:
                self._tell_lost()
                self._own = LocalCopy(connection.agreed.plan, connection.membership)
            if text := self._own.begin_round(common, connection.steps.step):
                log.info("%s: %s", self._session.name, text)
        return self._own

    def _tell_lost(self) -> None:
        """Tell of the steps of a round that ended without this session: their pushes had been accepted."""
        lost, self._own.steps = self._own.steps, 0
        if lost:
            self.reports.round_lost(self._connection.steps.step, lost)

    # -- changing -----------------------------------------------------------------------------------------------

    def push(self, grads: Any, loss: Any, timeout: float | None) -> Push:
        """As Session.push: a step of the session's own copy. The last one of a round waits for the other workers."""
        gradients, own = self._gradients(grads, loss), self.ready(timeout)
        times = self.turns.times
        times.leave()  # what a ps does in other modes, this worker computes
        check_all_finite(self._connection.agreed, gradients, "gradient")
        own.apply(gradients, self._round * self._connection.steps.local_step + own.steps)
        times.enter()
        if own.steps == self._round:
            return self._end_round(loss, timeout)
        result = Push(self._session.global_step, True)
        self.reports.report_push(result, loss)
        return result

    def _end_round(self, loss: Any, timeout: float | None) -> Push:
        """Push the difference of the own copy, and wait for the other workers."""
        moved = self._own.differences()
        self._own.ended = True
        check_all_finite(self._connection.agreed, moved, "movement")
        result = self._pushes.finish(self._pushes.start(moved, loss, timeout), timeout)
        if result.accepted:
            self._own.steps = 0
        return result

    def finish_pushes(self) -> None:
        """Push the steps since the last round when the session is closed."""
        if self._own.steps and not self._own.ended and self._own.membership is self._connection.membership:
            self._end_round(None, None)
        super().finish_pushes()
        if self._own.membership is not self._connection.membership:
            self._tell_lost()

    def push_async(self, grads: Any, loss: Any) -> Reply[Push]:
        """As Session.push_async; the last push of a round blocks."""
        return _there(self.push(grads, loss, None))

    def step(self, grads: Any, loss: Any, timeout: float | None, out: Any) -> Any:
        """As Session.step."""
        if out is not None:
            self._writer(out, None)  # before anything is pushed
        self.push(grads, loss, timeout)
        return self.pull(None, out, None, timeout)

    def step_held(self, held: Held | None, grads: Any, loss: Any, timeout: float | None) -> Any:
        """As PsTraining.step_held. The copy is the session's: nothing is released."""
        self.push(grads, loss, timeout)
        return self.take(held, timeout)

    def assign(self, values: Any, timeout: float | None) -> None:
        """As Session.assign: sets the own copy at once, and the common values after the round."""
        super().assign(values, timeout)
        self.ready(timeout).assign(values)

    # -- reading ------------------------------------------------------------------------------------------------

    def pull(
        self, names: Sequence[str] | None, out: Any, if_newer_than: Version | None, timeout: float | None
    ) -> Any:  # fmt: skip
        """As Session.pull, of the own copy."""
        own = self.ready(timeout)
        if if_newer_than is not None and own.is_common and if_newer_than == self._pulls.version:
            return None
        values = own.values(names)
        return self.reports.saw(values if out is None else self._writer(out, names)(values))

    def take(self, held: Held | None, timeout: float | None) -> Any:
        """The own copy, in place, read-only; at the beginning of a round it blocks."""
        return self.ready(timeout).values(None, still=True)

    def pull_async(self, names: Sequence[str] | None) -> Reply[Any]:
        """As Session.pull_async; at the beginning of a round it blocks."""
        return _there(self.pull(names, None, None, None))

    def lookup(self, name: Any, rows: Any, timeout: float | None, out: Any) -> Any:
        """As Session.lookup, of the own copy."""
        self._lookups.check(name, rows, out)
        return self.ready(timeout).lookup(name, rows, out)

    def lookup_async(self, name: Any, rows: Any, out: Any) -> Reply[Any]:
        """As Session.lookup_async; at the beginning of a round it blocks."""
        return _there(self.lookup(name, rows, None, out))


class DrivingTraining(PsTraining):
    """The calls of a program that is not a worker. It reads the common values, and has no copy until it pushes."""

    def _take_part(self, timeout: float | None) -> PsTraining:
        """Become a session whose copy is averaged. Blocks."""
        self._connection.joining.take_part(self._waiter.deadline(timeout))
        return self._train()

    def push(self, grads: Any, loss: Any, timeout: float | None) -> Push:
        """As LocalTraining.push."""
        return self._take_part(timeout).push(grads, loss, timeout)

    def push_async(self, grads: Any, loss: Any) -> Reply[Push]:
        """As LocalTraining.push_async."""
        return self._take_part(None).push_async(grads, loss)

    def step(self, grads: Any, loss: Any, timeout: float | None, out: Any) -> Any:
        """As LocalTraining.step."""
        return self._take_part(timeout).step(grads, loss, timeout, out)

    def step_held(self, held: Held | None, grads: Any, loss: Any, timeout: float | None) -> Any:
        """As LocalTraining.step_held."""
        return self._take_part(timeout).step_held(held, grads, loss, timeout)


def _there(result: Any) -> Reply[Any]:
    """A reply whose result is there."""
    return Reply(lambda timeout: result, lambda: True, lambda: getattr(result, "accepted", None))
