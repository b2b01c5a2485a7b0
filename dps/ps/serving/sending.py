"""Values on their way to those who pull them over a socket: one version in pieces, as they are or while it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from dps.actors.ref import Sender
from dps.actors.system import Node
from dps.protocol import Pull, Values
from dps.ps.intake.ledger import Ledger
from dps.ps.serving.pace import Rates
from dps.ps.serving.room import Room
from dps.ps.store.hold import Hold
from dps.ps.store.store import Store
from dps.transport.wire import Array
from dps.variables.plan import Plan, ShardLayout, piece_size

Piece = list[tuple[int, int]]
"""Ranges of the run: offset, bytes."""


class Sending:
    """What one shard sends."""

    def __init__(self, node: Node, epoch: int, plan: Plan, store: Store, sessions: Mapping[int, Ledger]) -> None:
        """`sessions`: those that there are, by incarnation."""
        self.node, self.epoch, self.layout = node, epoch, store.layout
        self._plan, self._sessions = plan, sessions
        self._tuning, self._smallest = node.runtime.tuning.serving, node.runtime.tuning.piece_nbytes
        self.room = Room(store)
        self.rates = Rates(self._tuning.shortest_s)
        self.answers = 0
        self.under_way: set[tuple[Any, int]] = set()
        """By route and request."""

    def is_on_its_way(self, sender: Sender) -> bool:
        """Whether an answer to this request is being sent."""
        return (sender.route, sender.request) in self.under_way

    def send(self, sender: Sender, pull: Pull, hold: Hold, over: Callable[[], None]) -> None:
        """All pieces of one version at once; `over` is called when the last has left and the hold has ended."""
        answer = Answer(self, sender, pull, hold, self._pieces(sender, pull), over)
        answer.send_all()

    def begin(self, sender: Sender, pull: Pull, hold: Hold, over: Callable[[], None]) -> Answer:
        """An answer of a whole version that is still being made."""
        most = max(self.layout.data_nbytes // self._tuning.early_pieces, self._smallest)
        return Answer(self, sender, pull, hold, self._pieces(sender, pull, most), over)

    def left(self, sender: Sender, nbytes: int, began: float, whole: bool) -> None:
        """An answer of so many bytes, of all of the shard or not, has left."""
        self.under_way.discard((sender.route, sender.request))
        if sender.incarnation in self._sessions:
            self._sessions[sender.incarnation].sent += nbytes
            if whole:
                self.rates.note(sender.incarnation, nbytes, self.node.runtime.now() - began)

    def _pieces(self, sender: Sender, pull: Pull, at_most: int | None = None) -> list[Piece]:
        smallest, own = self._smallest, self._tuning
        if not pull.parts:
            most = min(self.rates.within(sender.incarnation, own.a_piece_s), own.longest_nbytes) if pull.whole else 0
            if most >= self.layout.longest_part:
                return self.layout.whole_pieces(min(most, own.whole_nbytes if at_most is None else at_most))
            return self.layout.pieces(min(piece_size(self.layout.data_nbytes, smallest), own.copied_pieces * smallest))
        ranges: Piece = []
        for index in pull.parts:
            number, start = self.layout.place[index]
            arena = self.layout.arenas[number]
            ranges.append((arena.offset + start * arena.itemsize, self._plan.parts[index].size * arena.itemsize))
        return cut(ranges, smallest)


class Finished:
    """Which bytes of a run have the values of the version that is being made."""

    def __init__(self, layout: ShardLayout) -> None:
        """Arenas that are not trained stay as they are, so they are finished."""
        self._layout = layout
        self._ends = [arena.offset + (arena.nbytes if arena.optimizer is None else 0) for arena in layout.arenas]
        """Of each arena: up to which byte of the run it is finished."""
        self._apart: dict[int, int] = {}
        """Ranges that are finished, while something before them is not."""

    def add(self, offset: int, nbytes: int) -> None:
        """These bytes are finished."""
        arena, _ = self._layout.check_range(offset, nbytes)
        self._apart[offset] = offset + nbytes
        while (end := self._apart.pop(self._ends[arena], None)) is not None:
            self._ends[arena] = end

    def has(self, offset: int, nbytes: int) -> bool:
        """Whether all of these bytes are finished."""
        arena, _ = self._layout.check_range(offset, nbytes)
        return offset + nbytes <= self._ends[arena]


class Answer:
    """One version for one session. The hold ends when all has left that is to be sent."""

    def __init__(
        self, sending: Sending, sender: Sender, pull: Pull, hold: Hold, pieces: list[Piece], over: Callable[[], None]
    ) -> None:
        self._sending, self._sender, self._hold, self._over = sending, sender, hold, over
        self._is_whole = not pull.parts
        self._nbytes = sum(n for piece in pieces for _, n in piece)
        self._pieces = pieces[::-1]
        """Those to be sent, the next one last."""
        self._leaving, self._outcome = 0, ""
        self._began = sending.node.runtime.now()
        sending.answers += 1
        self._number = sending.answers
        sending.under_way.add((sender.route, sender.request))
        self._finished = Finished(sending.layout)

    def made(self, offset: int, nbytes: int) -> None:
        """These bytes of the run are finished: send the pieces that are finished by now, except the last one."""
        self._finished.add(offset, nbytes)
        while len(self._pieces) > 1 and all(self._finished.has(*each) for each in self._pieces[-1]):
            self._send(self._pieces.pop())

    def send_all(self) -> None:
        """The version is there: what has not been sent yet leaves."""
        while self._pieces:
            self._send(self._pieces.pop())
        self._outcome = "sent"
        self._end()

    def drop(self) -> None:
        """The version will not be: no more is sent of it, and the request may have another answer."""
        self._pieces.clear()
        self._sending.under_way.discard((self._sender.route, self._sender.request))
        self._outcome = "dropped"
        self._end()

    def _send(self, piece: Piece) -> None:
        hold, sending = self._hold, self._sending
        arrays = tuple(self._bytes(offset, nbytes) for offset, nbytes in piece)
        offsets = [offset for offset, _ in piece]
        values = Values(sending.epoch, hold.counter, hold.step, self._nbytes, offsets, self._number, arrays)
        self._leaving += 1
        sending.node.answer(self._sender, values, partial(self._left, sum(nbytes for _, nbytes in piece)))

    def _left(self, nbytes: int) -> None:
        self._leaving -= 1
        self._sending.room.sent += nbytes
        self._end()

    def _end(self) -> None:
        if self._leaving or not self._outcome:
            return
        self._hold.release()
        if self._outcome == "sent":
            self._sending.left(self._sender, self._nbytes, self._began, self._is_whole)
        self._over()

    def _bytes(self, offset: int, nbytes: int) -> Array:
        for arena, values in zip(self._sending.layout.arenas, self._hold.arrays, strict=True):
            if arena.offset <= offset < arena.offset + arena.nbytes:
                return values.view(np.uint8)[offset - arena.offset : offset - arena.offset + nbytes]
        raise AssertionError(f"no arena at byte {offset}")


def cut(ranges: Piece, size: int) -> list[Piece]:
    """Byte ranges in pieces of at most `size` bytes each, in order; ranges longer than that are cut."""
    pieces: list[Piece] = [[]]
    room = size
    for offset, nbytes in ranges:
        while nbytes > 0:
            n = min(nbytes, max(room, 0) // 8 * 8 or 0)
            if n == 0:
                if nbytes <= room:
                    n = nbytes
                else:
                    pieces.append([])
                    room = max(size, 8)
                    continue
            pieces[-1].append((offset, n))
            offset, nbytes, room = offset + n, nbytes - n, room - n
    return pieces
