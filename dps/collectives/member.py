"""A worker in a group: an actor that carries out operations, one at a time, and continues when others are lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dps.actors.actor import Actor
from dps.actors.authorization import Unproven, digest
from dps.actors.node import Node, NodeTimer
from dps.actors.ref import Ref, Sender
from dps.cluster.address import at_port, split
from dps.collectives.flow import Flow
from dps.collectives.memory import GIVEN, RESULT, Board, BoardSlot, Memories, PeerMemory, Region
from dps.collectives.messages import (
    GROUPS,
    LEFT,
    MEMBER,
    SUMS,
    Formed,
    GroupIs,
    Helper,
    JoinGroup,
    LeaveGroup,
    Other,
    Phase,
    Piece,
    Who,
)
from dps.errors import ConfigError, DeadlineExceeded, NotAuthenticated, TaskLost, Unavailable
from dps.process.record import replace
from dps.process.telemetry import log
from dps.transport.message import Message
from dps.transport.sockets.addresses import Binding
from dps.transport.wire import Array

FIRST_S, LAST_S = 0.2, 5.0
"""After this time without progress in an operation, at first and at last, a member asks for what may have been lost."""
ASK_AGAIN_S = 0.5
"""How often the chief is asked meanwhile."""
FORMING_S = 0.02, 0.4
"""How often the chief is asked while a generation is formed: at first and at last."""
ASK_S = 2.0
EARLY, NEWER = 4096, 64
"""The most pieces that are kept of an operation that this member has not begun, or of a generation that it does not
know yet."""


class PendingOperation:
    """An operation in progress, and the place of its data."""

    def __init__(self, flow: Flow, given: Region, result: Region) -> None:
        self.flow, self.regions = flow, {GIVEN: given, RESULT: result}


class GroupMember(Actor):
    """The member. All of it runs on the thread that runs its node.

    More than 12 attributes: one state, of the group as it is known here and of the operation under way."""

    def __init__(self, who: Who, chief: str, ends: bool) -> None:
        """`ends`: whether operations fail once a member is gone."""
        self.who, self._chief, self._ends = who, Ref(chief, GROUPS), ends
        self.formed: Formed | None = None
        self.completed, self._frozen = 0, 0
        self.works: dict[int, PendingOperation] = {}
        """The operation in progress, and the last complete one."""
        self.error: Exception | None = None
        """The error that has ended the group."""
        self.late = ""
        """For whom the group waits, as the chief says."""
        self.readers: frozenset[int] = frozenset()
        """The ranks that can read this member's shared memory."""
        self.gone: list[list[str]] = []
        self._early: list[Piece] = []
        self._newer: list[tuple[Piece, Sender]] = []
        self._timer: NodeTimer | None = None
        self._seen: Any = None
        self._ask_after_s = self._quiet_since = 0.0
        self._asked, self._forming_s = False, FORMING_S[0]

    def started(self) -> None:
        runtime = self.node.runtime
        self.memories, self._peers = Memories(runtime), PeerMemory(runtime)
        self._board = Board(runtime)
        self._boards: dict[int, list[BoardSlot]] = {}
        self._check_progress()

    # -- the chief ----------------------------------------------------------------------------------------------

    @property
    def _doing(self) -> str:
        work = self.works.get(self.completed + 1)
        return "" if work is None else f"{work.flow.what} (number {work.flow.number})"

    @property
    def awaits(self) -> str:
        """For whom this member waits, as far as it knows."""
        work = self.works.get(self.completed + 1)
        if work is not None and work.flow.is_through_ps and not self.late and self.formed and self.formed.ps:
            return f"waits for the sum of {self.formed.ps.name}"
        return self.late or "waits for the other workers"

    def _ask_chief(self) -> None:
        """Tell the chief the last complete operation of this member, and ask for the group's newest generation."""
        if self._asked:
            return
        who, formed, doing = self.who, self.formed, self._doing
        known = [] if formed is None else [list(other) for other in formed.members]
        place = who.group, who.task, who.member, self.node.address, digest(self.node.ticket), who.replicas
        state = 0 if formed is None else formed.generation, self._frozen, self.completed, doing, who.through, known
        self._asked = True
        self.node.ask(self._chief, JoinGroup(*place, self._board.name, *state), ASK_S, self._take_answer)

    def _take_answer(self, answer: Message | Exception) -> None:
        self._asked = False
        if isinstance(answer, GroupIs):
            self._take_group(answer)
        elif isinstance(answer, DeadlineExceeded):
            self.late = f"the chief at {self._chief.address} does not answer"
        elif isinstance(answer, Unavailable):  # it does not serve yet, or the run ends
            self.late = str(answer)
        elif isinstance(answer, Exception):
            self.fail(answer)

    def _take_group(self, group: GroupIs) -> None:
        self.late = group.text
        now = 0 if self.formed is None else self.formed.generation
        if group.forming and group.forming > now and self._frozen != group.forming:
            self._frozen = group.forming
            self._ask_chief()
        elif group.generation > now and group.generation == self._frozen and not group.forming:
            self._begin_generation(group)

    def _begin_generation(self, group: GroupIs) -> None:
        """A generation has begun."""
        members = tuple(Other(*member) for member in group.members)
        tasks = [other.task for other in members]
        known = [[name, why] for name, why in group.gone if [name, why] not in self.gone]
        ps = Helper(*group.ps) if group.ps else None
        self.formed = Formed(group.generation, members, tasks.index(self.who.task), ps)
        self._frozen, self.gone, self._early, self.readers = 0, group.gone, [], frozenset()
        self._forming_s = FORMING_S[0]
        self.memories.clear()
        places = [(other.address, other.key) for other in members] + ([(ps.address, ps.key)] if ps else [])
        for address, key in places:
            if address != self.node.address:
                self.node.expect(address, key)
                self.node.present(address)
        self.node.tickets.admit("group", [[other.ticket, other.name, "worker", ()] for other in members])
        self.node.tickets.admit("sums", [[ps.ticket, ps.name, "ps", ()]] if ps else [])
        for name, why in known:
            rest = ", ".join(other.name for other in members)
            tell = log.info if why.startswith(LEFT) else log.warning
            tell("%s: %s %s; group %r goes on with %s", self.node.name, name, why, self.who.group, rest)
        if known and self._ends:
            text = "; ".join(f"{name} {why}" for name, why in known)
            self.fail(TaskLost(f"{text}: group {self.who.group!r} ends, as on_loss='end' says"))
            return
        work = self.works.get(self.completed + 1)
        if work is not None and group.base > self.completed:
            work.flow.ask_source(tasks.index(group.source))
            self._send_pieces(work)
        elif work is not None:  # it is done again, among those that are left
            del self.works[self.completed + 1]
        newer, self._newer = self._newer, []
        for message, sender in newer:
            self.node.handle(self.name, message, sender)

    # -- operations ---------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether the operation that was begun is over: complete, to be repeated, or failed."""
        return self.error is not None or self.completed + 1 not in self.works

    def begin_operation(self, flow: Flow, given: Region, result: Region) -> None:
        """Begin an operation, the next one."""
        flow.number = self.completed + 1
        work = self.works[flow.number] = PendingOperation(flow, given, result)
        self._ask_after_s, self._quiet_since = FIRST_S, self.node.now()
        self._start_timer(FIRST_S)
        flow.send_first_pieces()
        if flow.shown:
            self._board.places[flow.number % 2].publish_part(self._stamp(flow), flow.what)
        self._send_pieces(work)
        self._seen = flow.progress
        early, self._early = self._early, []
        for message in early:
            if self.formed is not None and message.generation == self.formed.generation:
                self._take_piece(message)

    def fail(self, error: Exception) -> None:
        """End this member's part in the group by an error."""
        self.error = self.error or error

    def _start_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.node.after(seconds, self._check_progress)

    def _check_progress(self) -> None:
        """Ask for pieces that may have been lost."""
        work = self.works.get(self.completed + 1)
        if self.error is not None or (work is None and self.formed is not None and not self._frozen):
            return
        forming = self.formed is None or self._frozen > 0
        if work is not None and not forming:
            self._ask_if_quiet(work)
        self._ask_chief()
        self._forming_s = min(2 * self._forming_s, FORMING_S[1]) if forming else FORMING_S[0]
        self._start_timer(self._forming_s if forming else min(self._ask_after_s, ASK_AGAIN_S))

    def _ask_if_quiet(self, work: PendingOperation) -> None:
        seen, now = work.flow.progress, self.node.now()
        if seen != self._seen:
            self._seen, self._ask_after_s, self._quiet_since = seen, FIRST_S, now
        elif now - self._quiet_since >= self._ask_after_s:
            self._ask_after_s, self._quiet_since = min(2 * self._ask_after_s, LAST_S), now
            work.flow.ask_missing_pieces()
            self._send_pieces(work)

    def on_Piece(self, message: Piece, sender: Sender) -> None:
        formed = self.formed
        if formed is None or message.generation > formed.generation:
            if len(self._newer) < NEWER:  # the chief has told the others first
                self._newer.append((message, sender))
            self._ask_chief()
            return
        if message.generation < formed.generation or self._frozen:
            return
        peer, by_ps = sender.peer, formed.ps is not None and sender.peer.ticket == formed.ps.ticket
        if not (by_ps or (0 <= message.rank < len(formed.members) and peer.name == formed.members[message.rank].name)):
            who, error = peer.name or "a stranger", NotAuthenticated if peer.name else Unproven
            raise error(f"got a piece of rank {message.rank} from {who}, wanted it with its ticket")
        self._take_piece(message)

    def _take_piece(self, message: Piece) -> None:
        work = self.works.get(message.op)
        if work is None:
            if message.op > self.completed and len(self._early) < EARLY:
                self._early.append(message)
            return
        flow, phase = work.flow, Phase(message.phase)
        if message.what != flow.what:
            if flow.number > self.completed:
                assert self.formed is not None
                self._fail_mismatch(flow, self.formed.members[message.rank].name, message.what)
            return
        if phase is Phase.PLAIN:
            self.readers -= {message.rank}
            return
        data: Array | None = message.arrays[0] if message.arrays else None
        if message.memory:
            data = self._read_piece(flow, message)
            if data is None:
                return
        flow.take_piece(message.rank, message.index, phase, data, bool(message.memory))
        self._send_pieces(work)

    def _fail_mismatch(self, flow: Flow, other: str, what: str) -> None:
        """Another member is in another operation. Tell the others, too."""
        self.fail(
            ConfigError(
                f"{other} is in {what}, {self.node.name} in {flow.what}: all workers must make the same calls in the "
                "same order, with arrays of the same shapes and dtypes"
            )
        )
        assert self.formed is not None
        for rank in range(len(self.formed.members)):
            if rank != self.formed.rank:
                self._send_piece(flow, rank, 0, Phase.ASK, [], ())

    # -- boards -------------------------------------------------------------------------------------------------

    def _stamp(self, flow: Flow) -> int:
        assert self.formed is not None
        return self.formed.generation << 32 | flow.number

    def board_memory(self, number: int, nbytes: int) -> Array:
        """The place on the board for this member's part of an operation."""
        return self._board.places[number % 2].part_memory(nbytes)

    def read_boards(self) -> bool:
        """Look at the boards of the others, if their parts come that way; returns whether the operation is over."""
        work = self.works.get(self.completed + 1)
        if work is None or not work.flow.shown or self._frozen or self.error is not None:
            return self.is_idle
        flow, formed = work.flow, self.formed
        assert formed is not None
        stamp = self._stamp(flow)
        for rank in flow.missing_members():
            found = self._boards[rank][flow.number % 2].read_part(stamp, flow.result.nbytes)
            if found is None:
                return False
            if found[0] != flow.what:
                self._fail_mismatch(flow, formed.members[rank].name, found[0])
                return True
            flow.take_piece(rank, 0, Phase.UP, found[1].view(flow.result.dtype))
        self._send_pieces(work)
        return self.is_idle

    def _read_piece(self, flow: Flow, message: Piece) -> Array | None:
        """The data of a piece in its sender's memory. If it cannot be read, returns None and tells the sender."""
        span, item = flow.span(message.index), flow.result.dtype.itemsize
        whole: Array
        try:
            *name, first = message.memory
            whole = self._peers.attach_memory(name).view(flow.result.dtype)
            if first != span.start * item or span.stop > whole.size:
                raise Unavailable(f"memory of {whole.nbytes} bytes has no {span} at {first}")
        except Unavailable as error:
            log.warning("%s: %s; pieces travel over sockets", self.node.name, error)
            self._send_piece(flow, message.rank, message.index, Phase.PLAIN, [], ())
            return None
        if message.phase == Phase.DOWN:
            flow.wholes[message.rank] = whole
        return whole[span]

    def _send_pieces(self, work: PendingOperation) -> None:
        """Send the messages of the operation, and note whether it is complete."""
        flow = work.flow
        while flow.out:
            sends, flow.out = flow.out, []
            for to, index, phase, own in sends:
                if phase is Phase.ASK:
                    self._send_piece(flow, to, index, phase, [], ())
                if phase is Phase.ASK or (flow.shown and phase is Phase.UP):
                    continue
                region = work.regions[GIVEN if own else RESULT]
                span = flow.span(index)
                if to in self.readers and region.name:
                    first = span.start * flow.result.dtype.itemsize
                    self._send_piece(flow, to, index, phase, [*region.name, first], ())
                else:
                    self._send_piece(flow, to, index, phase, [], ((flow.given if own else flow.result)[span],))
        if flow.is_done and flow.number == self.completed + 1:
            self.completed += 1
            self.works.pop(self.completed - 1, None)

    def _send_piece(
        self, flow: Flow, to: int, index: int, phase: Phase, memory: list[Any], arrays: tuple[Array, ...]
    ) -> None:  # fmt: skip
        formed = self.formed
        assert formed is not None
        about = formed.generation, flow.number, index, formed.rank, int(phase), flow.what
        if formed.ps is not None and to == len(formed.members):
            ref = Ref(formed.ps.address, SUMS)
        else:
            ref = Ref(formed.members[to].address, MEMBER)
        self.node.tell(ref, Piece(*about, memory, arrays))

    # -- the others' memory, and leaving --------------------------------------------------------------------------

    def find_readable(self) -> Array:
        """For each member, whether this one can read its shared memory."""
        formed = self.formed
        assert formed is not None
        found = np.zeros(len(formed.members), np.uint8)
        for rank, other in enumerate(formed.members):
            if rank != formed.rank and other.memory:
                try:
                    board = self._peers.attach_memory(other.memory)
                except Unavailable:
                    continue
                found[rank], self._boards[rank] = 1, [BoardSlot(board, which) for which in (0, 1)]
        return found

    def leave_group(self, final: bool, then: Callable[[Exception | None], None]) -> None:
        """Tell the chief that this member leaves. `then` is called when it may, or with the chief's answer."""

        def answered(answer: Message | Exception) -> None:
            if isinstance(answer, GroupIs):
                self._take_group(answer)
            elif not isinstance(answer, DeadlineExceeded):
                then(answer if isinstance(answer, Exception) else None)

        message = LeaveGroup(self.who.group, self.who.task, self.who.member, self.completed, final)
        self.node.ask(self._chief, message, ASK_S, answered)


class CallersNode(Node):
    """A `Node` that is not started: one thread at a time runs it by `run_until`. Between two calls libzmq's threads
    receive."""

    def start_actors(self) -> None:
        """Start the actors."""
        self._turned_at = self._time.now()
        for actor in list(self.actors.values()):
            actor.started()

    def run_until(self, until: Callable[[], bool], timeout_s: float) -> bool:
        """Handle messages and timers until `until()` is true (True) or the time is over. Blocks."""
        self._outbox.flush()
        deadline = self._time.now() + timeout_s
        while not until():
            left_s = deadline - self._time.now()
            if left_s <= 0:
                return until()
            self._run_turn(left_s)
        self._outbox.flush()
        return True

    def close(self) -> None:
        """Close its sockets. A second call does nothing."""
        self._endpoint.close()


def second_binding(binding: Binding) -> Binding:
    """The binding of a second node of a task: as the first one, at another port."""
    if "://" in binding.address:
        return replace(binding, address="", advertise="")
    address, advertise = binding.address, split(binding.advertise)[0]
    return replace(binding, address=at_port(address, 0) if split(address)[1] else address, advertise=advertise)
