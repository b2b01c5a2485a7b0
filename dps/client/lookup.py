"""Looks up rows of variables: asks all ps that have some of them at the same time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dps.client.connection import Connection
from dps.client.pulling import PullOp, Pulls, check_fillable
from dps.client.pushing import Pushes
from dps.client.transfers import Transfer, copy_steadily
from dps.client.waiting import Operation, Waiter
from dps.errors import DpsError, Unavailable
from dps.messages.sessions import Lookup, RowsAnswer, SharedRows
from dps.transport.dtypes import wire_name
from dps.transport.message import Message, changed
from dps.transport.wire import Array
from dps.variables.layout import check_rows, row_numbers
from dps.variables.plan import Part, Plan, VariableSpec
from dps.variables.rowlists import RowList, range_of, within
from dps.variables.tables import TablePart, key_numbers
from dps.variables.tree import described

NOTHING = np.empty(0)


class Lookups:
    """The lookups of a session."""

    def __init__(self, connection: Connection, waiter: Waiter, pushes: Pushes, pulls: Pulls) -> None:
        self._connection, self._waiter, self._pushes, self._pulls = connection, waiter, pushes, pulls

    def prepare(
        self, wanted: str | Mapping[str, Any], rows: Any, out: Array | Mapping[str, Array] | None
    ) -> LookupOp:  # fmt: skip
        """A lookup of rows of a variable, or of several at one time. Raises as `check`; nothing is sent."""
        self._waiter.check_open()
        connection = self._connection
        first = self._pulls.start([], None, after=False) if connection.agreed.mode.asks_step_ps_first else None
        asked = _by_name(wanted, rows, out)
        tables = {name: _table(connection, name, *of) for name, of in asked.items()}
        _check_apart(asked)
        return LookupOp(connection, tables, first, several=not isinstance(wanted, str))

    def check(self, wanted: str | Mapping[str, Any], rows: Any, out: Array | Mapping[str, Array] | None) -> None:
        """Raise ValueError for what is no variable, no row of it, or no array to hold the rows, and TypeError for
        arguments of the two forms mixed."""
        self._waiter.check_open()
        asked, plan = _by_name(wanted, rows, out), self._connection.agreed.plan
        for name, (of, place) in asked.items():
            found = _fitting(plan, name, of, place)
            if found.spec is None:
                key_numbers(name, found.indices)
            else:
                check_rows(found.spec, found.indices.reshape(-1))
        _check_apart(asked)

    def finish(self, operation: LookupOp, timeout: float | None) -> Any:
        """Wait for a lookup; the rows. Raises DeadlineExceeded."""
        self._waiter.wait(operation, timeout, f"looking up rows of {operation.names}")
        self._pushes.note_read(operation.counters())
        return operation.result()


def _by_name(wanted: str | Mapping[str, Any], rows: Any, out: Any) -> dict[str, tuple[Any, Any]]:
    """The rows of each variable, and the array for them or None. Raises as `Lookups.check`."""
    if isinstance(wanted, str):
        return {wanted: (rows, out)}
    if rows is not None or not isinstance(out, Mapping | None):
        raise TypeError("lookup takes (name, rows, out=array) or ({name: rows}, out={name: array}), not a mix")
    places = out or {}
    strange = sorted(set(places) - set(wanted))
    if strange:
        raise ValueError(f"lookup: out has {strange}, wanted some of {list(wanted)}, which are looked up")
    return {name: (of, places.get(name)) for name, of in wanted.items()}


def _check_apart(asked: Mapping[str, tuple[Any, Any]]) -> None:
    """ValueError if rows of two names would be written to the same memory of the caller's arrays."""
    places = [(name, place) for name, (_, place) in asked.items() if place is not None] if len(asked) > 1 else []
    if len(places) < 2:
        return
    from dps.variables.sharing import shared  # here: `import dps` stays quick

    for name, other, _ in shared(places):
        raise ValueError(f"lookup: out has one memory for {name} and {other}; give each an array of its own")


class _Fitting(NamedTuple):
    """The rows of one variable, as they are asked for."""

    indices: Array
    """Row numbers, or the keys of a keyed table, in the caller's shape."""
    dtype: str
    row: tuple[int, ...]
    """The shape of a row."""
    parts: Sequence[Part | TablePart]
    spec: VariableSpec | None
    """None: it is a keyed table, which has a row for each key. Else row numbers may be out of range."""


def _fitting(plan: Plan, name: str, rows: Any, out: Any) -> _Fitting:
    """The rows of a variable, and what is known of it. ValueError for what is none, and for arrays that do not fit."""
    if name in plan.tables_by_name:
        index = plan.tables_by_name[name]
        table, keys = plan.table_of(index), row_numbers(rows, f"keys of {name}")
        found = _Fitting(keys, table.dtype, (table.dim,), plan.table_parts[index], None)
    elif name in plan.by_name:
        index = plan.by_name[name]
        spec, indices = plan.variables[index], row_numbers(rows, "rows")
        if not spec.shape:
            raise ValueError(f"lookup: {name} is a scalar, which has no rows; use pull")
        found = _Fitting(indices, spec.dtype, spec.shape[1:], plan.parts_of[index], spec)
    else:
        raise ValueError(f"lookup: no variable {name!r}; there are {[*plan.by_name, *plan.tables_by_name][:10]}")
    if out is not None:
        _check_out(out, found.indices.shape, found.row, found.dtype)
    return found


def _table(connection: Connection, name: str, rows: Any, out: Any) -> _Table:
    indices, dtype, row, parts, spec = _fitting(connection.agreed.plan, name, rows, out)
    if spec is None:
        found = connection.row_lists.of_keys(key_numbers(name, indices))
    else:
        found = connection.row_lists.of(indices.reshape(-1))
        lowest, highest = found.ends()
        if lowest < 0 or highest >= spec.shape[0]:
            check_rows(spec, indices.reshape(-1))
    flat_shape = len(found.asked), *row
    flat = np.empty(flat_shape, dtype) if out is None else out.reshape(flat_shape)
    return _Table(connection, parts, dtype, found, flat, (*indices.shape, *row), out)


def _check_out(out: Any, asked: tuple[int, ...], row: tuple[int, ...], dtype: str) -> None:
    """ValueError unless the caller's array has room for the rows that were asked for in this shape."""
    shape = (*asked, *row)
    if not isinstance(out, np.ndarray) or out.shape != shape or wire_name(out.dtype) != dtype:
        raise ValueError(f"lookup: out is {described(out)}; wanted an array of {np.dtype(dtype)} {shape}")
    if len(asked) > 1 and not out.flags.c_contiguous:
        raise ValueError(f"lookup: out for rows of shape {asked} has to be C-contiguous")
    if not out.flags.carray:
        check_fillable("lookup: out", out)


class LookupOp(Operation):
    """A lookup in one variable, or in several that are waited for together."""

    def __init__(
        self, connection: Connection, tables: dict[str, _Table], first: PullOp | None, several: bool
    ) -> None:  # fmt: skip
        """`first`: has to be complete before rows are asked for: the step ps lets the session read."""
        self._connection, self._tables, self._first, self._several = connection, tables, first, several
        self.names = ", ".join(tables)
        """Of the variables, for messages."""
        self._incarnation = -1

    def start(self) -> None:
        """Send the requests; after a rollback all of them again."""
        if self._first is not None:
            self._first.start()
        self._ask()
        self._connection.caller.flush()

    def _ask(self) -> None:
        """Ask for the rows, if they may be asked for and are not."""
        incarnation = self._connection.caller.incarnation
        if self._incarnation != incarnation and (self._first is None or self._first.complete):
            for table in self._tables.values():
                table.ask()
            self._incarnation = incarnation

    @property
    def complete(self) -> bool:
        self._ask()
        current = self._incarnation == self._connection.caller.incarnation
        return current and all(part.complete for part in self._parts())

    def requests(self) -> Sequence[Transfer]:
        return [*(() if self._first is None else self._first.requests()), *self._parts()]

    def _parts(self) -> list[_PartLookup]:
        return [part for table in self._tables.values() for part in table.parts]

    def counters(self) -> dict[int, int]:
        """The version of each shard that was read; the oldest, if rows of several were. The operation is complete."""
        found: dict[int, int] = {}
        for part in self._parts():
            found[part.ps] = min(part.counter, found.get(part.ps, part.counter))
        return found

    def drop(self) -> None:
        """Its result is not wanted any more."""
        if self._first is not None:
            self._first.drop()
        for table in self._tables.values():
            table.drop()

    def result(self) -> Any:
        """The rows; of several variables a dict by name. The operation is complete."""
        found = {name: table.result() for name, table in self._tables.items()}
        return found if self._several else found.popitem()[1]


class _Table:
    """The rows of one variable. They are received part by part, each once, and put in the caller's order at the end."""

    def __init__(
        self, connection: Connection, parts: Sequence[Part | TablePart], dtype: str, rows: RowList, out: Array,
        shape: tuple[int, ...], given: Array | None = None,
    ) -> None:  # fmt: skip
        """`parts`, `dtype`: of the variable, or of the keyed table, of which `rows` are codes. `out`: memory for the
        rows, shape (n, ...). The result is `given`, the caller's array, or `out` in `shape`."""
        self._connection, self._of_variable, self.dtype, self._out = connection, parts, np.dtype(dtype), out
        self._shape, self._given = shape, given
        self.parts: list[_PartLookup] = []
        self._rows, self._which = rows.to_read(len(self._of_variable))
        self._in_place = self._which is None and out.flags.c_contiguous
        self._distinct: Array | None = None

    def ask(self) -> None:
        """Ask the ps of each part for its rows, at the next flush. Earlier requests are dropped."""
        for part in self.parts:
            part.drop()
        found = [(part, *range_of(part, self._rows)) for part in self._of_variable]
        asked = [(part, first, last) for part, first, last in found if first < last]
        whole = len(asked) == 1
        self.parts = [
            _PartLookup(self, self._connection, part, first, within(part, self._rows[first:last]), whole)
            for part, first, last in asked
        ]
        for lookup in self.parts:  # once they are known, for after Ctrl-C they have to be dropped
            lookup.begin()

    def drop(self) -> None:
        """Its result is not wanted any more."""
        for part in self.parts:
            part.drop()
        self._out, self.parts = NOTHING, []

    def target(self) -> Array:
        """Where received rows are written, shape (rows, elements of a row): the result, if they come in its order."""
        n, size = len(self._rows), math.prod(self._out.shape[1:])
        if self._in_place:
            return self._out.reshape(n, size)
        if self._distinct is None:
            self._distinct = np.empty((n, size), self.dtype)
        return self._distinct

    def put_all(self, rows: Array) -> None:
        """Copy all rows into the result, in the caller's order."""
        if self._which is None:
            self._out[...] = rows.reshape(self._out.shape)
        else:
            np.take(rows.reshape(len(rows), *self._out.shape[1:]), self._which, axis=0, out=self._out, mode="clip")
        self._distinct = None

    def result(self) -> Array:
        """The rows in the caller's order. All of them have been received."""
        if self._distinct is not None:
            self.put_all(self._distinct)
        found = self._out.reshape(self._shape) if self._given is None else self._given
        self._out, self._given, self.parts = NOTHING, None, []
        return found  # no reference stays here: a transfer and its request would keep the array


class _PartLookup(Transfer):
    """The request for rows of one part, answered over the socket or in the ps's memory."""

    def __init__(
        self, table: _Table, connection: Connection, part: Part | TablePart, first: int, rows: Array, whole: bool
    ) -> None:
        """`rows`: row numbers of the part, of which the first is row `first` of the table's target. `whole`: they are
        all that the table asks for."""
        super().__init__(connection.peers[part.ps])
        self._table, self._part = table, part
        self._first, self._count, self._whole = first, len(rows), whole
        self._lane = self.peer.lane
        self._dtype = table.dtype
        self._nbytes = self._count * part.row_size * self._dtype.itemsize
        self.counter = -1
        """The version of the rows that have come."""
        self._got: dict[int, int] = {}
        self._message = Lookup(
            connection.membership.epoch, connection.steps.least, part.index,
            self._lane.all_released_below(),
            self._lane.on and 0 < self._nbytes >= connection.home.runtime.tuning.shared_nbytes, (rows,),
        )  # fmt: skip

    def begin(self) -> None:
        """Ask for the rows: the message leaves at the next flush."""
        self._caller.open(self.peer.ref, self._message, self, 0.25 + self._nbytes / 100e6)
        self._lane.reading.add(self.number)

    def resend_message(self) -> Message:
        return self._message

    def feed(self, message: Message) -> bool:
        over = self._common(message)
        if isinstance(message, SharedRows):
            over = self._read(message)
        elif isinstance(message, RowsAnswer):
            over = len(message.arrays) == 1 and self._take(message, message.arrays[0])
        if over:
            self._lane.reading.discard(self.number)
        return bool(over)

    def _read(self, message: SharedRows) -> bool:
        """Read the rows in the ps's memory. If that fails, ask for them over the socket, under the same number."""
        try:
            memory = self._lane.attach(message.memory)
            if len(memory) < self._nbytes:
                raise Unavailable(f"the ps's memory has {len(memory)} bytes for an answer of {self._nbytes}")
        except DpsError as error:
            self._lane.give_up(error)
            self._message = changed(self._message, shared=False)
            self._caller.send(self, self._message)
            return False
        self.counter = message.counter
        rows = self._steady(memory[: self._nbytes]).view(self._dtype).reshape(self._count, self._part.row_size)
        if self._whole:
            self._table.put_all(rows)
        else:
            self._table.target()[self._first : self._first + self._count] = rows
        return True

    def _steady(self, memory: Array) -> Array:
        """The memory itself; in the simulator a copy (see `copy_steadily`)."""
        runtime = self._caller.runtime
        if not runtime.tuning.block_nbytes:
            return memory
        copied = np.empty_like(memory)
        copy_steadily(runtime, copied, memory)
        return copied

    def _take(self, message: RowsAnswer, rows: Array) -> bool:
        """Add a piece; whether all rows are here. Pieces of two versions are never mixed: a higher one starts anew."""
        fits = rows.ndim == 2 and rows.shape[1] == self._part.row_size and rows.dtype == self._dtype
        if not fits or not 0 <= message.first <= self._count - len(rows) or message.counter < self.counter:
            return False
        if message.counter > self.counter:
            self.counter, self._got = message.counter, {}
        if self._whole and len(rows) == self._count:
            self._table.put_all(rows)
            return True
        first = self._first + message.first
        self._table.target()[first : first + len(rows)] = rows
        self._got[message.first] = len(rows)
        return sum(self._got.values()) >= self._count

    def drop(self) -> None:
        """Forget the request; late answers are ignored."""
        self._caller.drop(self)
        self._lane.reading.discard(self.number)
