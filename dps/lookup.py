"""Rows of a variable, asked from the ps that have them."""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.actors.messages import Failed, Waiting
from dps.actors.requests import Request
from dps.connection import SLICE_S, Connection
from dps.errors import Aborted, DeadlineExceeded
from dps.protocol import Lookup, Rows
from dps.transport.wire import Array, Message
from dps.variables.layout import check_rows


def lookup_rows(connection: Connection, name: str, rows: Any, deadline: float) -> Array:
    """Rows of a variable from the ps that have them, in the caller's order. Raises Aborted for a new epoch."""
    plan = connection.plan
    if name not in plan.by_name:
        raise ValueError(f"no variable {name!r}; there are {list(plan.by_name)[:10]}")
    spec = plan.variables[plan.by_name[name]]
    indices = np.asarray(rows)
    if indices.ndim != 1 or (indices.dtype.kind not in "iu" and len(indices)):
        raise ValueError(f"rows are integers of shape (n,), got {indices.dtype} {indices.shape}")
    if not spec.shape:
        raise ValueError(f"{name} is a scalar; it has no rows")
    check_rows(spec, indices)
    indices = indices.astype(np.int64)
    out = np.empty((len(indices), *spec.shape[1:]), spec.dtype)
    min_step = connection.local_step if connection.sync else 0
    waits: list[tuple[Request, _Found]] = []
    for part in plan.parts_of[plan.by_name[name]]:
        inside = np.flatnonzero((indices >= part.row0) & (indices < part.row0 + part.shape[0]))
        if len(inside):
            found = _Found(connection, out, inside)
            message = Lookup(connection.epoch, min_step, part.index, (indices[inside] - part.row0,))
            waits.append((connection.caller.start(connection.refs[part.ps], message, found.feed), found))
    while not connection.caller.wait(
        [r for r, _ in waits], min(SLICE_S, max(0.0, deadline - connection.runtime.now()))
    ):
        connection.check_node()
        connection.look_at_chief()
        if connection.aborted:
            raise Aborted("the run epoch is over")
        if connection.runtime.now() >= deadline:
            raise DeadlineExceeded(f"looking up rows of {name}: {connection.silent() or 'no answer'}")
    for _, found in waits:
        if found.error is not None:
            raise found.error
    return out


class _Found:
    """The rows of one part, put where they belong."""

    def __init__(self, connection: Connection, out: Array, inside: Array) -> None:
        self._connection, self._out, self._inside = connection, out, inside
        self.error: Exception | None = None

    def feed(self, message: Message) -> bool:
        if isinstance(message, Waiting):
            return False
        if isinstance(message, Failed):
            self.error = message.exception()
            return True
        if isinstance(message, Rows) and len(message.arrays) == 1:
            self._out[self._inside] = message.arrays[0]
            return True
        return False
