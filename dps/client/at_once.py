"""Small pulls, pushes and steps in one round trip: one message to each ps, one answer of each, and no request that is
kept.

This is for the usual case: all ps are on this machine, they answer soon, and a push has all gradients. After another
answer, or none in time, the push goes on as an ordinary request: nothing is sent again, and late answers count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dps.actors.caller import Answer, Heard
from dps.client.assembly import Assembly, Whole, is_whole
from dps.client.connection import Connection
from dps.client.lanes import LentVersion, PsPeer
from dps.client.pulling import PullMemory, Pulls
from dps.client.push_operations import SETTLES, PostedPush, PushOp, Sent, integers_of_applied
from dps.client.pushing import Pushes
from dps.client.transfers import copy_steadily
from dps.errors import Unavailable
from dps.messages.replies import Push
from dps.messages.sessions import Pull, Pushed, SharedValues
from dps.messages.sessions import Push as PushMessage
from dps.transport.endpoint import Runtime
from dps.transport.message import changed
from dps.variables.layout import Gradient

Holds = list[LentVersion]
"""The versions of all shards, in the order of the plan; none if not all are lent."""
Made = tuple[Push, Any, Holds]
"""The result of a push that was made in one round trip, the values after it, and their versions, which are released
where the values are a copy. No versions: the values have to be pulled."""
PUSH, PUSHED, PULL, VALUES = PushMessage.form_of, Pushed.form_of, Pull.form_of, SharedValues.form_of
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
        self._heard: Heard = {}
        """The answers to the last push that got another one than the usual, or none in time."""
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
        lends = reads or connection.agreed.mode.has_stable_values
        asked = self._requests(gradients, lends)
        if not asked:
            return None
        made, acknowledged = None, pushes.acknowledged
        try:
            made = self._push(asked, lends, reads, keep)
            return made or self._go_on(asked, self._heard, loss)
        except BaseException:  # Ctrl-C: the ps may have the push, so it has to be sent again under its number
            if made is None and not pushes.under_way and connection.membership is membership:
                pushes.acknowledged = acknowledged
                try:
                    self._go_on(asked, {}, loss)
                except BaseException:  # Ctrl-C twice: some ps may lack this push, and would wait for it for ever
                    membership.end()
                    raise
            raise

    def push_async(self, gradients: Mapping[int, Gradient], loss: Any) -> PostedPush | None:
        """A push that is on its way; None if nothing was sent. Does not block. Raises as `push`."""
        connection, pushes = self._connection, self._pushes
        if connection.agreed.mode.is_atomic:
            return None
        pushes.account_for_arrived()  # first, for hooks may push, and roll back
        if not self._open() or connection.membership.settles or (pushes.under_way and pushes.is_full):
            return None
        asked = self._requests(gradients, False)
        if not asked:
            return None
        operation = PostedPush(connection, asked, loss)
        pushes.begin_posted(operation)
        self._caller.listen(asked, PUSHED, operation.heard)
        self._post(asked)
        return operation

    def _go_on(self, asked: dict[int, Sent], heard: Heard, loss: Any) -> PushOp:
        """A push that was posted goes on as an ordinary one, which gets these answers and those to come."""
        operation = PostedPush(self._connection, asked, loss)
        operation.heard = heard
        self._pushes.begin_posted(operation)
        operation.go_on()
        self._release()
        return operation

    def pull(self) -> Any:
        """The nested arrays of the current values, the caller's own; None if they have to be pulled. Blocks for a
        moment."""
        return self._copied() if self.held(prepares=True) else None

    def held(self, prepares: bool = False) -> Holds:
        """The current values: those that came with the last push or, if others may have pushed since, those that the ps
        have. Empty if they have to be pulled. Blocks for a moment.

        The caller calls `hand_over`. `prepares`: memory to copy them to is found while the answers are in flight."""
        if not self._connection.agreed.mode.has_stable_values:
            asked = self._post_pull()
            if not asked:
                return []
            self._prepared = self._pulls.prepared(self._assembly) if prepares else None
            return self._hold(asked, self._caller.hear(asked, VALUES, self._runtime.tuning.client.step_patience_s))
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
        return connection.membership.runs and self._runtime.now() <= until

    def _release(self) -> None:
        for lent in self._holds:
            lent.release()
        self._holds = []  # only now: after Ctrl-C the next call releases the others

    def _copied(self) -> Any:
        """Copy the held values, into the prepared memory if there is any, and release them."""
        try:
            prepared = self._prepared or self._pulls.prepared(self._assembly)
            return copied(self._holds, prepared, self._assembly, self._runtime)
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
        if not connection.membership.runs:
            return []
        for peer in self._peers:
            if not peer.lane.on:
                return []
            if peer.lane.untold:
                peer.lane.tell_untold()
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

    def _push(self, asked: dict[int, Sent], lends: bool, reads: bool, keep: Keep | None) -> Made | None:
        """Send a push, and wait for the answers; None if a ps did not apply it soon. `lends`: values may come with
        it."""
        if len(asked) > 1:
            self._pushes.announce()
        self._post(asked)
        self._prepared = self._pulls.prepared(self._assembly) if reads and keep is None else None
        heard = self._caller.hear(asked, PUSHED, self._runtime.tuning.client.step_patience_s)
        holds = self._holds
        number, step, staleness, flags = 0, -1, 0, 0
        for request, sent in asked.items():
            answer = heard.get(request)
            told: Sequence[Any] = answer if answer.__class__ is tuple else integers_of_applied(answer)
            if not told:
                self._heard = heard
                return None
            if step < 0:
                number, step = told[1], told[2]  # as the step ps says, the first
            if told[3] > staleness:
                staleness = told[3]
            flags |= told[5]
            if not told[-1]:
                lends = False
                continue
            lent = LentVersion(sent[0], request)
            holds.append(lent)
            if not lent.hold(told[6], told[8:]) or (told[7] != step and self._connection.agreed.mode.is_atomic):
                lends = False  # in the last case values of several steps might be read together
        pushes = self._pushes
        result = Push(pushes.step_made(number, step), True, staleness)
        if len(asked) == 1:
            pushes.numbers[sent[0].ps] = number
        pushes.acknowledged += 1
        if flags & SETTLES:
            self._connection.membership.settles = True
        if not lends:
            if holds:
                self._release()
            return result, None, []
        if not reads:
            self._fresh = number, self._runtime.now() + self._runtime.tuning.client.step_values_s
            return result, None, []
        if keep is None:
            return result, self._copied(), holds
        self.hand_over(keep)
        return result, self.still(holds), holds

    def _requests(self, gradients: Mapping[int, Gradient], lend: bool) -> dict[int, Sent]:
        """What each ps gets of the next push, by request number, with gradients of all of its shard in shared memory;
        none if that is not to be had. `lend`: they may lend the values after it."""
        connection, pushes = self._connection, self._pushes
        if gradients.__class__ is not Whole and not all(is_whole(peer.layout, gradients) for peer in self._peers):
            return {}
        if connection.agreed.mode.checks_finite:
            pushes.loader.check(gradients)
        asked: dict[int, Sent] = {}
        for peer in self._peers:
            run = pushes.loader.run(peer, gradients)
            if run.memory is None:
                return {}
            ps = peer.ps
            number = self._caller.take_number()
            asked[number] = peer, (
                number, connection.membership.epoch, pushes.numbers[ps] + 1, connection.steps.local_step,
                pushes.pulled[ps], peer.layout.gradient_nbytes, 0, lend, min(peer.lane.reading, default=number),
                *run.memory.name,
            ), run  # fmt: skip
        return asked

    def _post(self, asked: dict[int, Sent]) -> None:
        """Send each ps its part of a push."""
        times = self._pushes.times
        tells_times = times.at >= times.due_at
        for peer, request, _ in asked.values():
            if tells_times:  # to the step ps
                message = changed(PushMessage.expanded(*request[1:]), times=self._pushes.take_times())
                self._caller.post(peer.ref, message, request[0])
                tells_times = False
            else:
                self._caller.post_plain(peer.ref, PUSH, request)

    def pull_ahead(self) -> PostedPull | None:
        """A pull of all values that is on its way; None if nothing was sent. Does not block."""
        asked = self._post_pull()
        return PostedPull(self._connection, self._pulls, self._assembly, asked) if asked else None

    def finish(self, posted: PostedPull) -> Any:
        """The nested arrays of a pull that was sent ahead, the caller's own; None if they have to be pulled. Blocks for
        a moment."""
        try:
            if posted.is_over or not self._open():
                return None
            if posted.asked:
                self._caller.hear_all(posted.asked, posted.heard, self._runtime.tuning.client.step_patience_s)
            if posted.values is None or posted.is_over:
                return None
            self._connection.steps.saw(posted.step)
            self.note(posted.lent)
            return posted.values
        finally:
            posted.drop()

    def _post_pull(self) -> dict[int, PsPeer]:
        """Ask each ps for its values; the ps by request number, none if the request has to be an ordinary one."""
        asked: dict[int, PsPeer] = {}
        epoch, caller = self._connection.membership.epoch, self._caller
        for peer in self._open():
            number = caller.take_number()
            request = number, epoch, 0, 0, 0, -1, 0, min(peer.lane.reading, default=number), 0
            caller.post_plain(peer.ref, PULL, request)
            asked[number] = peer
        return asked

    def _hold(self, asked: Mapping[int, PsPeer], heard: Heard) -> Holds:
        """Hold the values that all ps have lent; none if one has not."""
        step, holds = -1, self._holds
        for number, peer in asked.items():
            answer = heard.get(number)
            told: Sequence[Any] = answer if answer.__class__ is tuple else _values(answer)
            lent = LentVersion(peer, number)
            holds.append(lent)
            if not told or not lent.hold(told[2], told[4:]):
                self._release()
                return []
            if step < 0:
                step = told[3]  # as the step ps says, the first
        self._connection.steps.saw(step)
        self.note(holds)
        return holds


def _values(answer: Answer | None) -> list[Any]:
    """As `integers_of_applied`, for the message of values."""
    if not isinstance(answer, SharedValues):
        return []
    return [0, answer.epoch, answer.counter, answer.step, *answer.memories]


def copied(
    holds: Holds, prepared: tuple[PullMemory, Any], assembly: Assembly, runtime: Runtime
) -> Any:  # fmt: skip
    """The nested arrays of a copy of these versions. `prepared`: as of `Pulls.prepared`."""
    memory, tree = prepared
    for hold in holds:
        for target, values in zip(memory.arenas(hold.peer.ps), hold.memories, strict=True):
            copy_steadily(runtime, target, values)
    return memory.tree(assembly) if tree is None else tree


class PostedPull:
    """A pull of all values that was posted, as one message to each ps, by requests that are not kept.

    Whoever receives the last answer has the values copied, so that nothing that a ps lends is kept until they are asked
    for."""

    values: Any = None
    """The nested arrays, once all ps have lent their values."""
    step = -1
    asked: dict[int, PsPeer] = {}  # noqa: RUF012

    def __init__(
        self, connection: Connection, pulls: Pulls, assembly: Assembly, asked: dict[int, PsPeer]
    ) -> None:  # fmt: skip
        """`asked`: the ps by request number. Nothing was sent since."""
        self._connection, self._pulls, self._assembly, self.asked = connection, pulls, assembly, asked
        self._peers = connection.peers
        self.lent: Holds = []
        """The versions of the values, which are released."""
        self.heard: Heard = {}
        """The answers, as of `Caller.listen`."""
        for number, peer in asked.items():
            peer.lane.reading.add(number)
        connection.caller.listen(asked, VALUES, self.heard, self._take_in)

    @property
    def is_over(self) -> bool:
        """Whether the session has joined again since."""
        return self._connection.peers is not self._peers

    def _take_in(self) -> None:
        """An answer has come. Once all have, copy what the ps lend, and release it."""
        if len(self.heard) < len(self.asked):
            return
        self.lent = [LentVersion(peer, number) for number, peer in self.asked.items()]
        try:
            if all(map(self._hold, self.lent)):
                prepared = self._pulls.prepared(self._assembly)
                self.values = copied(self.lent, prepared, self._assembly, self._connection.home.runtime)
        finally:
            for version in self.lent:
                version.release()
            self._connection.caller.ignore(self.asked)
            self.asked = {}

    def _hold(self, version: LentVersion) -> bool:
        """Hold what a ps has lent; False if it has lent nothing."""
        answer = self.heard[version.request]
        told: Sequence[Any] = answer if answer.__class__ is tuple else _values(answer)
        if not told or not version.hold(told[2], told[4:]):
            return False
        if self.step < 0:
            self.step = told[3]  # as the step ps says, the first
        return True

    def drop(self) -> None:
        """Forget it; values that a late answer lends are released."""
        if self.asked:
            self._connection.caller.ignore(self.asked)
            for number, peer in self.asked.items():
                with suppress(Unavailable):  # the session is closed, which ends all its holds
                    peer.lane.release(number, peer.layout.nbytes if number in peer.lane.reading else 0)
            self.asked = {}

    def __del__(self) -> None:
        try:
            self._end_reading()
        except BaseException:  # Ctrl-C: a number that stays would keep versions of the ps for ever
            self._end_reading()
            raise

    def _end_reading(self) -> None:
        """After Ctrl-C, before anybody had it, or amid `drop`: no message is sent."""
        for number, peer in self.asked.items():
            peer.lane.reading.discard(number)
