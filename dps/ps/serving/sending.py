"""Sends values over a socket: one version in pieces, as it is or while it is made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.actors.ref import Sender
from dps.messages.sessions import Pull, Values
from dps.ps.serving.buffer_wait import BufferWait
from dps.ps.store.hold import Hold
from dps.transport.wire import Array
from dps.variables.plan import Piece, cut, piece_size

if TYPE_CHECKING:
    from dps.ps.shard import Shard


class Sending:
    """The answers that one shard sends."""

    def __init__(self, shard: Shard) -> None:
        self.node, self.gate, self.epoch, self.layout = shard.node, shard.gate, shard.epoch, shard.layout
        self._plan, self._sessions, tuning = shard.plan, shard.ledgers, shard.node.runtime.tuning
        self._tuning, self._smallest = tuning.serving, tuning.piece_nbytes
        self.buffers = BufferWait(shard.store)
        trained = [a for a in self.layout.arenas if a.optimizer is not None and a.nbytes]
        starts, ends = [a.offset for a in trained], [a.offset + a.nbytes for a in trained]
        self.still = dict(zip([0, *ends], [*starts, self.layout.nbytes], strict=True))
        """The ranges of the run that no push changes, first byte to end."""
        self.answers = 0
        self.under_way: set[tuple[Any, int]] = set()
        """The answers that are being sent, by route and request."""

    def next_number(self) -> int:
        """The number of one more answer."""
        self.answers += 1
        return self.answers

    def is_on_its_way(self, sender: Sender) -> bool:
        """Whether an answer to this request is being sent."""
        return (sender.route, sender.request) in self.under_way

    def send_version(self, sender: Sender, pull: Pull, hold: Hold, over: Callable[[], None]) -> None:
        """Send all pieces of one version at once. `over` is called when the last one has left and the hold has
        ended."""
        answer = Answer(self, sender, hold, self._pieces(sender, pull), over)
        answer.send_all()

    def begin_answer(self, sender: Sender, pull: Pull, hold: Hold, over: Callable[[], None]) -> Answer:
        """Begin an answer of a whole version that is still being made."""
        return Answer(self, sender, hold, self._pieces(sender, pull, early=True), over)

    def record_sent(self, sender: Sender, nbytes: int, began: float) -> None:
        """An answer of so many bytes has left."""
        self.under_way.discard((sender.route, sender.request))
        ledger = self._sessions.get(sender.incarnation)
        if ledger is not None:
            ledger.sent += nbytes
            if nbytes == self.layout.data_nbytes:
                ledger.rate = nbytes / max(self.node.runtime.now() - began, self._tuning.shortest_s)

    def piece_nbytes(self, incarnation: int) -> int:
        """The size of the pieces that a session is sent, if parts may be cut."""
        soon = self.node.runtime.tuning.piece_s * (self._sessions[incarnation].rate or inf)
        return piece_size(self.layout.data_nbytes, self._smallest, soon)

    def _pieces(self, sender: Sender, pull: Pull, early: bool = False) -> list[Piece]:
        smallest, own = self._smallest, self._tuning
        if not pull.parts:
            rate = self._sessions[sender.incarnation].rate if pull.keeps_memory else 0.0
            most = min(rate * (own.early_piece_s if early else own.a_piece_s), own.longest_nbytes)
            size = self.piece_nbytes(sender.incarnation)
            if most >= self.layout.longest_part:
                return self.layout.whole_pieces(int(min(most, size if early else own.whole_nbytes)))
            return self.layout.pieces(min(size, own.copied_pieces * smallest))
        ranges: Piece = []
        for index in pull.parts:
            number, start = self.layout.place[index]
            arena = self.layout.arenas[number]
            ranges.append((arena.offset + start * arena.itemsize, self._plan.parts[index].size * arena.itemsize))
        return cut(ranges, smallest)


class Answer:
    """One version for one session. The hold ends when all has left that is to be sent."""

    def __init__(
        self, sending: Sending, sender: Sender, hold: Hold, pieces: list[Piece], over: Callable[[], None]
    ) -> None:
        self._sending, self._sender, self._hold, self._over = sending, sender, hold, over
        self._nbytes = sum(n for piece in pieces for _, n in piece)
        self._pieces = pieces[::-1]
        """The pieces to be sent, the next one last."""
        self._leaving, self._outcome = 0, ""
        self._began = sending.node.runtime.now()
        self._number = sending.next_number()
        sending.under_way.add((sender.route, sender.request))
        self._apart = sending.still.copy()
        """Finished ranges, first byte to end, with unfinished bytes before them."""
        self._finished = 0
        """The byte of the run up to which all is finished."""

    def send_finished(self, offset: int, nbytes: int) -> None:
        """These bytes of the run are finished: send the pieces that are finished by now, except the last one."""
        self._apart[offset] = offset + nbytes
        while (end := self._apart.pop(self._finished, None)) is not None:
            self._finished = end
        while len(self._pieces) > 1 and sum(self._pieces[-1][-1]) <= self._finished:
            self._send_piece(self._pieces.pop())

    def send_all(self) -> None:
        """The version is published: send the pieces that were not sent yet."""
        while self._pieces:
            self._send_piece(self._pieces.pop())
        self._outcome = "sent"
        self._end_if_sent()

    def drop_rest(self) -> None:
        """The version was dropped: send no more of it. The request may get another answer."""
        self._pieces.clear()
        self._sending.under_way.discard((self._sender.route, self._sender.request))
        self._outcome = "dropped"
        self._end_if_sent()

    def _send_piece(self, piece: Piece) -> None:
        hold, sending = self._hold, self._sending
        arrays = tuple(self._bytes(offset, nbytes) for offset, nbytes in piece)
        offsets = [offset for offset, _ in piece]
        values = Values(sending.epoch, hold.counter, hold.step, self._nbytes, offsets, self._number, arrays=arrays)
        self._leaving += 1
        sending.gate.answer(self._sender, values, partial(self._record_piece, sum(nbytes for _, nbytes in piece)))

    def _record_piece(self, nbytes: int) -> None:
        self._leaving -= 1
        self._sending.buffers.sent += nbytes
        self._end_if_sent()

    def _end_if_sent(self) -> None:
        if self._leaving or not self._outcome:
            return
        self._hold.release()
        if self._outcome == "sent":
            self._sending.record_sent(self._sender, self._nbytes, self._began)
        self._over()

    def _bytes(self, offset: int, nbytes: int) -> Array:
        for arena, values in zip(self._sending.layout.arenas, self._hold.arrays, strict=True):
            if arena.offset <= offset < arena.offset + arena.nbytes:
                return values.view(np.uint8)[offset - arena.offset : offset - arena.offset + nbytes]
        raise AssertionError(f"no arena at byte {offset}")
