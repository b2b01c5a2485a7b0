"""Small pulls, pushes and steps in one round trip: one message to each ps, one answer of each, and no request that is
kept.

This is for the usual case: all ps are on this machine, they answer soon, and a push has all gradients. After another
answer, or none in time, the push goes on as an ordinary request: nothing is sent again, and late answers count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dps.actors.caller import Answer, Posted
from dps.client.assembly import Whole, is_whole
from dps.client.connection import Connection
from dps.client.lanes import LentVersion, PsPeer
from dps.client.pulling import PullMemory, Pulls
from dps.client.pushing import Pushes, PushOp
from dps.client.transfers import copy_steadily
from dps.messages.replies import Push
from dps.messages.sessions import APPLIED, Pull, Pushed, SharedValues
from dps.messages.sessions import Push as PushMessage
from dps.transport.message import changed
from dps.variables.layout import Gradient

Holds = list[LentVersion]
"""The versions of all shards, in the order of the plan; none if not all are lent."""
Made = tuple[Push, Any, Holds]
"""The result of a push that was made in one round trip, the values after it, and their versions, which are released
where the values are a copy. No versions: the values have to be pulled."""
PUSH, PUSHED, PULL, VALUES = PushMessage.form_of, Pushed.form_of, Pull.form_of, SharedValues.form_of
SETTLES = 2
"""The bit of `Pushed.settles` in the flags of its compact form."""
Keep = Callable[[Holds, bool], None]
"""As `dps.client.training.Held.keep`."""


class AtOnce:
    """The small pulls, pushes and steps of one session."""

    def __init__(self, connection: Connection, pushes: Pushes, pulls: Pulls) -> None:
        self._connection, self._pushes, self._pulls = connection, pushes, pulls
        self._caller, self._runtime = connection.caller, connection.home.runtime
        self._seen: dict[int, PsPeer] = {}
        """The peers from which `_peers` was chosen."""
        self._peers: list[PsPeer] = []
        """All ps, if this run can be served here; else none."""
        self._assembly = pushes.assembly
        self._holds: Holds = []
        """The values that the last answers lent; of all shards, or none. After Ctrl-C it may be some. The next call
        releases them, unless `hand_over` was called."""
        self._posted: dict[int, Posted] = {}
        """The last requests of a push that got another answer than the usual ones, or none in time, by ps."""
        self._fresh = 0, 0.0
        """In sync: the number of the push that brought `_holds`, and until when its values serve a pull."""
        self._prepared: tuple[PullMemory, Any] | None = None
        """Memory for the values of the next answers, and the nested arrays in it."""

    def push(
        self, gradients: Mapping[int, Gradient], loss: Any, reads: bool = False, keep: Keep | None = None
    ) -> Made | PushOp | None:
        """A push, and the values after it if it `reads`: a copy or, if there is a `keep`, the values in place, and it
        is called with their versions. Blocks for a moment. Raises TaskLost when this node was told to end, ValueError
        for NaN that no ps may refuse. In sync values that nobody reads are kept for the next pull: nobody changes them
        before the next step.

        Returns the result, or the push as an ordinary operation if a ps did not answer soon, or None if nothing was
        sent."""
        connection, pushes, peers = self._connection, self._pushes, self._open()
        membership = connection.membership
        if not peers or pushes.under_way or membership.settles:
            return None
        if pushes.assigned is not None and pushes.assigned.waiting:
            return None
        if gradients.__class__ is not Whole and not all(is_whole(peer.layout, gradients) for peer in peers):
            return None
        if connection.agreed.mode.checks_finite:
            pushes.loader.check(gradients)
        before, made = pushes.numbers.copy(), None
        try:
            made = self._push(gradients, reads, keep)
            return made or pushes.start(gradients, loss, None, reads, self._posted)
        except BaseException:  # Ctrl-C: the ps may have the push, so it has to be sent again under its number
            if made is None and not pushes.under_way and connection.membership is membership:
                pushes.numbers = before
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

        The caller calls `hand_over`. `prepares`: memory to copy them to is found while the answers are in flight."""
        if not self._connection.agreed.mode.has_stable_values:
            return self._ask_values(prepares)
        if self._holds:
            if self._is_fresh(self._holds):
                self.note(self._holds)
            else:
                self._release()
        return self._holds

    def hand_over(self, keep: Keep) -> None:
        """Others release what `held` has returned: `keep` is called with it."""
        keep(self._holds, not self._peers[0].lane.tells_at_once)
        self._holds = []

    def note(self, holds: Holds) -> None:
        """Record that these values were pulled."""
        counters = self._pushes.pulled
        for hold in holds:
            counters[hold.peer.ps] = hold.counter
        self._pulls.read = self._connection.membership.epoch, counters

    def still(self, holds: Holds) -> Any:
        """Values in place, in the nesting of params."""
        parts = holds[0].parts if len(holds) == 1 else [part for hold in holds for part in hold.parts]
        return self._assembly.views(parts)

    def _is_fresh(self, holds: Holds) -> bool:
        """In sync: whether the values that came with the last push are still the newest version."""
        connection, (push, until) = self._connection, self._fresh
        for hold in holds:
            ps = hold.peer.ps
            if connection.peers.get(ps) is not hold.peer or self._pushes.numbers[ps] != push:
                return False
        return not connection.membership.over and self._runtime.now() <= until

    def _release(self) -> None:
        for lent in self._holds:
            lent.release()
        self._holds = []  # only now: after Ctrl-C the next call releases the others

    def _copied(self) -> Any:
        """Copy the held values, into the prepared memory if there is any, and release them."""
        try:
            memory, tree = self._prepared or self._pulls.prepared(self._assembly)
            for hold in self._holds:
                for target, values in zip(memory.arenas(hold.peer.ps), hold.memories, strict=True):
                    copy_steadily(self._runtime, target, values)
            return memory.tree(self._assembly) if tree is None else tree
        finally:
            self._prepared = None
            self._release()

    def _open(self) -> list[PsPeer]:
        """The ps to ask; none if the requests have to be ordinary ones."""
        connection = self._connection
        if self._holds:
            self._release()
        if self._seen is not connection.peers:
            self._seen, self._peers = connection.peers, self._usual_peers()
            self._assembly = self._pushes.assembly
        if connection.membership.over:
            return []
        for peer in self._peers:
            if not peer.lane.on:
                return []
        if connection.home.exit_state() is not None:
            connection.check_node()
        return self._peers

    def _usual_peers(self) -> list[PsPeer]:
        """All ps, if run and model are the usual ones: small shards, each of which has something that is trained."""
        connection, layouts = self._connection, self._connection.agreed.plan.layouts
        most = connection.home.runtime.tuning.small_nbytes
        small = all(layout.nbytes <= most and layout.trained for layout in layouts.values())
        usual = small and self._pulls.may_come_with_a_push
        return [connection.peers[ps] for ps in layouts] if usual else []

    def _push(self, gradients: Mapping[int, Gradient], reads: bool, keep: Keep | None) -> Made | None:
        """Send a push of gradients in shared memory; None if a ps did not apply it soon."""
        mode = self._connection.agreed.mode
        lends = reads or mode.has_stable_values
        asked: dict[int, PsPeer] = {}
        if not self._send(gradients, lends, asked):
            self._go_on(asked, {})
            return None
        self._prepared = self._pulls.prepared(self._assembly) if reads and keep is None else None
        heard = self._caller.hear(asked, PUSHED, self._runtime.tuning.client.step_patience_s)
        number, step, staleness, flags = 0, -1, 0, 0
        for request, peer in asked.items():
            answer = heard.get(request)
            told: Sequence[Any] = answer if answer.__class__ is tuple else _applied(answer)
            if not told:
                self._go_on(asked, heard)
                return None
            if step < 0:
                number, step = told[1], told[2]  # as the step ps says, the first
            if told[3] > staleness:
                staleness = told[3]
            flags |= told[5]
            if not told[-1]:
                lends = False
                continue
            lent = LentVersion(peer, request)
            self._holds.append(lent)
            if not lent.hold(told[6], told[8:]) or (told[7] != step and mode.is_atomic):
                lends = False  # in the last case values of several steps might be read together
        result = Push(self._pushes.made(self._peers, number, step), True, staleness)
        if flags & SETTLES:
            self._connection.membership.settles = True
        if not lends:
            self._release()
        if not lends or not reads:
            self._fresh = number, self._runtime.now() + self._runtime.tuning.client.step_values_s
            return result, None, []
        holds = self._holds
        if keep is None:
            return result, self._copied(), holds
        self.hand_over(keep)
        return result, self.still(holds), holds

    def _send(self, gradients: Mapping[int, Gradient], lend: bool, asked: dict[int, PsPeer]) -> bool:
        """Send each ps its part of a push; False if there is no memory for some. `lend`: they may lend the values after
        it. `asked` gets each request by its number."""
        connection, pushes, caller = self._connection, self._pushes, self._caller
        tells_times = pushes.times.at >= pushes.times.due_at
        if len(self._peers) > 1:
            pushes.announce()
        for peer in self._peers:
            memory, ps = pushes.loader.run(peer, gradients).memory, peer.ps
            if memory is None:
                return False
            number = caller.take_number()
            request = (
                number, connection.membership.epoch, pushes.numbers[ps] + 1, connection.steps.local_step,
                pushes.pulled[ps], peer.layout.gradient_nbytes, 0, lend,
                min(peer.lane.reading, default=number), *memory.name,
            )  # fmt: skip
            if tells_times:  # to the step ps
                caller.post(peer.ref, changed(PushMessage.expanded(*request[1:]), times=pushes.take_times()), number)
                tells_times = False
            else:
                caller.post_plain(peer.ref, PUSH, request)
            asked[number] = peer
        return True

    def _ask_values(self, prepares: bool) -> Holds:
        """The values that the ps have now."""
        connection, peers = self._connection, self._open()
        if not peers:
            return []
        asked: dict[int, PsPeer] = {}
        for peer in peers:
            number = self._caller.take_number()
            released = min(peer.lane.reading, default=number)
            request = number, connection.membership.epoch, 0, 0, 0, -1, 0, released, 0
            self._caller.post_plain(peer.ref, PULL, request)
            asked[number] = peer
        self._prepared = self._pulls.prepared(self._assembly) if prepares else None
        heard, step = self._caller.hear(asked, VALUES, self._runtime.tuning.client.step_patience_s), -1
        for number, peer in asked.items():
            answer = heard.get(number)
            told: Sequence[Any] = answer if answer.__class__ is tuple else _values(answer)
            lent = LentVersion(peer, number)
            self._holds.append(lent)
            if not told or not lent.hold(told[2], told[4:]):
                self._release()
                return self._holds
            if step < 0:
                step = told[3]  # as the step ps says, the first
        connection.steps.saw(step)
        self.note(self._holds)
        return self._holds

    def _go_on(self, asked: Mapping[int, PsPeer], heard: Mapping[int, Answer]) -> None:
        """A push goes on as an ordinary one, which hears these answers and those to come. `asked`: its requests, by
        number."""
        self._posted = {}
        for number, peer in asked.items():
            answer = heard.get(number)
            self._posted[peer.ps] = number, Pushed.expanded(*answer[1:]) if isinstance(answer, tuple) else answer
        self._release()


def _applied(answer: Answer | None) -> list[Any]:
    """The message of a push that was applied as the integers of the usual answer, but as a list that ends with the
    names of all memories. [] for another message."""
    if not isinstance(answer, Pushed) or answer.status != APPLIED:
        return []
    flags, (counter, step, names) = answer.credit | answer.settles << 1, answer.lent or (0, 0, [0])
    return [0, answer.number, answer.step, answer.staleness, answer.counter, flags, counter, step, *names]


def _values(answer: Answer | None) -> list[Any]:
    """As `_applied`, for the message of values."""
    if not isinstance(answer, SharedValues):
        return []
    return [0, answer.epoch, answer.counter, answer.step, *answer.memories]
