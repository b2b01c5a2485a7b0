"""Reads a push of some variables, gradients and values to set, from its message and its session's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dps.errors import NOT_FINITE, ProtocolError
from dps.kernels import compress as kernels
from dps.kernels import rows as row_kernels
from dps.kernels.compress import BLOCK, place_dtype
from dps.kernels.halves import widened
from dps.messages.sessions import DENSE, PACKED, ROWS, VALUE, Push
from dps.ps.intake.borrowed import Borrowed, place_of, writable
from dps.ps.store.gradients import RowGradient, is_finite
from dps.ps.store.table import KeyedTable
from dps.transport.wire import Array
from dps.variables.layout import out_of_range
from dps.variables.packed import first_element
from dps.variables.plan import Part, ShardLayout
from dps.variables.tables import TablePart

MOST_ELEMENTS = 1 << 48


def unpack(form: list[Any], part: Part, dtype: np.dtype[Any], data: Array) -> Array:
    """A part's gradient in new memory, with the part's shape and dtype (float32 or float64). `form` and `data` are
    described in `dps.variables.packed`. Raises ProtocolError if they do not fit the part.
    """
    restore = _FORMS.get(form[0]) if form and isinstance(form[0], str) else None
    if restore is None:
        known = ", ".join(_FORMS)
        raise ProtocolError(f"the gradient of {part.name} is packed as {form!r:.80}; this ps knows {known}")
    if data.dtype != np.uint8 or data.ndim != 1:
        raise ProtocolError(f"the gradient of {part.name} is packed, but {data.dtype} {data.shape}; wanted bytes (n,)")
    return restore(form, part, dtype, data).reshape(part.shape)


def _halves(form: list[Any], part: Part, dtype: np.dtype[Any], data: Array) -> Array:
    _check(form, 1, part, data.nbytes, 2 * part.size)
    out = np.empty(part.size, dtype)
    restore = kernels.from_float16 if form[0] == "float16" else kernels.from_bfloat16
    restore(out, data.copy().view(np.uint16))  # kernels exist for memory that is aligned and writable
    return out


def _quantised(form: list[Any], part: Part, dtype: np.dtype[Any], data: Array) -> Array:
    first = first_element(part)
    blocks = -(-(first + part.size) // BLOCK) - first // BLOCK if part.size else 0
    scales_nbytes = blocks * dtype.itemsize
    _check(form, 1, part, data.nbytes, scales_nbytes + part.size)
    out = np.empty(part.size, dtype)
    private = data.copy()
    scales, q = private[:scales_nbytes].view(dtype), private[scales_nbytes:].view(np.int8)
    kernels.dequantise(out, q, scales, first)
    return out


def _largest(form: list[Any], part: Part, dtype: np.dtype[Any], data: Array) -> Array:
    place = place_dtype(part.size)
    count = data.nbytes // (place.itemsize + dtype.itemsize)
    _check(form, 1, part, data.nbytes, min(count, part.size) * (place.itemsize + dtype.itemsize))
    positions = data[: count * place.itemsize].copy().view(place)
    values = data[count * place.itemsize :].copy().view(dtype)
    if not kernels.rise_below(positions, part.size):
        raise ProtocolError(f"the gradient of {part.name}: positions have to rise and be below {part.size}")
    out = np.empty(part.size, dtype)
    kernels.put(out, positions, values)
    return out


def _some(form: list[Any], part: Part, dtype: np.dtype[Any], data: Array) -> Array:
    first = first_element(part)
    if len(form) != 4 or not all(type(number) is int for number in form[1:]):
        raise ProtocolError(f"the gradient of {part.name} is packed as {form!r:.80}; wanted random_k, key, n, k")
    _, key, n, k = form
    if not (0 <= key < 1 << 63 and 1 <= k <= n < MOST_ELEMENTS and first + part.size <= n):
        raise ProtocolError(f"the gradient of {part.name}: {k} of {n} elements, key {key}, cannot be")
    most = min(k, part.size + 1) * dtype.itemsize
    if data.nbytes > most:
        raise ProtocolError(f"the gradient of {part.name} has {data.nbytes} bytes packed; wanted at most {most}")
    positions = kernels.random_positions(key, n, k, first, first + part.size)
    _check(form, 4, part, data.nbytes, len(positions) * dtype.itemsize)
    out = np.empty(part.size, dtype)
    kernels.put(out, positions, data.copy().view(dtype))
    return out


def _check(form: list[Any], length: int, part: Part, got: int, wanted: int) -> None:
    if len(form) != length:
        raise ProtocolError(f"the gradient of {part.name} is packed as {form!r:.80}; wanted {length} values")
    if got != wanted:
        raise ProtocolError(f"the gradient of {part.name} has {got} bytes packed as {form[0]}; wanted {wanted}")


_FORMS: dict[str, Callable[[list[Any], Part, np.dtype[Any], Array], Array]] = {
    "float16": _halves, "bfloat16": _halves, "int8": _quantised, "top_k": _largest, "random_k": _some,
}  # fmt: skip


Gradients = dict[int, Array | RowGradient]


class Parts:
    """Reads one message. `problem`: why the push will be refused. `borrowed`: whether values stay in the session's
    memory, which is read in place."""

    def __init__(
        self, piece: Push, layout: ShardLayout, tables: Mapping[int, KeyedTable], session: Borrowed, check_finite: bool
    ) -> None:  # fmt: skip
        """`tables`: keyed tables, by the indices of their parts. Raises ProtocolError if the message does not describe
        gradients of this shard, and Unavailable for memory that cannot be reached."""
        self.gradients: Gradients = {}
        self.values: dict[int, Array] = {}
        """The values to which parts are set, by the parts' index."""
        self.problem = ""
        self.borrowed = False
        self._number, self._layout, self._tables, self._session = piece.number, layout, tables, session
        self._arrays = list(piece.arrays)
        parts = [_described(described, layout, tables) for described in piece.parts]
        self.assigns = bool(parts) and all(how == VALUE for _, how, _ in parts)
        """Whether the push has values to set, and no gradient."""
        for part, how, place in parts:
            found: Gradients | dict[int, Array] = self.values if how == VALUE else self.gradients
            if len(self._arrays) < (how == ROWS) + (not place or how == PACKED) or part.index in found:
                raise ProtocolError(f"push {self._number} has too few arrays for its parts, or a part twice")
            try:
                gradient = self._gradient(part, how, place)
                if check_finite and not is_finite(gradient.values if isinstance(gradient, RowGradient) else gradient):
                    raise ValueError(f"the {_what(how)} of {part.name} {NOT_FINITE}")
                found[part.index] = gradient  # type: ignore[assignment]  # a value is an array
            except ValueError as error:
                self.problem = self.problem or str(error)
        if self._arrays:
            raise ProtocolError(f"push {self._number} has {len(self._arrays)} arrays too many")

    def _gradient(self, part: Part | TablePart, how: int, place: list[Any]) -> Array | RowGradient:
        if isinstance(part, TablePart):
            return self._of_table(self._tables[part.index], place)
        if how == PACKED:
            return unpack(place, part, self._dtype(part), self._arrays.pop(0))
        came = self._arrays.pop(0) if how == ROWS else None
        values = None if place else self._arrays.pop(0)
        if came is None:
            return self._values(part, part.shape, place, values, how)
        rows = checked(part, came)
        found = self._values(part, (len(rows), *part.shape[1:]), place, values, how)
        return row_gradient(rows, found.reshape(len(rows), part.row_size))

    def _of_table(self, table: KeyedTable, place: list[Any]) -> RowGradient:
        """The gradient of a part of a keyed table, in which the rows are codes."""
        came, values = self._arrays.pop(0), None if place else self._arrays.pop(0)
        codes = table.check_codes(came)
        return row_gradient(codes, self._values(table.part, (len(codes), table.dim), place, values, ROWS))

    def _dtype(self, part: Part | TablePart) -> np.dtype[Any]:
        if isinstance(part, TablePart):
            return self._tables[part.index].dtype
        return np.dtype(self._layout.arenas[self._layout.place[part.index][0]].dtype)

    def _values(
        self, part: Part | TablePart, shape: tuple[int, ...], place: list[Any], values: Array | None, how: int
    ) -> Array:
        """The array that came, or that lies at `place`. An array that came in a message belongs to the receiver."""
        dtype = self._dtype(part)
        if values is None:
            count = int(np.prod(shape))
            self.borrowed = True
            return self._session.run(place_of(place), count * dtype.itemsize).view(dtype).reshape(shape)
        if values.dtype != dtype:
            raise ValueError(f"the {_what(how)} of {part.name} is {values.dtype}; the variable is {dtype}")
        if values.shape != shape:
            wanted = "its row numbers want" if how == ROWS else "the variable has"
            raise ValueError(f"the {_what(how)} of {part.name} has shape {values.shape}; {wanted} {shape}")
        return writable(values) if how == ROWS else values.copy()


def _what(how: int) -> str:
    return "value" if how == VALUE else "gradient"


def _described(
    described: Any, layout: ShardLayout, tables: Mapping[int, KeyedTable]
) -> tuple[Part | TablePart, int, list[Any]]:
    fits = isinstance(described, list) and tuple(map(type, described)) == (int, int, list)
    if fits and described[0] in tables and described[1] == ROWS:
        return tables[described[0]].part, ROWS, described[2]
    if not fits or described[0] not in layout.place or described[1] not in (DENSE, ROWS, PACKED, VALUE):
        raise ProtocolError(f"{described!r:.100} describes no part of this shard")
    index, how, place = described
    arena = layout.arenas[layout.place[index][0]]
    if arena.optimizer is None and how != VALUE:
        raise ProtocolError(f"part {index} is not trained; it takes no gradient")
    return next(p for p in arena.parts if p.index == index), how, place


def row_gradient(rows: Array, values: Array) -> RowGradient:
    """A gradient of rows that `checked` returned, values (n, dim), in which duplicates are added up in the order in
    which they come. Sums of halves are float32."""
    if row_kernels.rises(rows):
        return RowGradient(rows, values)
    unique, sums, _ = row_kernels.sum_duplicate_rows(rows, widened(values))
    return RowGradient(unique, sums)


def checked(part: Part, rows: Array) -> Array:
    """Row numbers as they came, int64 and in private memory. Raises ValueError that says what was got and wanted."""
    if not part.shape:
        raise ValueError(f"{part.name} is a scalar, which has no rows")
    if rows.dtype not in (np.int32, np.int64) or rows.ndim != 1:
        wanted = "int32 or int64 of shape (n,)"
        raise ValueError(f"row numbers of {part.name} are {wanted}, got indices {rows.dtype} {rows.shape}")
    private: Array = rows.astype(np.int64)
    if not row_kernels.rows_in_range(private, part.shape[0]):
        raise ValueError(out_of_range(part.name, part.shape[0], private))
    return private
