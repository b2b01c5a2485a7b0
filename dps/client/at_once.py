"""Small pulls, pushes and steps in one round trip: one message to each ps, one answer of each, and no request that is
kept.

This is for the usual case: all ps are on this machine, they answer soon, and a push has all gradients. After another
answer, or none in time, the push goes on as an ordinary request: nothing is sent again, and late answers count.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from dps.actors.caller import Posted
from dps.client.connection import Connection
from dps.client.lanes import LentVersion, PsPeer, hold_lent
from dps.client.pulling import PullMemory, Pulls
from dps.client.pushing import Pushes, PushOp
from dps.client.transfers import copy_steadily
from dps.messages.replies import Push
from dps.messages.sessions import APPLIED, Pull, Pushed, SharedValues
from dps.messages.sessions import Push as PushMessage
from dps.transport.message import Form, Message, changed
from dps.variables.layout import Gradient

_staleness = operator.attrgetter("staleness")
Holds = list[LentVersion]
"""The versions of all shards, in the order of the plan."""
Reads = Literal["", "copy", "held"]
"""Whether a push brings the values after it, and in which form."""


class Made(NamedTuple):
    """A push that got its result in one round trip, and the values after it."""

    result: Push
    values: Any = None
    """A copy of them; None if they are only held."""
    holds: Holds | None = None
    """The versions of the values, released where those were copied. None: the values have to be pulled."""


class AtOnce:
    """The small pulls, pushes and steps of one session."""

    def __init__(self, connection: Connection, pushes: Pushes, pulls: Pulls) -> None:
        self._connection, self._pushes, self._pulls = connection, pushes, pulls
        self._seen: dict[int, PsPeer] = {}
        """The peers from which `_peers` was chosen."""
        self._peers: list[PsPeer] = []
        """All ps, if this run can be served here; else none."""
        self._holds: Holds = []
        """The values that the last answers lent; of all shards, or none. The next call releases them, unless
        `hand_over` was called."""
        self._asked: dict[int, PsPeer] = {}
        """The peers of the requests in flight, by number. After Ctrl-C those that were: the next call drops them."""
        self._posted: dict[int, Posted] = {}
        """The last requests that got another answer than the usual ones, or none in time, by ps."""
        self._fresh = 0, 0.0
        """In sync: the number of the push that brought `_holds`, and until when its values serve a pull."""
        self._prepared: tuple[PullMemory, Any] | None = None
        """Memory for the values of the next answers, and the nested arrays in it."""

    def push(self, gradients: Mapping[int, Gradient], loss: Any, reads: Reads = "") -> Made | PushOp | None:
        """A push, and the values after it if it `reads`: a "copy", or values that are "held": the caller calls
        `hand_over` and releases them. Blocks for a moment. Raises TaskLost when this node was told to end, ValueError
        for NaN that no ps may refuse. In sync values that nobody reads are kept for the next pull: nobody changes them
        before the next step.

        Returns the result, or the push as an ordinary operation if a ps did not answer soon, or None if nothing was
        sent."""
        pushes, peers = self._pushes, self._open()
        connection = self._connection
        if not peers or pushes.under_way or connection.membership.settles:
            return None
        if pushes.assigned is not None and pushes.assigned.waiting:
            return None
        memories: list[list[int]] = []
        for peer in peers:
            run = pushes.filled(peer, gradients)
            if run is None or run.memory is None:
                return None
            memories.append(run.memory.name)
        if connection.agreed.mode.checks_finite:
            pushes.check(gradients)
        numbers, incarnation, made = pushes.numbers.copy(), connection.caller.incarnation, None
        try:
            made = self._push(peers, memories, reads)
            return made or pushes.start(gradients, loss, None, bool(reads), self._posted)
        except BaseException:  # Ctrl-C: the ps may have the push, so it has to be sent again under its number
            if made is None and not pushes.under_way and connection.caller.incarnation == incarnation:
                pushes.numbers = numbers
                self._start_surely(gradients, loss)
            raise

    def _start_surely(self, gradients: Mapping[int, Gradient], loss: Any) -> None:
        """Start a push that some ps may have already. If that fails, too, no other push may get its numbers: the
        session joins again."""
        try:
            self._pushes.start(gradients, loss, None)
        except BaseException:
            self._connection.membership.end()
            raise

    def pull(self) -> Any:
        """The nested arrays of the current values, the caller's own; None if they have to be pulled. Blocks for a
        moment."""
        return self._copied() if self.held(prepares=True) else None

    def held(self, prepares: bool = False) -> Holds:
        """The current values: those that came with the last push or, if others may have pushed since, those that the ps
        have. Empty if they have to be pulled. Blocks for a moment.

        The caller calls `hand_over` and releases them. `prepares`: memory to copy them to is found while the answers
        are in flight."""
        if self._connection.agreed.mode.has_stable_values:
            if self._holds and not self._is_fresh(self._holds):
                self._release()
            if self._holds:
                self.note(self._holds)
            return self._holds
        return self._ask_values(prepares)

    def hand_over(self) -> None:
        """From now on the caller of `held` releases the holds, also after an error."""
        self._holds = []

    def note(self, holds: Holds) -> None:
        """Record that these values were pulled."""
        counters = {hold.peer.ps: hold.counter for hold in holds}
        self._pulls.read = self._connection.membership.epoch, counters
        self._pushes.pulled.update(counters)

    def _is_fresh(self, holds: Holds) -> bool:
        """In sync: whether the values that came with the last push are still the newest version."""
        connection, (push, until) = self._connection, self._fresh
        for hold in holds:
            ps = hold.peer.ps
            if connection.peers.get(ps) is not hold.peer or self._pushes.numbers[ps] != push:
                return False
        return not connection.membership.over and connection.home.runtime.now() <= until

    def _release(self) -> None:
        for hold in self._holds:
            hold.release()
        self._holds = []  # only now: after Ctrl-C the next call releases the others

    def _copied(self) -> Any:
        """Copy the held values, into the prepared memory if there is any, and release them."""
        try:
            memory, tree = self._prepared or self._pulls.prepared()
            runtime = self._connection.home.runtime
            for hold in self._holds:
                run = memory.run(hold.peer.ps)
                for arena, values in zip(hold.peer.layout.arenas, hold.memories, strict=True):
                    copy_steadily(runtime, run[arena.offset : arena.offset + arena.nbytes], values)
            return memory.tree(self._pushes.assembly) if tree is None else tree
        finally:
            self._prepared = None
            self._release()

    def _open(self) -> list[PsPeer]:
        """The ps to ask; none if the requests have to be ordinary ones."""
        connection = self._connection
        if self._holds:
            self._release()
        if self._asked:
            self._drop_asked()
        if self._seen is not connection.peers:
            self._seen, self._peers = connection.peers, self._usual_peers()
        if connection.membership.over:
            return []
        for peer in self._peers:
            if not peer.lane.on:
                return []
        connection.check_node()
        return self._peers

    def _usual_peers(self) -> list[PsPeer]:
        """All ps, if run and model are the usual ones: small shards, each of which has something that is trained."""
        connection, layouts = self._connection, self._connection.agreed.plan.layouts
        most = connection.home.runtime.tuning.small_nbytes
        small = all(layout.nbytes <= most and layout.trained for layout in layouts.values())
        usual = small and self._pulls.may_come_with_a_push
        return [connection.peers[ps] for ps in layouts] if usual else []

    def _push(self, peers: Sequence[PsPeer], memories: Sequence[list[int]], reads: Reads) -> Made | None:
        """Send a push of gradients in shared memory; None if a ps did not apply it soon."""
        connection, pushes = self._connection, self._pushes
        lend, epoch = bool(reads) or connection.agreed.mode.has_stable_values, connection.membership.epoch
        step, numbers, pulled = connection.steps.local_step, pushes.numbers, pushes.pulled
        plain = [  # arguments of `PushMessage.expanded`
            (epoch, numbers[peer.ps] + 1, step, pulled[peer.ps], peer.layout.gradient_nbytes, 0, lend,
             peer.lane.all_released_below(), *memory)
            for peer, memory in zip(peers, memories, strict=True)
        ]  # fmt: skip
        first: PushMessage | None = None
        if pushes.times.at >= pushes.times.due_at:
            first = changed(PushMessage.expanded(*plain[0]), times=pushes.take_times())  # to the step ps
        if len(peers) > 1:
            pushes.announce()
        answers = self._ask(PushMessage.form_of, plain, reads == "copy", first)
        if answers is None:
            return None
        leading = answers[0]  # the step ps's
        step = pushes.made(peers, leading.number, leading.step)
        for answer in answers:
            if answer.settles:
                connection.membership.settles = True
            if answer.lent and answer.lent[1] != leading.step and connection.agreed.mode.is_atomic:
                self._release()  # else values of several steps might be read together
        result, holds = Push(step, True, max(map(_staleness, answers))), self._holds
        if reads and holds:
            return Made(result, self._copied() if reads == "copy" else None, holds)
        if holds:
            runtime = connection.home.runtime
            self._fresh = leading.number, runtime.now() + runtime.tuning.client.step_values_s
        return Made(result)

    def _ask_values(self, prepares: bool) -> Holds:
        """The values that the ps have now."""
        connection, peers = self._connection, self._open()
        if not peers:
            return []
        epoch = connection.membership.epoch
        # Arguments of `Pull.expanded`.
        plain = [(epoch, 0, 0, 0, -1, 0, peer.lane.all_released_below(), 0) for peer in peers]
        answers = self._ask(Pull.form_of, plain, prepares)
        if self._holds and answers is not None:
            connection.steps.saw(answers[0].step)
            self.note(self._holds)
        return self._holds

    def _ask(
        self, form: Form, plain: Sequence[Sequence[int]], prepares: bool, first: Message | None = None
    ) -> list[Any] | None:
        """Send each ps a message, and hold the values that all of the answers lend. None for anything but the usual
        answers. `plain`: for each ps the integers of its message, of this form. `first`: sent to the first ps instead
        of those."""
        caller, at = self._connection.caller, self._connection.home.runtime.tuning.client
        asked = self._asked = {}
        holds, usual = Holds(), True
        try:
            for peer, numbers in zip(self._peers, plain, strict=True):
                if first is None:
                    number = caller.post_plain(peer.ref, form, numbers)
                else:
                    number, first = caller.post(peer.ref, first), None
                asked[number] = peer
                peer.lane.reads(number)
            self._prepared = self._pulls.prepared() if prepares else None
            answers = caller.hear(asked, at.step_patience_s)
            for number, answer in answers.items():
                lent: Sequence[Any] = ()
                if isinstance(answer, SharedValues):
                    lent = answer.counter, answer.step, answer.memories
                elif isinstance(answer, Pushed) and answer.status == APPLIED:
                    lent = answer.lent
                else:
                    usual = False
                if lent and (hold := hold_lent(asked[number], number, lent[0], lent[2])) is not None:
                    holds.append(hold)
            if len(holds) == len(asked):
                self._holds, holds = holds, []
                self._asked = {}
            self._posted = {} if usual else {peer.ps: (number, answers[number]) for number, peer in asked.items()}
            return list(answers.values()) if usual else None
        finally:
            for hold in holds:  # without those of the others they are of no use
                hold.release()
            if self._asked:
                self._drop_asked()

    def _drop_asked(self) -> None:
        """Nobody reads what answers to these requests lend."""
        for number, peer in self._asked.items():
            peer.lane.over(number)
        self._asked = {}
