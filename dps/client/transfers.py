"""Requests of a pull or a push: one for each ps."""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from dps.actors.answers import Done, Failed, Waiting
from dps.actors.caller import Posted
from dps.actors.requests import Request
from dps.client.cargo import Cargo
from dps.client.lanes import LentVersion, PsPeer
from dps.errors import Aborted, ProtocolError, Unavailable
from dps.messages.sessions import (
    APPLIED,
    REFUSED,
    Credit,
    NotNewer,
    Pull,
    Pushed,
    PushHeld,
    PushMissing,
    PushStatus,
    SharedValues,
    Values,
)
from dps.transport.endpoint import Runtime
from dps.transport.message import Message, changed
from dps.transport.wire import Array
from dps.variables.plan import ShardLayout


class Transfer(Request):
    """A request to one ps."""

    def __init__(self, peer: PsPeer) -> None:
        self.ps, self.peer, self._caller = peer.ps, peer, peer.caller
        self.error: Exception | None = None
        self.waits_for = ""

    def _common(self, message: Message) -> bool | None:
        """Handle the answers that all transfers have in common: True if the request is complete, False if it goes on,
        None if the answer is of another kind."""
        if isinstance(message, Waiting):
            self.waits_for = message.reason
            return False
        if isinstance(message, Failed):
            error = message.exception()
            if isinstance(error, Aborted):
                if self.incarnation != self._caller.incarnation:
                    return True  # the session has joined again since, and asks anew
                self.peer.abort()
                return False
            self.error = error
            return True
        return None


def copy_steadily(runtime: Runtime, target: Array, source: Array) -> None:
    """Copy memory that another process may write to. The simulator copies block by block, so that it finds a writer
    that does not wait for readers."""
    block = runtime.tuning.block_nbytes
    if not block:
        target[:] = source
        return
    for at in range(0, len(source), block):
        target[at : at + block] = source[at : at + block]
        runtime.charge_pass("copy", min(block, len(source) - at))
        runtime.preempt()


def answer_of(piece: Values) -> tuple[int, int, int]:
    """What all pieces of one answer have in common: its number, its version, and what it is based on."""
    return piece.answer, piece.counter, piece.base


class AnswerPieces:
    """The pieces of one answer, copied into a run. Or, with the layout of the run, kept as received while all of them
    end where parts do."""

    def __init__(
        self, first: Values, take: Callable[[], Array], check: Callable[[int, int], object],
        layout: ShardLayout | None = None,
    ) -> None:  # fmt: skip
        """`first`: the first of them. `take` returns a run. `check` raises ProtocolError for an offset and a number of
        bytes that are outside of the run."""
        self.answer, self.wanted = answer_of(first), first.nbytes
        self._take, self._check, self._layout = take, check, layout
        self._run = take() if layout is None else None
        self._kept: dict[int, Array] = {}
        self._got: dict[int, int] = {}
        self.nbytes, self.began = 0, 0.0
        """Bytes received, and when the first came."""

    def put(self, offset: int, data: Array) -> None:
        """Add bytes. Raises ProtocolError if they are outside of the run."""
        self._check(offset, len(data))
        self.nbytes += len(data) - self._got.get(offset, 0)
        self._got[offset] = len(data)
        if self._run is None and self._layout is not None and self._layout.is_whole(offset, len(data)):
            self._kept[offset] = data
            return
        if self._run is None:
            self._run = self._take()
        for at, piece in {**self._kept, offset: data}.items():
            self._run[at : at + len(piece)] = piece
        self._kept.clear()

    def values(self) -> Array | list[Array]:
        """The run, or the parts where they were received, once all pieces are here. They are the caller's."""
        (run, kept), self._run, self._kept = (self._run, self._kept), None, {}
        if run is not None:
            return run

        assert self._layout is not None, "what is kept as received is a run"
        return arrived(self._layout, kept)


class PullTransfer(Transfer):
    """A pull of one shard.

    `values` is a run of bytes, or a list of the parts where they were received. Values in the ps's memory are copied
    into a run. If the transfer `holds`, they are not copied: `hold` has them until `release`.
    """

    def __init__(
        self, peer: PsPeer, message: Pull, take: Callable[[int], Array], holds: bool = False,
        behind: PushTransfer | None = None,
    ) -> None:  # fmt: skip
        """`take(ps)` returns memory for the run. `behind`: a push whose result may bring the values."""
        super().__init__(peer)
        self.values: Array | list[Array] | None = None
        self.hold: LentVersion | None = None
        self.counter, self.step, self.newer = -1, 0, True
        self._pieces: AnswerPieces | None = None
        self._message, self._take_run, self._holds, self._behind = message, partial(take, peer.ps), holds, behind

    def begin(self) -> None:
        """Ask for the values: the message leaves at the next flush. If a push may bring them, it is sent only once that
        push has not. After Ctrl-C in here `drop` ends what has begun."""
        if self._behind is None:
            self._ask()
        else:
            self._behind.then, self.number = self, self._behind.number
            self.peer.lane.reading.add(self.number)

    def _ask(self) -> None:
        self._caller.open(self.peer.ref, self._message, self, 0.25 + self.peer.layout.nbytes / 100e6)
        if self._message.shared:
            self.peer.lane.reading.add(self.number)

    def go_on(self, lent: list[Any]) -> None:
        """The push has its result; `lent`: counter, step and places of the values that came with it, or nothing."""
        if lent:
            self.complete = self._read(*lent)
        if not self.complete:
            self.peer.lane.reading.discard(self.number)
            self._ask()
            self._behind = None  # only now: until here the number was that of the push, which `drop` must not close

    def resend_message(self) -> Message:
        """Ask for short pieces: libzmq closes a connection on which one message takes too long, and a long piece may be
        why no answer came."""
        return changed(self._message, keeps_memory=False) if self._message.keeps_memory else self._message

    def feed(self, message: Message) -> bool:
        if isinstance(message, SharedValues):
            if not self._read(message.counter, message.step, message.memories):
                self._caller.send(self, self._message)
                return False
            return True
        if isinstance(message, Values):
            complete = self._take(message)
        elif isinstance(message, NotNewer):
            self.counter, self.step, self.newer = message.counter, message.step, False
            complete = True
        else:
            complete = bool(self._common(message))
        if complete:
            self.peer.lane.reading.discard(self.number)
        return complete

    def _read(self, counter: int, step: int, memories: list[Any]) -> bool:
        """Read the values in the ps's memory. False if that fails: then they have to be asked for over the socket."""
        peer, number = self.peer, self.number
        arrays = peer.lane.find(peer.layout, memories)
        if arrays is None:
            self._message = changed(self._message, shared=False)
            return False
        self.counter, self.step = counter, step
        if self._holds:
            peer.lane.reading.add(number)  # once more: Ctrl-C may have come when it was asked
            self.hold = LentVersion((peer, number, counter, step, arrays))
            self.values = None  # also not pieces of an earlier answer
            return True
        self.values = run = self._take_run()
        for target, memory in zip(peer.layout.memories(run), arrays[0], strict=True):
            copy_steadily(self._caller.runtime, target, memory)
        peer.lane.release(number, peer.layout.nbytes)
        return True

    def release(self) -> None:
        """Release what is held."""
        if self.hold is not None:
            self.hold.release()
            self.hold = None

    def drop(self) -> None:
        """Forget the request; values that a late answer lends are released immediately."""
        self._pieces = None
        if self._behind is None:
            self._caller.drop(self)
        else:
            self._behind.then = None
            self._behind = None
        self.release()
        if self._message.shared and not self.complete and self.number:
            self.peer.lane.release(self.number, self.peer.layout.nbytes)

    def _take(self, piece: Values) -> bool:
        """Add a piece; whether all are here. Pieces of two versions, or of two answers after a resend, are never mixed:
        a higher one starts anew."""
        answer, known, now = answer_of(piece), self._pieces, self._caller.now()
        if (known is not None and answer < known.answer) or len(piece.offsets) != len(piece.arrays):
            return False
        if known is None or answer > known.answer:
            self._pieces = known = self._begin(piece)
            self.counter, self.step, known.began = piece.counter, piece.step, now
        before = known.nbytes
        for offset, data in zip(piece.offsets, piece.arrays, strict=True):
            known.put(offset, data.reshape(-1).view(np.uint8))
        if known.nbytes < known.wanted:
            return False
        if before and not self.parts:
            self.peer.lane.rate = before / max(now - known.began, self._caller.runtime.tuning.serving.shortest_s)
        self._finish(piece, known.values())
        return True

    def _begin(self, piece: Values) -> AnswerPieces:
        """The first piece of an answer has come. Raises ProtocolError if it is not the one that was asked for."""
        layout = self.peer.layout
        if not self.parts and piece.nbytes != layout.data_nbytes:
            raise ProtocolError(f"an answer of {piece.nbytes} bytes; wanted all {layout.data_nbytes} of the shard")
        return AnswerPieces(piece, self._take_run, layout.check_range, layout if self._message.keeps_memory else None)

    def _finish(self, piece: Values, values: Array | list[Array]) -> None:
        """All pieces of an answer are here; this is the last."""
        self.values = values

    @property
    def parts(self) -> list[int]:
        """The indices of the parts that are asked for; empty for all."""
        return self._message.parts

    @property
    def received(self) -> int:
        """Bytes of values received over the socket."""
        return 0 if self._pieces is None else self._pieces.nbytes


class PushTransfer(Transfer):
    """A push of one shard, under one number until it has a result.

    A push of several pieces asks for credit first. A retry sends only a small question; the gradient is sent again when
    the ps says that it does not have it.
    """

    def __init__(
        self, cargo: Cargo, only_held: bool = False, credit: bool = False, posted: Posted | None = None
    ) -> None:  # fmt: skip
        """`only_held`: complete once the ps has all of the push in its own memory (sync, not the step ps). `credit`:
        the ps has granted it already. `posted`: the push was sent by this request, and only its answer is awaited;
        else the messages leave at the next flush."""
        super().__init__(cargo.peer)
        if posted is not None:  # what this request is lent is not released by its own messages
            cargo.about = cargo.about._replace(released=min(cargo.about.released, posted[0]))
        self._cargo, self._pieces, self._only_held = cargo, cargo.messages(), only_held
        self.push, self._epoch = cargo.about.number, cargo.about.epoch
        self.result: Pushed | None = None
        self.accepted: bool | None = None
        self.then: PullTransfer | None = None
        """The pull that waits for the values that come with the result."""
        self.lends = cargo.about.lend
        self._credit, self._posted = len(self._pieces) == 1 or credit or posted is not None, posted
        if cargo.run is not None:
            cargo.run.reader = self

    def begin(self) -> None:
        """Send the push, unless that was done."""
        if self.complete or self._caller.is_open(self):
            return
        if self._posted is not None:
            self._caller.continue_posted(self.peer.ref, self._posted, self)
            return
        first, *others = self._pieces if self._credit else [Credit(self._epoch, self.push)]
        self._caller.open(self.peer.ref, first, self)
        for piece in others:
            self._caller.send(self, piece)

    def resend_message(self) -> Message:
        return PushStatus(self._epoch, self.push) if self._credit else Credit(self._epoch, self.push)

    def feed(self, message: Message) -> bool:
        if isinstance(message, Pushed):
            self.result = message
            self.accepted = message.status == APPLIED
            if self.then is not None and message.status != REFUSED:
                self.then.go_on(message.lent)
            return True
        if isinstance(message, PushHeld):
            self.waits_for = message.reason
            self.accepted = True if message.accepted else self.accepted
            if self._only_held and self.then is not None:
                self.then.go_on([])
            return self._only_held
        error = message.exception() if isinstance(message, Failed) else None
        if isinstance(error, Unavailable):
            if self._cargo.out_of_reach(error):
                self._pieces, self._credit = self._cargo.messages(), False
                self._caller.send(self, self.resend_message())
                return False
            if str(error) == self._cargo.unread:  # said once more, of a message that has arrived twice
                return False
        if isinstance(message, PushMissing) or (isinstance(message, Done) and not self._credit):
            self._send()
            return False
        return bool(self._common(message))

    def _send(self) -> None:
        """Send the gradient: after credit was granted, or again if the ps does not have it."""
        self._credit = not self._credit or len(self._pieces) == 1
        for message in self._pieces if self._credit else [Credit(self._epoch, self.push)]:
            self._caller.send(self, message)


def arrived(layout: ShardLayout, pieces: Mapping[int, Array]) -> list[Array]:
    """The parts, in the order of the run. `pieces`: bytes by their offset in the run; each piece begins and ends where
    parts do.

    Raises ProtocolError unless they cover the run, each byte once."""
    starts = sorted(pieces)
    received = [_own(pieces[start]) for start in starts]
    _check(layout, starts, received)

    def between(start: int, stop: int) -> Array:
        """Bytes of the run in place; a copy if their memory is read-only."""
        if start == stop:
            return np.empty(0, np.uint8)
        number = bisect.bisect_right(starts, start) - 1
        found = received[number][start - starts[number] : stop - starts[number]]
        return found if found.flags.writeable else found.copy()

    return [between(start, stop).view(dtype).reshape(shape) for start, stop, dtype, shape in layout.spans]


def _check(layout: ShardLayout, starts: list[int], pieces: list[Array]) -> None:
    """Raise ProtocolError unless the pieces cover the run, each byte once."""
    ends = {arena.offset: arena.offset + arena.nbytes for arena in layout.arenas if arena.nbytes}
    at = end = -1
    for start, piece in zip(starts, pieces, strict=True):
        if at == end:
            at, end = start, ends.pop(start, -1)
        if start != at or at + len(piece) > end:
            raise ProtocolError(f"bytes {start} to {start + len(piece)} of a shard overlap others or leave a gap")
        at += len(piece)
    if at != end or ends:
        raise ProtocolError(f"some of the {layout.data_nbytes} bytes of a shard's values have not arrived")


def _own(received: Array) -> Array:
    """The bytes of a message, writable if their memory is."""
    with contextlib.suppress(ValueError):
        received.flags.writeable = True
    return received
