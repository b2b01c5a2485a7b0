"""Small pulls, pushes and steps in one round trip: one message to each ps, one answer of each, and no request that is
kept.

This is for the usual case: all ps are on this machine, they answer soon, and a push has all gradients. After another
answer, or none in time, the push goes on as an ordinary request: nothing is sent again, and late answers count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dps.actors.caller import Heard
from dps.client.ahead import PULL, VALUES, Ahead, PostedValues, Versions, lent_with, release
from dps.client.assembly import Whole, is_whole
from dps.client.connection import Connection
from dps.client.lanes import LentVersion, PsPeer
from dps.client.pulling import Pulls
from dps.client.push_operations import SETTLES, PostedPush, PushOp, Sent, integers_of_applied
from dps.client.pushing import Pushes
from dps.messages.replies import Push
from dps.messages.sessions import Push as PushMessage
from dps.messages.sessions import Pushed
from dps.transport.message import changed
from dps.transport.wire import Array
from dps.variables.layout import Gradient

Made = tuple[Push, Any, Versions]
"""The result of a push that was made in one round trip, the values after it, and their versions, which are released
where the values are a copy. No versions: the values have to be pulled."""
PUSH, PUSHED = PushMessage.form_of, Pushed.form_of
Keep = Callable[[Sequence[LentVersion], bool], None]
"""As `dps.client.training.Held.keep`."""


class AtOnce:
    """The small pulls, pushes and steps of one session. `ahead`: what loops read ahead."""

    def __init__(self, connection: Connection, pushes: Pushes, pulls: Pulls) -> None:
        self._connection, self._pushes, self._pulls = connection, pushes, pulls
        self._caller, self._runtime = connection.caller, connection.home.runtime
        self.ahead = Ahead(pushes)
        self._seen: dict[int, PsPeer] = {}
        """The peers from which `_peers` was chosen."""
        self._peers: list[PsPeer] = []
        """All ps, if this run can be served here; else none."""
        self._assembly = pushes.assembly
        self._holds: Versions = []
        """What the last answers lent and is read longer than a call; of all shards, or none. The next call releases it,
        unless `hand_over` was called."""
        self._heard: Heard = {}
        """The answers to the last push that got another one than the usual, or none in time."""
        self._fresh = 0, 0.0
        """In sync: the number of the push that brought `_holds`, and until when its values serve a pull."""

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
        """A push that is on its way; None if nothing was sent. Does not block. Raises as `push`. For a loop that reads
        ahead, the values after it are on their way, too."""
        connection, pushes, ahead = self._connection, self._pushes, self.ahead
        if connection.agreed.mode.is_atomic:
            return None
        pushes.account_for_arrived()  # first, for hooks may push, and roll back
        if not self._open() or connection.membership.settles or (pushes.under_way and pushes.is_full):
            return None
        loops = [*ahead.loops.values()]  # another thread may end them
        asked = self._requests(gradients, len(loops) > 0)
        if not asked:
            return None
        operation, came = PostedPush(connection, asked, loss), None
        pushes.begin_posted(operation)
        if loops:
            peers = {number: peer for number, (peer, _, _) in asked.items()}
            coming = PostedValues(connection, self._pulls, self._assembly, peers, loops[-1], operation)
            ahead.expect(coming)
            came = coming.take_in
        self._caller.listen(asked, PUSHED, operation.heard, came)
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
        if self._connection.agreed.mode.has_stable_values:
            lent = self._newest()
            try:
                return self._pulls.copied(lent, *self._pulls.prepared(self._assembly)) if lent else None
            finally:
                self._release()
        asked = self._post_pull()
        if not asked:
            return None
        memory, tree = self._pulls.prepared(self._assembly)
        lent = self._take_lent(asked)
        return self._pulls.copied(lent, memory, tree) if lent else None

    def held(self) -> Versions:
        """The current values: those that came with the last push or, if others may have pushed since, those that the ps
        have. Empty if they have to be pulled. Blocks for a moment. The caller calls `hand_over`."""
        if self._connection.agreed.mode.has_stable_values:
            return self._newest()
        asked = self._post_pull()
        return self._take_lent(asked) if asked else []

    def _newest(self) -> Versions:
        """In sync: the values that came with the last push, if they are still those of the newest version."""
        if self._holds:
            if self._is_fresh(self._holds):
                self.note(self._holds)
            else:
                self._release()
        return self._holds

    def hand_over(self, lent: Versions, keep: Keep) -> Any:
        """Have these versions stay as they are until those release them whom `keep` tells. Returns their values, in the
        nesting of params."""
        keep(list(map(LentVersion, lent)), not self._peers[0].lane.tells_at_once)
        self._holds = []
        found: list[Array] = []
        for peer, request, _, _, (_, parts) in lent:
            peer.lane.reading.add(request)
            found += parts
        return self._assembly.views(found)

    def note(self, lent: Versions) -> None:
        """Record that these values were pulled."""
        counters = self._pushes.pulled
        self._pulls.read = self._connection.membership.epoch, counters
        for peer, _, counter, _, _ in lent:
            counters[peer.ps] = counter

    def _is_fresh(self, lent: Versions) -> bool:
        """In sync: whether the values that came with the last push are still the newest version."""
        connection, (push, until) = self._connection, self._fresh
        for peer, *_ in lent:
            if connection.peers.get(peer.ps) is not peer or self._pushes.numbers[peer.ps] != push:
                return False
        return connection.membership.runs and self._runtime.now() <= until

    def _hold(self, lent: Versions) -> None:
        """Have these versions stay as they are until `_release` or `hand_over`."""
        self._holds = lent
        for peer, request, *_ in lent:
            peer.lane.reading.add(request)

    def _release(self) -> None:
        release(self._holds)
        self._holds = []  # only now: after Ctrl-C the next call releases the others

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
            lane = peer.lane
            if not lane.on:
                return []
            if lane.untold:
                lane.tell_untold()
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
        connection, pushes = self._connection, self._pushes
        if len(asked) > 1:
            pushes.announce()
        self._post(asked)
        memory, tree = self._pulls.prepared(self._assembly) if reads and keep is None else (None, None)
        heard = self._caller.hear(asked, PUSHED, self._runtime.tuning.client.step_patience_s)
        lent: Versions = []
        step = -1
        for request, (peer, _, _) in asked.items():
            told: Any = heard.get(request)
            if told.__class__ is not tuple:
                told = integers_of_applied(told)
                if not told:
                    self._heard = heard
                    return None
            if step < 0:
                number, step, staleness = told[1:4]  # as the step ps says, the first
            elif told[3] > staleness:
                staleness = told[3]
            if told[5] & SETTLES:
                connection.membership.settles = True
            if not told[-1]:
                lends = False
                continue
            arrays = peer.lane.find(peer.layout, told[8:])
            if arrays is None:
                lends = False
                continue
            lent.append((peer, request, told[6], told[7], arrays))
            if told[7] != step and connection.agreed.mode.is_atomic:
                lends = False  # values of several steps might be read together
        if pushes.counted_apart:
            step = pushes.step_apart(step)
        connection.steps.pushed(number, step)
        result = Push(step, True, staleness)
        if len(asked) == 1:
            pushes.numbers[peer.ps] = number
        pushes.acknowledged += 1
        if not lends:
            if lent:
                release(lent)
            return result, None, []
        if memory is not None:
            return result, self._pulls.copied(lent, memory, tree), lent
        if keep is not None:
            return result, self.hand_over(lent, keep), lent
        self._hold(lent)
        self._fresh = number, self._runtime.now() + self._runtime.tuning.client.step_values_s
        return result, None, []

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

    def post_ahead(self, in_place: bool) -> PostedValues | None:
        """All values, on their way with the last push or with a pull; None if they are not. Does not block."""
        posted = self.ahead.take(in_place)
        if posted is None and (asked := self._post_pull()):
            posted = PostedValues(self._connection, self._pulls, self._assembly, asked, in_place)
        return posted

    def finish(self, posted: PostedValues, keep: Keep | None) -> Any:
        """The nested arrays of values that are on their way: the caller's own or, if there is a `keep`, the values in
        place, and it is called with their versions. None if they have to be pulled. Blocks for a moment."""
        try:
            if posted.is_over or not self._open():
                return None
            if posted.asked:
                self._caller.hear_all(posted.asked, posted.heard, self._runtime.tuning.client.step_patience_s)
            if not posted.lent or posted.is_over:
                return None
            self._connection.steps.saw(posted.lent[0][3])  # as the step ps says, the first
            self.note(posted.lent)
            return posted.values if keep is None else posted.hand_over(keep)
        finally:
            posted.release()

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

    def _take_lent(self, asked: Mapping[int, PsPeer]) -> Versions:
        """The values that all ps lend with their answers, which are awaited; none if one does not."""
        lent = lent_with(asked, self._caller.hear(asked, VALUES, self._runtime.tuning.client.step_patience_s))
        if lent:
            self._connection.steps.saw(lent[0][3])  # as the step ps says, the first
            self.note(lent)
        return lent
