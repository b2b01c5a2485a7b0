"""Answers lookups: gathers rows of a table into the answer, or into memory that the session reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.actors.answers import Waiting
from dps.actors.ref import Sender
from dps.errors import Unavailable
from dps.messages.sessions import Lookup, RowsAnswer, SharedRows
from dps.ps.intake.parts import checked
from dps.transport.endpoint import Memory, Runtime
from dps.transport.wire import Array

if TYPE_CHECKING:
    from dps.ps.shard import Shard


class LookupMemory:
    """The answers that one session may be reading now."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._tuning = runtime, runtime.tuning.serving
        self._given: dict[int, tuple[SharedRows, Memory]] = {}
        self._free: list[Memory] = []
        self._below = 0

    def release_below(self, below: int) -> None:
        """The session has read all answers to requests below this number, or will never read them."""
        self._below = max(self._below, below)
        for over in [n for n in self._given if n < self._below]:
            self._free.append(self._given.pop(over)[1])

    def is_over(self, number: int) -> bool:
        """Whether a request is out of date: its session has an answer, or waits no more."""
        return number < self._below

    def answer_of(self, number: int) -> SharedRows | None:
        """The earlier answer to this request, if there is one."""
        found = self._given.get(number)
        return None if found is None else found[0]

    def take_memory(self, nbytes: int) -> Memory | None:
        """Memory to write an answer into; None if there is none."""
        fits = [memory for memory in self._free if len(memory.array) >= nbytes]
        if fits:
            found = min(fits, key=lambda memory: len(memory.array))
            self._free.remove(found)
            return found
        size = max(self._tuning.answer_nbytes, 1 << (nbytes - 1).bit_length())
        self._free.clear()  # too small ones; what somebody may read is not among them
        held = [len(memory.array) for _, memory in self._given.values()]
        if len(held) >= self._tuning.answers or sum(held) + size > self._tuning.answers_nbytes:
            return None
        try:
            return self._runtime.share(size)
        except Unavailable:
            return None

    def record_answer(self, number: int, answer: SharedRows, memory: Memory) -> None:
        """A request is answered with the contents of a memory from `take_memory`."""
        self._given[number] = (answer, memory)


class ShardLookups:
    """The lookups of one shard's sessions. Runs on the node's thread."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._answers: dict[int, LookupMemory] = {}
        self.waiting: dict[int, dict[int, tuple[Sender, Lookup, Array]]] = {}
        """The lookups that wait for a step, by incarnation."""

    def answer_lookup(self, sender: Sender, message: Lookup) -> None:
        """Answer now, or when the shard has reached the step that the session must see. Raises ValueError for rows that
        are not here, and Aborted for a session that is not admitted."""
        shard = self._shard
        shard.ledger(sender)
        table = shard.store.tables.get(message.part)
        if (table is None and message.part not in shard.layout.place) or len(message.arrays) != 1:
            raise ValueError(f"part {message.part} is not on {shard.node.name}, or its row numbers are missing")
        came = message.arrays[0]
        rows = checked(shard.plan.parts[message.part], came) if table is None else table.check_codes(came)
        if shard.store.step < message.min_step:
            waiting = self.waiting.setdefault(sender.incarnation, {})
            if len(waiting) < shard.node.runtime.tuning.serving.waiting_lookups:
                waiting[sender.request] = sender, message, rows
            reason = f"{shard.node.name} is at step {shard.store.step}, step {message.min_step} is wanted: "
            shard.node.answer(sender, Waiting(reason + shard.mode.waiting_for()))
            return
        self._answer_rows(sender, message, rows)

    def answer_waiting(self) -> None:
        """Answer the lookups that waited for a step that is reached now."""
        for waiting in self.waiting.values():
            for key, (sender, message, rows) in list(waiting.items()):
                if self._shard.store.step >= message.min_step:
                    del waiting[key]
                    self._answer_rows(sender, message, rows)

    def forget_session(self, incarnation: int) -> None:
        """A session has ended. Memory that it may still read stays as it is."""
        self._answers.pop(incarnation, None)
        self.waiting.pop(incarnation, None)

    def _read(
        self, incarnation: int, part: int, rows: Array
    ) -> tuple[int, np.dtype[Any], Callable[[slice, Array], object]]:
        """A session reads rows of a part, or of codes of a keyed table: the elements of a row, their dtype, and what
        copies some of the rows. Those of all codes are found together, because the push after the lookup may have the
        same list."""
        shard, layout = self._shard, self._shard.layout
        table = shard.store.tables.get(part)
        if table is None:
            shard.mode.record_read(shard.ledgers[incarnation], (part,), rows)
            of, dtype = shard.plan.parts[part], np.dtype(layout.arenas[layout.place[part][0]].dtype)
            return of.row_size, dtype, lambda some, out: shard.store.gather(of, rows[some], out)
        numbers = table.rows_to_read(rows, shard.store.step)
        return table.dim, table.dtype, lambda some, out: table.copy_rows(rows[some], numbers[some], out)

    def _answer_rows(self, sender: Sender, message: Lookup, rows: Array) -> None:
        if not (message.shared and self._share_rows(sender, message, rows)):
            self._send_rows(sender, message, rows)

    def _share_rows(self, sender: Sender, message: Lookup, rows: Array) -> bool:
        """Write the rows to memory that the session reads. Returns False if there is no room in it."""
        shard = self._shard
        answers = self._answers.get(sender.incarnation)
        if answers is None:
            answers = self._answers[sender.incarnation] = LookupMemory(shard.node.runtime)
        answers.release_below(message.released)
        if answers.is_over(sender.request):
            return True
        answer = answers.answer_of(sender.request)
        if answer is None:
            row_size, dtype, copy = self._read(sender.incarnation, message.part, rows)
            nbytes = len(rows) * row_size * dtype.itemsize
            memory = answers.take_memory(nbytes) if nbytes else None
            if memory is None:
                return False
            copy(slice(None), memory.array[:nbytes].view(dtype).reshape(len(rows), row_size))
            shard.ledgers[sender.incarnation].sent += nbytes
            answer = SharedRows(shard.epoch, shard.store.counter, memory.name)
            answers.record_answer(sender.request, answer, memory)
        shard.gate.answer(sender, answer)
        return True

    def _send_rows(self, sender: Sender, message: Lookup, rows: Array) -> None:
        """Cut rows into pieces of whole rows: while one piece travels, the next is gathered."""
        shard = self._shard
        row_size, dtype, copy = self._read(sender.incarnation, message.part, rows)
        size = max(1, shard.node.runtime.tuning.piece_nbytes // max(1, row_size * dtype.itemsize))
        for first in range(0, max(1, len(rows)), size):
            found = np.empty((min(size, len(rows) - first), row_size), dtype)
            copy(slice(first, first + size), found)
            shard.ledgers[sender.incarnation].sent += found.nbytes
            shard.gate.answer(sender, RowsAnswer(shard.epoch, shard.store.counter, first, (found,)))
