"""Synchronous steps at once: one small message to the ps, one back, and nothing in between that was not foreseen.

What is foreseen is the usual: all gradients are there, and the ps, which is on this machine and the only one, answers
soon with the place where the new values lie. When anything else comes, or nothing for a moment, the same push goes the
ordinary way under the same number, of which the ps carries out one: nothing depends on what was foreseen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dps.actors.ref import Ref
from dps.connection import Connection
from dps.errors import DpsError
from dps.lanes import Lane
from dps.protocol import APPLIED, Pushed, Step, Stepped
from dps.pulling import Pulls
from dps.pushes import Pushes
from dps.pushing import PushOp
from dps.transport.endpoint import Memory
from dps.transport.message import Message
from dps.transport.wire import Array
from dps.variables.layout import Gradient
from dps.variables.plan import ShardLayout
from dps.variables.transfers import copy_steadily

PATIENCE_S = 0.02
"""How long an answer may take; then the push goes the ordinary way, too, on which it is waited for as ever."""
KEPT_S = 0.5
"""How long after a push the values that came with it serve a pull."""


class Way(NamedTuple):
    """What stays the same from step to step, as long as the session's incarnation does."""

    incarnation: int
    ps: int
    ref: Ref
    lane: Lane
    layout: ShardLayout


class Lent(NamedTuple):
    """One version of the shard, as it lies in the ps's memory until `release`: bytes, to read only."""

    way: Way
    request: int
    push: int
    """The number of the push that it came with."""
    counter: int
    memory: Array
    until: float

    def release(self) -> None:
        """It is read: the ps hears of it with the next step."""
        self.way.lane.over(self.request)


class Stepping:
    """The steps of one session that may be made at once."""

    def __init__(self, connection: Connection, pushes: Pushes, pulls: Pulls) -> None:
        self._connection, self._pushes, self._pulls = connection, pushes, pulls
        self._way: Way | None = None
        self._known = -1
        """The incarnation that `_way` was looked for in."""
        self._unread: Lent | None = None
        """What came with the last push."""

    def step(self, gradients: Mapping[int, Gradient], loss: Any) -> tuple[Any, PushOp | None]:
        """The values after the step, None where it has to go the ordinary way; then also the push, where it is on that
        way already. Blocks for a moment. Raises TaskLost when this node was told to end."""
        return self._try(gradients, loss, self._read_at_once, lend=True)

    def push(self, gradients: Mapping[int, Gradient], loss: Any) -> tuple[Any, PushOp | None]:
        """As `step`, but the values are left where they are: True, if it was made."""
        return self._try(gradients, loss, self._keep, lend=False)

    def lent(self) -> Lent | None:
        """The values that came with the last push, if they are those of now; they are the caller's to release."""
        lent, self._unread = self._unread, None
        connection = self._connection
        if lent is None:
            return None
        same = lent.way.incarnation == connection.caller.incarnation and not connection.aborted
        if not same or self._pushes.numbers[lent.way.ps] != lent.push or connection.runtime.now() > lent.until:
            lent.release()
            return None
        self._note(lent)
        return lent

    def read(self, lent: Lent, out: Any) -> Any:
        """The nested arrays of what was lent, the caller's own, or `out`, filled with their values."""
        try:
            if out is not None:
                return self._pulls.still([lent.memory], out)
            return self._copied(lent, *self._pulls.prepared(lent.way.layout))
        finally:
            lent.release()

    def _copied(self, lent: Lent, run: Array, tree: Any) -> Any:
        """`tree`, which lies in `run`, once the values are there."""
        copy_steadily(self._connection.runtime, run[: len(lent.memory)], lent.memory)
        return tree

    def _try(
        self, gradients: Mapping[int, Gradient], loss: Any, use: Callable[[Way, Memory, int], Any], lend: bool
    ) -> tuple[Any, PushOp | None]:
        """`use(way, memory of the gradients, number of the push)`, where everything is as foreseen."""
        connection, pushes = self._connection, self._pushes
        if self._unread is not None:
            self._unread.release()
            self._unread = None
        if self._known != connection.caller.incarnation:
            self._way, self._known = self._found(), connection.caller.incarnation
        way = self._way
        if way is None or not way.lane.on or pushes.under_way or connection.aborted:
            return None, None
        connection.check_node()
        run = pushes.filled(way.ps, gradients)
        if run is None:
            return None, None
        number, filled = pushes.numbers[way.ps] + 1, {way.ps: run}
        values = None
        try:
            if run.memory is not None:
                values = use(way, run.memory, number)
            return values, None if values is not None else pushes.start(gradients, loss, None, lend, filled)
        except BaseException:  # Ctrl-C: the ps may have the push, which has to be known
            if values is None and not pushes.under_way:
                pushes.numbers[way.ps] = number - 1
                pushes.start(gradients, loss, None, filled=filled)
            raise

    def _found(self) -> Way | None:
        """The way of this incarnation; None where the run or the model is another than foreseen."""
        connection = self._connection
        ps, layout = connection.step_ps, connection.plan.layouts[connection.step_ps]
        one = len(connection.plan.ps) == len(layout.arenas) == 1 and bool(layout.trained)
        whole = len(connection.plan.parts) == len(connection.plan.variables)  # no array is put together out of parts
        small = layout.nbytes <= connection.runtime.small_nbytes
        if not (connection.sync and one and whole and small and self._pulls.may_come_with_a_push):
            return None
        return Way(connection.caller.incarnation, ps, connection.refs[ps], connection.lanes[ps], layout)

    def _read_at_once(self, way: Way, memory: Memory, number: int) -> Any:
        """Make a step and copy the values; they, or None."""
        prepared: list[tuple[Array, Any]] = []
        lent = self._lend(way, memory, number, lambda: prepared.append(self._pulls.prepared(way.layout)))
        if lent is None:
            return None
        try:
            self._note(lent)
            return self._copied(lent, *prepared[0])
        finally:
            lent.release()

    def _keep(self, way: Way, memory: Memory, number: int) -> Any:
        """Make a step and keep where the values are; None where it was not made."""
        self._unread = self._lend(way, memory, number, lambda: None)
        return None if self._unread is None else True

    def _lend(self, way: Way, memory: Memory, number: int, meanwhile: Callable[[], None]) -> Lent | None:
        """Make a step; what it is answered with. `meanwhile` is called before the answer is waited for."""
        connection, lane = self._connection, way.lane
        step = Step(
            connection.epoch, number, connection.local_step, self._pushes.pulled[way.ps], lane.all_released_below(),
            *memory.name,
        )  # fmt: skip
        request = connection.caller.post(way.ref, step)
        lent: Lent | None = None
        try:
            lane.reads(request)
            meanwhile()
            answer = _as_stepped(connection.caller.hear(request, PATIENCE_S))
            if answer is not None and (values := self._attached(way, answer)) is not None:
                lent = Lent(way, request, number, answer.counter, values, connection.runtime.now() + KEPT_S)
                self._pushes.made(way.ps, number, answer.step)
        finally:
            if lent is None:
                lane.over(request)
        return lent

    def _attached(self, way: Way, answer: Stepped) -> Array | None:
        """The values in the ps's memory; None where they cannot be read."""
        try:
            memory = way.lane.attach([answer.process, answer.descriptor, answer.inode, answer.nbytes])
        except DpsError as error:
            way.lane.give_up(error)
            return None
        return memory if len(memory) == way.layout.arenas[0].nbytes else None

    def _note(self, lent: Lent) -> None:
        """These values have been pulled."""
        self._pulls.read = self._connection.epoch, {lent.way.ps: lent.counter}
        self._pushes.pulled[lent.way.ps] = lent.counter


def _as_stepped(answer: Message | None) -> Stepped | None:
    """What a step was answered with; None for anything but values after it.

    A step that went the ordinary way on the ps, because another worker's did, has the same answer in other words. If it
    were sent again for that, it would in turn take the next step of the others from their way."""
    if isinstance(answer, Stepped):
        return answer
    if isinstance(answer, Pushed) and answer.status == APPLIED and len(answer.lent) == 3 and len(answer.lent[2]) == 1:
        counter, _, ((process, descriptor, inode, nbytes),) = answer.lent
        return Stepped(answer.number, answer.step, counter, process, descriptor, inode, nbytes)
    return None
