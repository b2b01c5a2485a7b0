"""Pulls and pushes of one session on their way: a request per ps, put together into one answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from dps.actors.caller import Caller
from dps.actors.messages import Done, Failed, Waiting
from dps.actors.ref import Ref
from dps.actors.requests import Request
from dps.errors import Aborted, DpsError, Unavailable
from dps.protocol import (
    APPLIED,
    RUN,
    SHARED,
    Credit,
    NotNewer,
    Pull,
    Push,
    Pushed,
    PushHeld,
    PushMissing,
    PushStatus,
    RowsUnknown,
    SharedValues,
    Values,
)
from dps.transport.wire import Array, Message
from dps.variables.plan import ShardLayout

SIMULATED_BLOCK = 64
"""Bytes that are copied in the simulator before other tasks may run."""


class Transfer:
    """A request to one ps. `aborted` is called when the ps says that epoch or incarnation has ended."""

    def __init__(self, ps: int, aborted: Callable[[], None]) -> None:
        self.ps, self._aborted = ps, aborted
        self.request: Request
        self.error: Exception | None = None
        self.waits_for = ""

    @property
    def complete(self) -> bool:
        return self.request.complete

    def _common(self, message: Message) -> bool | None:
        """What all transfers do with an answer: True, False: it ends the request or not; None: it is for others."""
        if isinstance(message, Waiting):
            self.waits_for = message.reason
            return False
        if isinstance(message, Failed):
            error = message.exception()
            if isinstance(error, Aborted):
                self._aborted()
                return False
            self.error = error
            return True
        return None


class Reader(Protocol):
    """What can read a ps's memory in place."""

    def attach(self, name: list[int]) -> Array:
        """The memory, bytes. Raises Unavailable."""

    def release(self, number: int) -> None:
        """The values under a pull's number are read."""

    def give_up(self, error: Exception) -> None:
        """It does not work; the socket is used from now on."""


class PullTransfer(Transfer):
    """The values of one shard, in a run of bytes of the caller's.

    With `reader`, a pull that the ps answers with places in its memory is copied from there; with `hold` it is not
    even copied: `held` has the arenas' bytes until `release`.
    """

    def __init__(
        self,
        caller: Caller,
        ref: Ref,
        ps: int,
        layout: ShardLayout,
        message: Pull,
        aborted: Callable[[], None],
        reader: Reader | None = None,
        take: Callable[[int], Array] = lambda nbytes: np.empty(nbytes, np.uint8),
        hold: bool = False,
    ) -> None:
        """`take(nbytes)` gives the run; without a `reader` the message is not `shared`."""
        super().__init__(ps, aborted)
        self.layout = layout
        self.run: Array | None = None
        self.held: list[Array] | None = None
        self.counter, self.step, self.newer = -1, 0, True
        self._got: dict[int, int] = {}
        self._caller, self._message, self._reader = caller, message, reader
        self._take_run, self._hold = take, hold
        resend_s = 0.25 + layout.nbytes / 100e6
        self.request = caller.start(ref, message, self._feed, lambda: self._message, resend_s)

    def _feed(self, message: Message) -> bool:
        common = self._common(message)
        if common is not None:
            return common
        if isinstance(message, NotNewer):
            self.counter, self.step, self.newer = message.counter, message.step, False
            return True
        if isinstance(message, SharedValues) and self._reader is not None:
            return self._read(message, self._reader)
        return isinstance(message, Values) and self._take(message)

    def _read(self, message: SharedValues, reader: Reader) -> bool:
        """Read in place; where that fails the values are asked for over the socket, under the same number."""
        try:
            memories = [reader.attach(name) for name in message.memories]
            if [len(memory) for memory in memories] != [arena.nbytes for arena in self.layout.arenas]:
                raise Unavailable("the ps's memory is not laid out as agreed")
        except DpsError as error:
            reader.give_up(error)
            self._message = replace(self._message, shared=False)
            self._caller.send(self.request, self._message)
            return False
        self.counter, self.step = message.counter, message.step
        if self._hold:
            self.held, self.run = memories, None  # pieces of an earlier answer are for nothing
            return True
        self.run = self._take_run(self.layout.nbytes)
        for arena, memory in zip(self.layout.arenas, memories, strict=True):
            self._copy(self.run[arena.offset : arena.offset + arena.nbytes], memory)
        self.release()
        return True

    def _copy(self, target: Array, source: Array) -> None:
        """In the simulator in blocks, so that a writer who does not wait for readers is found out."""
        runtime = self._caller.runtime
        block = SIMULATED_BLOCK if runtime.simulated else max(1, len(source))
        for at in range(0, len(source), block):
            target[at : at + block] = source[at : at + block]
            runtime.preempt()

    def release(self) -> None:
        """Give what is held back to the ps."""
        self.held = None
        if self._reader is not None:
            self._reader.release(self.request.number)

    def drop(self) -> None:
        """Forget the request; values that the ps lends to a late answer are given back at once."""
        self._caller.drop(self.request)
        if self._message.shared and (not self.request.complete or self.held is not None):
            self.release()

    def _take(self, piece: Values) -> bool:
        """Pieces of two versions, after a resend, are never mixed: a higher one starts anew."""
        if piece.counter < self.counter or len(piece.offsets) != len(piece.arrays):
            return False
        if piece.counter > self.counter or self.run is None:
            self.counter, self.step = piece.counter, piece.step
            self._got = {}
            if self.run is None:
                self.run = self._take_run(self.layout.nbytes)
        for offset, data in zip(piece.offsets, piece.arrays, strict=True):
            self.layout.check_range(offset, data.nbytes)
            self.run[offset : offset + data.nbytes] = data.reshape(-1).view(np.uint8)
            self._got[offset] = data.nbytes
        return sum(self._got.values()) >= piece.nbytes


class PushTransfer(Transfer):
    """One shard's part of a push, under one number until the ps has a result for it.

    A long push asks for credit first. While no answer comes, only a small question is sent again; the gradient
    itself goes again when the ps says that it does not have it.
    """

    def __init__(
        self,
        caller: Caller,
        ref: Ref,
        ps: int,
        pieces: list[Push],
        held: Callable[[], None] | None,
        aborted: Callable[[], None],
        otherwise: Callable[[Exception], list[Push]] | None = None,
        in_full: Callable[[], list[Push]] | None = None,
    ) -> None:
        """`held`: that the ps has the push whole is all that this transfer is for (sync, not the step ps).
        `otherwise` gives other pieces where the ps cannot reach the memory that `pieces` name, `in_full` where it does
        not have a row list that they name."""
        super().__init__(ps, aborted)
        self._otherwise, self._in_full = otherwise, in_full
        self._caller, self._pieces, self._held = caller, pieces, held
        self.number, self._epoch = pieces[0].number, pieces[0].epoch
        self.result: Pushed | None = None
        self.accepted: bool | None = None
        self._credit = len(pieces) == 1
        first: Message = pieces[0] if self._credit else Credit(self._epoch, self.number)
        self.request = caller.start(ref, first, self._feed, self._again)

    def _again(self) -> Message:
        return PushStatus(self._epoch, self.number) if self._credit else Credit(self._epoch, self.number)

    def _feed(self, message: Message) -> bool:
        if isinstance(message, Failed) and self._otherwise is not None:
            error = message.exception()
            if isinstance(error, Unavailable):
                self._pieces, self._otherwise, self._credit = self._otherwise(error), None, False
                self._caller.send(self.request, self._again())
                return False
        common = self._common(message)
        if common is not None:
            return common
        if isinstance(message, RowsUnknown) and self._in_full is not None:
            self._pieces = self._in_full()
            self._caller.send(self.request, self._pieces[0])
            return False
        if isinstance(message, Pushed):
            self.result = message
            self.accepted = message.status == APPLIED
            return True
        if isinstance(message, PushHeld):
            self.waits_for = message.reason
            self.accepted = True if message.accepted else self.accepted
            return self._held is not None
        if isinstance(message, PushMissing) or (isinstance(message, Done) and not self._credit):
            self._send()
        return False

    def _send(self) -> None:
        """After a credit, or when the ps has lost sight of the push."""
        if isinstance(self._pieces, list) and not self._credit:
            self._credit = True
            for piece in self._pieces:
                self._caller.send(self.request, piece)
        elif len(self._pieces) == 1:
            self._caller.send(self.request, self._pieces[0])
        else:
            self._credit = False
            self._caller.send(self.request, Credit(self._epoch, self.number))


def run_pieces(
    layout: ShardLayout, run: Array, piece_nbytes: int, epoch: int, number: int, step: int, counter: int
) -> list[Push]:
    """A dense push of a shard's run (uint8), cut into messages."""
    return [
        Push(
            epoch, number, step, counter, RUN, layout.gradient_nbytes, [offset for offset, _ in piece], [],
            arrays=tuple(run[offset : offset + n] for offset, n in piece),
        )
        for piece in layout.pieces(piece_nbytes, trained_only=True)
    ]  # fmt: skip


def shared_message(
    layout: ShardLayout, memory: list[int], epoch: int, number: int, step: int, counter: int
) -> list[Push]:
    """A dense push whose run lies in shared memory."""
    return [Push(epoch, number, step, counter, SHARED, layout.gradient_nbytes, [], [memory, 0])]
