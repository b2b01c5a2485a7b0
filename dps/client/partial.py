"""A push of some variables, or of rows of them: what of it goes to one shard, and where it lies meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dps.client.connection import Connection
from dps.client.lanes import Run
from dps.client.transfers import About
from dps.protocol import DENSE, EMPTY, LISTED, PACKED, PARTS, ROWS, Push
from dps.transport.wire import Array
from dps.variables.layout import Gradient, parts_of_shard
from dps.variables.packed import Packed
from dps.variables.rowlists import RowsOfPart

ALIGNED = 64
"""Bytes: where the arrays of a run may begin."""


class _Sent:
    """The gradient of one part."""

    __slots__ = ("form", "index", "offset", "rows", "values")

    def __init__(
        self, index: int, rows: RowsOfPart | None, values: Array, offset: int = -1, form: list[Any] | None = None
    ) -> None:
        """`values` as they travel: the user's own, or, where they had to be moved, in the run, at `offset` (-1: not
        there). `form` of values in fewer bytes."""
        self.index, self.rows, self.values, self.offset, self.form = index, rows, values, offset, form


class PartRuns:
    """Runs for such pushes: one is used again when its push is answered."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._made: dict[int, list[Run]] = {}

    def take(self, ps: int, nbytes: int) -> Run:
        """A run of at least so many bytes that nobody reads."""
        made, lane = self._made.setdefault(ps, []), self._connection.lanes[ps]
        idle = [run for run in made if not run.in_use]
        fits = (run for run in idle if len(run.bytes) >= nbytes and (run.memory is not None or not lane.on))
        run = next(fits, None)
        if run is None:
            run = Run(self._connection.runtime, lane, 1 << (nbytes - 1).bit_length())
            made[:] = [other for other in made if other not in idle] + [run]  # those were too small, or not shared
        return run

    def forget(self) -> None:
        """After a rollback: a ps may still read the old ones, which go when it has done so."""
        self._made = {}


class PartsPush:
    """One shard's part of a push, under one number, however often it is sent."""

    def __init__(
        self, connection: Connection, gradients: Mapping[int, Gradient], ps: int, about: About, runs: PartRuns,
    ) -> None:  # fmt: skip
        """The values are gathered here, once."""
        self._connection, self._ps, self._about = connection, ps, about
        self.run: Run | None = None
        self._in_full = False
        plan = connection.plan
        self._parts = [
            _sent(index, gradient)
            for index, gradient in parts_of_shard(plan, plan.layouts[ps], gradients, connection.row_lists)
        ]
        self._gather(runs)

    @property
    def empty(self) -> bool:
        return not self._parts

    def _gather(self, runs: PartRuns) -> None:
        """Values for a ps on this machine go into a run that it reads; else only rows that are to be put in order."""
        runtime, shared = self._connection.runtime, self._connection.lanes[self._ps].on
        large = sum(sent.values.nbytes for sent in self._parts) >= runtime.shared_nbytes
        moved = [
            sent for sent in self._parts
            if sent.form is None and ((shared and large) or (sent.rows is not None and sent.rows.moves))
        ]  # fmt: skip
        at = 0
        for sent in moved:
            sent.offset = at
            at += -(-sent.values.nbytes // ALIGNED) * ALIGNED
        if not at:
            return
        self.run = runs.take(self._ps, at) if large else None
        run = np.empty(at, np.uint8) if self.run is None else self.run.bytes
        for sent in moved:
            place = run[sent.offset : sent.offset + sent.values.nbytes].view(sent.values.dtype)
            place = place.reshape(sent.values.shape)
            if sent.rows is None:
                place[...] = sent.values
            else:
                sent.rows.fill(place)
            sent.values = place

    def messages(self) -> list[Push]:
        """What is sent, one message: with places instead of values, and without row numbers that the ps has."""
        about = self._about
        if not self._parts:
            return [Push(*about[:4], EMPTY, 0, [], [], *about[4:])]
        memory = self.run.memory if self.run is not None and self._connection.lanes[self._ps].on else None
        described: list[Any] = []
        arrays: list[Array] = []
        nbytes = 0
        for sent in self._parts:
            how, listed = DENSE, 0
            if sent.form is not None:
                described.append([sent.index, PACKED, 0, sent.form])
                arrays.append(sent.values)
                nbytes += sent.values.nbytes
                continue
            if sent.rows is not None:
                how, listed = self._rows(sent.rows, arrays)
                nbytes += 8 * len(sent.values)
            nbytes += sent.values.nbytes
            place = [memory.name, sent.offset] if memory is not None and sent.offset >= 0 else []
            described.append([sent.index, how, listed, place])
            if not place:
                arrays.append(sent.values)
        return [Push(*about[:4], PARTS, nbytes, [], described, *about[4:], tuple(arrays))]

    def _rows(self, rows: RowsOfPart, arrays: list[Array]) -> tuple[int, int]:
        told = rows.sent.is_told(rows.part, self._connection.caller.incarnation)
        if told and not self._in_full:
            return LISTED, rows.sent.number
        arrays.append(rows.sent.within(rows.part))
        return ROWS, rows.sent.number

    def in_full(self) -> list[Push]:
        """The messages for a ps that does not have a list (any more)."""
        self._in_full = True
        return self.messages()

    def over_the_socket(self, error: Exception) -> list[Push]:
        """The messages for a ps that cannot reach this session's memory."""
        self._connection.lanes[self._ps].give_up(error)
        return self.messages()


def _sent(index: int, gradient: Array | RowsOfPart | Packed) -> _Sent:
    """Values in the shape in which they travel; those of rows as the user gave them, not in their order yet."""
    if isinstance(gradient, Packed):
        return _Sent(index, None, gradient.data, form=gradient.form)
    if isinstance(gradient, RowsOfPart):
        return _Sent(index, gradient, gradient.values[gradient.first : gradient.last])
    return _Sent(index, None, gradient)
