"""Reads a push of some variables, gradients and values to set, from its message and its session's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.errors import NOT_FINITE, ProtocolError
from dps.protocol import DENSE, LISTED, PACKED, ROWS, VALUE, Push
from dps.ps.intake.borrowed import Borrowed, writable
from dps.ps.intake.rowlists import row_gradient
from dps.ps.intake.unpacking import unpack
from dps.ps.store.gradients import RowGradient, is_finite
from dps.transport.wire import Array
from dps.variables.plan import Part, ShardLayout

Gradients = dict[int, Array | RowGradient]


def unknown_list(piece: Push, session: Borrowed) -> int:
    """The number of a list that a push of some variables names and that is not here (any more); 0 if there is none."""
    for described in piece.parts:
        if isinstance(described, list) and len(described) == 4 and described[1] == LISTED:
            part, _, number, _ = described
            if type(part) is int and type(number) is int and session.rows.get(part, number) is None:
                return number
    return 0


class Parts:
    """Reads one message. `problem` is why the push will be refused, `borrowed` whether values stay in the session's
    memory, which is read in place."""

    def __init__(self, piece: Push, layout: ShardLayout, session: Borrowed, check_finite: bool) -> None:
        """Raises ProtocolError for what describes no gradients of this shard, Unavailable for memory out of reach."""
        self.gradients: Gradients = {}
        self.values: dict[int, Array] = {}
        """What parts are set to, by their index."""
        self.problem = ""
        self.borrowed = False
        self._number, self._layout, self._session = piece.number, layout, session
        self._arrays = list(piece.arrays)
        parts = [_described(described, layout) for described in piece.parts]
        self.assigns = bool(parts) and all(how == VALUE for _, how, _, _ in parts)
        """Whether the push has values to set, and no gradient."""
        self._listed = {  # before lists that come now push others out
            (part.index, number): session.rows.get(part.index, number)
            for part, how, number, _ in parts
            if how == LISTED
        }
        for part, how, number, place in parts:
            found: Gradients | dict[int, Array] = self.values if how == VALUE else self.gradients
            if len(self._arrays) < (how == ROWS) + (not place or how == PACKED) or part.index in found:
                raise ProtocolError(f"push {self._number} has too few arrays for its parts, or a part twice")
            try:
                gradient = self._gradient(part, how, number, place)
                if check_finite and not is_finite(gradient.values if isinstance(gradient, RowGradient) else gradient):
                    raise ValueError(f"the {_what(how)} of {part.name} {NOT_FINITE}")
                found[part.index] = gradient  # type: ignore[assignment]  # a value is an array
            except ValueError as error:
                self.problem = self.problem or str(error)
        if self._arrays:
            raise ProtocolError(f"push {self._number} has {len(self._arrays)} arrays too many")

    def _gradient(self, part: Part, how: int, number: int, place: list[Any]) -> Array | RowGradient:
        if how == PACKED:
            return unpack(place, part, self._dtype(part), self._arrays.pop(0))
        came = self._arrays.pop(0) if how == ROWS else None
        values = None if place else self._arrays.pop(0)
        if how in (DENSE, VALUE):
            return self._values(part, part.shape, place, values, how)
        if came is None:
            rows = self._listed[part.index, number]
            if rows is None:
                raise ProtocolError(f"push {self._number} names row list {number} of {part.name}, which is not known")
        else:
            rows = self._session.rows.take(part, number, came)
        found = self._values(part, (len(rows.rows), *part.shape[1:]), place, values, how)
        return row_gradient(rows, found.reshape(len(rows.rows), part.row_size))

    def _dtype(self, part: Part) -> np.dtype[Any]:
        return np.dtype(self._layout.arenas[self._layout.place[part.index][0]].dtype)

    def _values(self, part: Part, shape: tuple[int, ...], place: list[Any], values: Array | None, how: int) -> Array:
        """What came, or lies where `place` says; what comes in a message is the receiver's."""
        dtype = self._dtype(part)
        if values is None:
            count = int(np.prod(shape))
            self.borrowed = True
            return self._session.run(place, count * dtype.itemsize).view(dtype).reshape(shape)
        if values.dtype != dtype:
            raise ValueError(f"the {_what(how)} of {part.name} is {values.dtype}; the variable is {dtype}")
        if values.shape != shape:
            wanted = "its row numbers want" if how in (ROWS, LISTED) else "the variable has"
            raise ValueError(f"the {_what(how)} of {part.name} has shape {values.shape}; {wanted} {shape}")
        return writable(values) if how in (ROWS, LISTED) else values.copy()


def _what(how: int) -> str:
    return "value" if how == VALUE else "gradient"


def _described(described: Any, layout: ShardLayout) -> tuple[Part, int, int, list[Any]]:
    fits = isinstance(described, list) and len(described) == 4 and all(type(n) is int for n in described[:3])
    if not fits or described[0] not in layout.place or described[1] not in (DENSE, ROWS, LISTED, PACKED, VALUE):
        raise ProtocolError(f"{described!r:.100} describes no part of this shard")
    index, how, number, place = described
    if type(place) is not list or number < 0:
        raise ProtocolError(f"{described!r:.100} describes no part of this shard")
    arena = layout.arenas[layout.place[index][0]]
    if arena.optimizer is None and how != VALUE:
        raise ProtocolError(f"part {index} is not trained; it takes no gradient")
    return next(p for p in arena.parts if p.index == index), how, number, place
