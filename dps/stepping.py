"""Synchronous steps at once: one small message to the ps, one back, and nothing in between that was not foreseen.

What is foreseen is the usual: all gradients are there, and the ps, which is on this machine and the only one, answers
soon with the place where the new values lie. When anything else comes, or nothing for a moment, the same push goes the
ordinary way under the same number, of which the ps carries out one: nothing depends on what was foreseen.
"""

from __future__ import annotations

from collections.abc import Mapping
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


class Way(NamedTuple):
    """What stays the same from step to step, as long as the session's incarnation does."""

    ps: int
    ref: Ref
    lane: Lane
    layout: ShardLayout


class Stepping:
    """The steps of one session that may be made at once."""

    def __init__(self, connection: Connection, pushes: Pushes, pulls: Pulls) -> None:
        self._connection, self._pushes, self._pulls = connection, pushes, pulls
        self._way: Way | None = None
        self._known = -1
        """The incarnation that `_way` was looked for in."""

    def step(self, gradients: Mapping[int, Gradient], loss: Any) -> tuple[Any, PushOp | None]:
        """The values after the step, None where it has to go the ordinary way; then also the push, where it is on that
        way already. Blocks for a moment. Raises TaskLost when this node was told to end."""
        connection, pushes = self._connection, self._pushes
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
                values = self._at_once(way, run.memory, number)
            return values, None if values is not None else pushes.start(gradients, loss, None, True, filled)
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
        return Way(ps, connection.refs[ps], connection.lanes[ps], layout)

    def _at_once(self, way: Way, memory: Memory, number: int) -> Any:
        """Make a step; the values, or None."""
        connection, pushes, lane = self._connection, self._pushes, way.lane
        step = Step(
            connection.epoch, number, connection.local_step, pushes.pulled[way.ps], lane.all_released_below(),
            *memory.name,
        )  # fmt: skip
        request = connection.caller.post(way.ref, step)
        try:
            lane.reads(request)
            run, tree = self._pulls.prepared(way.layout)
            answer = _as_stepped(connection.caller.hear(request, PATIENCE_S))
            if answer is None or not self._read(way, answer, run):
                return None
        finally:
            lane.over(request)
        pushes.made(way.ps, number, answer.step, answer.counter)
        self._pulls.read = connection.epoch, {way.ps: answer.counter}
        return tree

    def _read(self, way: Way, answer: Stepped, run: Array) -> bool:
        """Copy the values out of the ps's memory; False where that cannot be."""
        try:
            memory = way.lane.attach([answer.process, answer.descriptor, answer.inode, answer.nbytes])
        except DpsError as error:
            way.lane.give_up(error)
            return False
        if len(memory) != way.layout.arenas[0].nbytes:
            return False
        copy_steadily(self._connection.runtime, run[: len(memory)], memory)
        return True


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
