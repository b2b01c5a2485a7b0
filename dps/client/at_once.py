"""Small pulls, pushes and steps in one round trip: one message to the ps, one answer, and no request that is kept.

This is for the usual case: the only ps is on this machine, it answers soon, and a push has all gradients. After another
answer, or none in time, the same push is sent as an ordinary request. It has the same number, so the ps applies only
one of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dps.client.connection import Connection
from dps.client.lanes import LentVersion, PsPeer, held
from dps.client.pulling import Pulls
from dps.client.pushing import Pushes, PushOp
from dps.client.transfers import copy_steadily
from dps.messages.replies import Push
from dps.messages.sessions import APPLIED, NOTHING, SHARED, Pull, Pushed, SharedValues
from dps.messages.sessions import Push as PushMessage
from dps.transport.wire import Array
from dps.variables.layout import Gradient


class Made(NamedTuple):
    """A push that got its result in one round trip, and a copy of the values after it."""

    result: Push
    values: Any = None
    hold: LentVersion | None = None
    """A released hold that names the version that was copied. None: the values have to be pulled."""


class AtOnce:
    """The small pulls, pushes and steps of one session."""

    def __init__(self, connection: Connection, pushes: Pushes, pulls: Pulls) -> None:
        self._connection, self._pushes, self._pulls = connection, pushes, pulls
        self._peers: dict[int, PsPeer] = {}
        """The peers from which `_peer` was chosen."""
        self._peer: PsPeer | None = None
        """The only ps, if this run can be served here."""
        self._hold: LentVersion | None = None
        """The values that the last answer lent. The next call releases them, unless `holds` was called."""
        self._fresh = 0, 0.0
        """In sync: the number of the push that brought `_hold`, and until when its values serve a pull."""
        self._prepared: tuple[Array, Any] | None = None
        """Memory for the values of the next answer, and the nested arrays in it."""

    def push(self, gradients: Mapping[int, Gradient], loss: Any, reads: bool) -> Made | PushOp | None:
        """A push, and the values after it if it `reads`. Blocks for a moment. Raises TaskLost when this node was told
        to end. In sync values that nobody reads are kept for the next pull: nobody changes them before the next step.

        Returns the result, or the same push as an ordinary operation if the ps did not answer soon, or None if nothing
        was sent."""
        pushes, peer = self._pushes, self._open()
        if peer is None or pushes.under_way or not peer.layout.trained:
            return None
        if pushes.assigned is not None and pushes.assigned.waiting:
            return None
        run = pushes.filled(peer, gradients)
        if run is None or run.memory is None:
            return None
        number, made = pushes.numbers[peer.ps] + 1, None
        try:
            made = self._push(peer, run.memory.name, reads)
            return made or pushes.start(gradients, loss, None, reads)
        except BaseException:  # Ctrl-C: the ps may have the push, so it has to be sent again under its number
            if made is None and not pushes.under_way:
                pushes.numbers[peer.ps] = number - 1
                pushes.start(gradients, loss, None)
            raise

    def pull(self) -> Any:
        """The nested arrays of the current values, the caller's own; None if they have to be pulled. Blocks for a
        moment."""
        hold = self.held(prepares=True)
        return None if hold is None else self._copied(hold)

    def held(self, prepares: bool = False) -> LentVersion | None:
        """The current values: those that came with the last push or, if others may have pushed since, those that the ps
        has. None if they have to be pulled. Blocks for a moment.

        The caller calls `holds` and releases them. `prepares`: memory to copy them to is found while the answer is in
        flight."""
        if self._connection.agreed.mode.has_stable_values:
            if self._hold is not None and not self._is_fresh(self._hold):
                self._release()
            if self._hold is not None:
                self.note(self._hold)
            return self._hold
        return self._asked(prepares)

    def holds(self) -> None:
        """Hand the hold over: from now on the caller of `held` releases it, also after an error."""
        self._hold = None

    def note(self, hold: LentVersion) -> None:
        """Record that these values were pulled."""
        self._pulls.read = self._connection.membership.epoch, {hold.peer.ps: hold.counter}
        self._pushes.pulled[hold.peer.ps] = hold.counter

    def _is_fresh(self, hold: LentVersion) -> bool:
        """In sync: whether the values that came with the last push are still the newest version."""
        connection, ps, (push, until) = self._connection, hold.peer.ps, self._fresh
        same = connection.peers.get(ps) is hold.peer and not connection.membership.over
        return same and self._pushes.numbers[ps] == push and connection.home.runtime.now() <= until

    def _release(self) -> None:
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    def _copied(self, hold: LentVersion) -> Any:
        """Copy the values, into the prepared memory if there is any, and release them."""
        try:
            self.holds()
            run, tree = self._prepared or self._pulls.prepared()
            (memory,) = hold.memories
            copy_steadily(self._connection.home.runtime, run[: len(memory)], memory)
            return tree
        finally:
            self._prepared = None
            hold.release()

    def _open(self) -> PsPeer | None:
        """The ps to ask; None if the request has to be an ordinary one."""
        connection = self._connection
        self._release()
        if self._peers is not connection.peers:
            self._peers, self._peer = connection.peers, self._usual_peer()
        if self._peer is None or not self._peer.lane.on or connection.membership.over:
            return None
        connection.check_node()
        return self._peer

    def _usual_peer(self) -> PsPeer | None:
        """The only ps; None if the run or the model is not the usual one."""
        connection, plan = self._connection, self._connection.agreed.plan
        layout = plan.layouts[connection.agreed.step_ps]
        one = len(plan.ps) == len(layout.arenas) == 1 and not plan.is_split
        small = layout.nbytes <= connection.home.runtime.tuning.small_nbytes
        return connection.peers[plan.ps[0]] if one and small and self._pulls.may_come_with_a_push else None

    def _push(self, peer: PsPeer, memory: list[int], reads: bool) -> Made | None:
        """Send a push of gradients in shared memory; None if the ps did not apply it soon."""
        connection, pushes, ps = self._connection, self._pushes, peer.ps
        times = pushes.times
        number, lend = pushes.numbers[ps] + 1, reads or connection.agreed.mode.has_stable_values
        message = PushMessage(
            connection.membership.epoch, number, connection.steps.local_step, pushes.pulled[ps], SHARED,
            peer.layout.gradient_nbytes, [], [memory, 0], 0, lend, peer.lane.all_released_below(),
            times.take_told() if times.at >= times.due_at else NOTHING,
        )  # fmt: skip
        answer = self._ask(peer, message, prepares=reads)
        if not isinstance(answer, Pushed):
            return None
        pushes.made(ps, number, answer.step)
        result, hold = Push(answer.step, True, answer.staleness), self._hold
        if reads and hold is not None:
            return Made(result, self._copied(hold), hold)
        if hold is not None:
            runtime = connection.home.runtime
            self._fresh = number, runtime.now() + runtime.tuning.client.step_values_s
        return Made(result)

    def _asked(self, prepares: bool) -> LentVersion | None:
        """The values that the ps has now."""
        connection, peer = self._connection, self._open()
        if peer is None:
            return None
        pull = Pull(connection.membership.epoch, 0, 0, 0, -1, [], 0, True, peer.lane.all_released_below())
        answer = self._ask(peer, pull, prepares)
        if self._hold is not None and answer is not None:
            connection.steps.saw(answer.step)
            self.note(self._hold)
        return self._hold

    def _ask(self, peer: PsPeer, message: PushMessage | Pull, prepares: bool) -> Pushed | SharedValues | None:
        """Send a message, and hold the values that its answer lends. None for anything but the usual answer."""
        caller, lane = self._connection.caller, peer.lane
        request = caller.post(peer.ref, message)
        try:
            lane.reads(request)
            self._prepared = self._pulls.prepared() if prepares else None
            answer = caller.hear(request, caller.runtime.tuning.client.step_patience_s)
            if isinstance(answer, SharedValues):
                self._hold = held(peer, request, answer.counter, answer.memories)
            elif not isinstance(answer, Pushed) or answer.status != APPLIED:
                return None
            elif answer.lent:
                counter, _, memories = answer.lent
                self._hold = held(peer, request, counter, memories)
            return answer
        finally:
            if self._hold is None:
                lane.over(request)
