"""Small pulls, pushes and steps in one round trip: one message to the ps, one answer, and no request kept open.

In the usual case all gradients are there, and the only ps is on this machine and answers soon, in a push or a pull with
the place of the new values. Everything else is left to the ordinary requests: after another answer, or none for a
moment, the same push is sent as one of them. It has the same number, so the ps applies one of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dps.actors.ref import Ref
from dps.client.cargo import About, shared_message
from dps.client.connection import Connection
from dps.client.lanes import Lane
from dps.client.pulling import Pulls
from dps.client.pushes import Pushes
from dps.client.pushing import PushOp
from dps.client.transfers import copy_steadily
from dps.errors import DpsError
from dps.protocol import APPLIED, Pull, Pushed, SharedValues
from dps.protocol import Push as PushMessage
from dps.reply import Push
from dps.transport.endpoint import Memory
from dps.transport.message import Message
from dps.transport.wire import Array
from dps.variables.layout import Gradient
from dps.variables.plan import ShardLayout


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
        """It is read: the ps hears of it with the next message."""
        self.way.lane.release(self.request, len(self.memory))


class Made(NamedTuple):
    """A push that was made at once: its result, and the values after it, where they were wanted and could be had: a
    copy of what was lent."""

    result: Push
    values: Any = None
    lent: Lent | None = None


def _nothing(layout: ShardLayout) -> None:
    return None


class AtOnce:
    """What one session does at once."""

    def __init__(self, connection: Connection, pushes: Pushes, pulls: Pulls) -> None:
        self._connection, self._pushes, self._pulls = connection, pushes, pulls
        self._way: Way | None = None
        self._known = -1
        """The incarnation that `_way` was looked for in."""
        self._unread: Lent | None = None
        """What came with the last push."""
        self._loose: Lent | None = None
        """What was lent just now, until somebody sees to its release: after Ctrl-C in between that is done here."""

    def step(self, gradients: Mapping[int, Gradient], loss: Any) -> tuple[Made | None, PushOp | None]:
        """A push and the values after it; None where it has to go the ordinary way, then also the push, where it is on
        that way already. Blocks for a moment. Raises TaskLost when this node was told to end."""
        return self._try(gradients, loss, self._read_at_once, lend=True)

    def push(self, gradients: Mapping[int, Gradient], loss: Any) -> tuple[Made | None, PushOp | None]:
        """As `step`, but without the values."""
        return self._try(gradients, loss, self._keep, lend=False)

    def lent(self, meanwhile: Callable[[ShardLayout], None] = _nothing) -> Lent | None:
        """The values of now: those that came with the last push, or where others may have pushed since, those that the
        ps has. They are the caller's to release. None where they have to be pulled. Blocks for a moment, before which
        `meanwhile` is called."""
        if not self._connection.sync:
            return self._look(meanwhile)
        self._loose, self._unread = self._unread, None
        lent, connection = self._loose, self._connection
        if lent is None:
            return None
        same = lent.way.incarnation == connection.caller.incarnation and not connection.membership.over
        if not same or self._pushes.numbers[lent.way.ps] != lent.push or connection.runtime.now() > lent.until:
            lent.release()
            return None
        self.note(lent)
        return lent

    def holds(self) -> None:
        """Whoever has called `lent` releases what it was given, whatever comes."""
        self._loose = None

    def note(self, lent: Lent) -> None:
        """These values have been pulled."""
        self._pulls.read = self._connection.epoch, {lent.way.ps: lent.counter}
        self._pushes.pulled[lent.way.ps] = lent.counter

    def pull(self) -> Any:
        """The nested arrays of the values of now, the caller's own; None where they have to be pulled. Blocks for a
        moment."""
        prepared: list[tuple[Array, Any]] = []
        lent = self.lent(lambda layout: prepared.append(self._pulls.prepared(layout)))
        return None if lent is None else self._read(lent, prepared)

    def _read(self, lent: Lent, prepared: list[tuple[Array, Any]]) -> Any:
        """The values in what was prepared for them, if anything was; what was lent is released."""
        try:
            self.holds()
            run, tree = prepared[0] if prepared else self._pulls.prepared(lent.way.layout)
            copy_steadily(self._connection.runtime, run[: len(lent.memory)], lent.memory)
            return tree
        finally:
            lent.release()

    def _try(
        self, gradients: Mapping[int, Gradient], loss: Any, use: Callable[[Way, Memory, int], Made | None], lend: bool
    ) -> tuple[Made | None, PushOp | None]:
        """`use(way, memory of the gradients, number of the push)`, in the usual case."""
        pushes = self._pushes
        if self._unread is not None:
            self._unread.release()
            self._unread = None
        way = self._open_way()
        if way is None or pushes.under_way or not way.layout.trained:
            return None, None
        run = pushes.filled(way.ps, gradients)
        if run is None:
            return None, None
        number = pushes.numbers[way.ps] + 1
        made = None
        try:
            if run.memory is not None:
                made = use(way, run.memory, number)
            return made, None if made is not None else pushes.start(gradients, loss, None, lend)
        except BaseException:  # Ctrl-C: the ps may have the push, which has to be known
            if made is None and not pushes.under_way:
                pushes.numbers[way.ps] = number - 1
                pushes.start(gradients, loss, None)
            raise

    def _open_way(self) -> Way | None:
        """The way of now; None where things have to go the ordinary way."""
        connection = self._connection
        if self._loose is not None:
            self._loose.release()
            self._loose = None
        if self._known != connection.caller.incarnation:
            self._way, self._known = self._found(), connection.caller.incarnation
        if self._way is None or not self._way.lane.on or connection.membership.over:
            return None
        connection.check_node()
        return self._way

    def _found(self) -> Way | None:
        """The way of this incarnation; None where the run or the model is not the usual one."""
        connection = self._connection
        ps, layout = connection.step_ps, connection.plan.layouts[connection.step_ps]
        one = len(connection.plan.ps) == len(layout.arenas) == 1
        whole = len(connection.plan.parts) == len(connection.plan.variables)  # no array is put together out of parts
        small = layout.nbytes <= connection.runtime.tuning.small_nbytes
        if not (one and whole and small and self._pulls.may_come_with_a_push):
            return None
        return Way(connection.caller.incarnation, ps, connection.peers[ps].ref, connection.peers[ps].lane, layout)

    def _read_at_once(self, way: Way, memory: Memory, number: int) -> Made | None:
        """Make a push and copy the values."""
        prepared: list[tuple[Array, Any]] = []
        answer, lent = self._push(
            way, memory, number, True, lambda layout: prepared.append(self._pulls.prepared(layout))
        )
        if answer is None:
            return None
        result = Push(answer.step, True, answer.staleness)
        return Made(result) if lent is None else Made(result, self._read(lent, prepared), lent)

    def _keep(self, way: Way, memory: Memory, number: int) -> Made | None:
        """Make a push, and in sync keep where the values are: until the next step nobody changes them."""
        answer, self._unread = self._push(way, memory, number, self._connection.sync, _nothing)
        self.holds()
        return None if answer is None else Made(Push(answer.step, True, answer.staleness))

    def _push(
        self, way: Way, memory: Memory, number: int, lend: bool, meanwhile: Callable[[ShardLayout], None]
    ) -> tuple[Pushed | None, Lent | None]:
        """Make a push; its result, and what came with it. `meanwhile` is called before the answer is waited for."""
        connection, pushes = self._connection, self._pushes
        step = connection.local_step if connection.sync else connection.step
        about = About(
            connection.epoch, number, step, pushes.pulled[way.ps], 0, lend, way.lane.all_released_below()
        )  # fmt: skip
        (message,) = shared_message(way.layout, memory.name, about)
        answer, lent = self._ask(way, message, number, meanwhile)
        if not isinstance(answer, Pushed):
            return None, None
        pushes.made(way.ps, number, answer.step)
        return answer, lent

    def _look(self, meanwhile: Callable[[ShardLayout], None]) -> Lent | None:
        """The values that the ps has now. `meanwhile` is called before the answer is waited for."""
        way = self._open_way()
        if way is None:
            return None
        connection = self._connection
        pull = Pull(connection.epoch, 0, 0, 0, -1, [], 0, True, way.lane.all_released_below())
        answer, lent = self._ask(way, pull, 0, meanwhile)
        if lent is not None and answer is not None:
            connection.steps.saw(answer.step)
            self.note(lent)
        return lent

    def _ask(
        self, way: Way, message: PushMessage | Pull, number: int, meanwhile: Callable[[ShardLayout], None]
    ) -> tuple[Pushed | SharedValues | None, Lent | None]:
        """Send a message; what it is answered with, and the values that this lends."""
        connection, lane = self._connection, way.lane
        request = connection.caller.post(way.ref, message)
        lent: Lent | None = None
        try:
            lane.reads(request)
            meanwhile(way.layout)
            tuning = connection.runtime.tuning.client
            answer = _usual(connection.caller.hear(request, tuning.step_patience_s))
            counter, memories = _lent(answer)
            if memories and (values := self._attached(way, memories)) is not None:
                until = connection.runtime.now() + tuning.step_values_s
                self._loose = lent = Lent(way, request, number, counter, values, until)
            return answer, lent
        finally:
            if lent is None:
                lane.over(request)

    def _attached(self, way: Way, memories: list[Any]) -> Array | None:
        """The values in the ps's memory; None where they cannot be read."""
        try:
            memory = way.lane.attach(memories[0])
        except DpsError as error:
            way.lane.give_up(error)
            return None
        return memory if len(memory) == way.layout.arenas[0].nbytes else None


def _usual(answer: Message | None) -> Pushed | SharedValues | None:
    """What a message was answered with; None for anything but the usual answer."""
    if isinstance(answer, SharedValues) or (isinstance(answer, Pushed) and answer.status == APPLIED):
        return answer
    return None


def _lent(answer: Pushed | SharedValues | None) -> tuple[int, list[Any]]:
    """The version of the values that came with an answer, and where they lie; nothing where none did."""
    if isinstance(answer, SharedValues):
        return answer.counter, answer.memories
    if answer is None or not answer.lent:
        return -1, []
    counter, _, memories = answer.lent
    return counter, memories
