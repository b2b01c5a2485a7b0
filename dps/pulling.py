"""A session's pulls: one transfer per ps, restarted when a new run epoch begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dps.actors.messages import Failed, Waiting
from dps.actors.requests import Request
from dps.connection import SLICE_S, Connection
from dps.errors import Aborted, DeadlineExceeded
from dps.protocol import Lookup, Pull, Rows
from dps.transport.wire import Array, Message
from dps.variables.layout import check_rows
from dps.variables.transfers import PullTransfer


class PullOp:
    """One pull. `names`: variable indices, None for all; `conditional`: unchanged shards move nothing."""

    def __init__(self, names: list[int] | None, conditional: bool, launch: Callable[[], Shards]) -> None:
        self.names, self.conditional = names, conditional
        self._launch = launch
        self._shards: Shards | None = None

    def start(self) -> None:
        """Send what is not sent yet; after a rollback all of it again."""
        if self._shards is None or self._shards.epoch_over():
            if self._shards is not None:
                self._shards.drop()
            self._shards = self._launch()
        self._shards.start_more()

    @property
    def transfers(self) -> dict[int, PullTransfer]:
        assert self._shards is not None
        return self._shards.transfers

    @property
    def complete(self) -> bool:
        if self._shards is None:
            return False
        self._shards.start_more()
        return self._shards.complete

    def requests(self) -> list[Request]:
        return [t.request for t in self.transfers.values()]

    def waits_for(self) -> list[str]:
        return [t.waits_for for t in self.transfers.values() if not t.complete]

    def raise_error(self) -> None:
        for transfer in self.transfers.values():
            if transfer.error is not None:
                raise transfer.error

    def views(self, cache: Mapping[int, Array] | None = None) -> dict[int, Array]:
        """The parts that were pulled, by index; shards that were not newer come as copies from `cache`."""
        found: dict[int, Array] = {}
        for ps, transfer in self.transfers.items():
            run = transfer.run if transfer.newer else (cache or {})[ps].copy()
            if run is not None:
                found |= transfer.layout.views(run)
        return found

    def kept_runs(self, cache: Mapping[int, Array]) -> dict[int, Array]:
        """Private copies of the runs, for the next conditional pull."""
        return {ps: t.run.copy() if t.newer and t.run is not None else cache[ps] for ps, t in self.transfers.items()}


class Shards:
    """The transfers of one pull in one run epoch. In bounded mode the step ps answers before the others are asked."""

    def __init__(self, connection: Connection, messages: dict[int, Pull]) -> None:
        self.connection, self.incarnation = connection, connection.caller.incarnation
        self._messages = messages
        self.transfers: dict[int, PullTransfer] = {}

    def drop(self) -> None:
        """Forget the requests; their late answers are for nobody."""
        for transfer in self.transfers.values():
            self.connection.caller.drop(transfer.request)

    def epoch_over(self) -> bool:
        return self.incarnation != self.connection.caller.incarnation

    @property
    def complete(self) -> bool:
        return not self._messages and all(t.complete for t in self.transfers.values())

    def start_more(self) -> None:
        connection = self.connection
        first = connection.step_ps
        gate = connection.bounded and first in self._messages
        waiting = connection.bounded and first in self.transfers and not self.transfers[first].complete
        if waiting:
            return
        for ps in [first] if gate else list(self._messages):
            message = self._messages.pop(ps)
            self.transfers[ps] = PullTransfer(
                connection.caller, connection.refs[ps], ps, connection.plan.layouts[ps], message, connection.aborter()
            )


def pull_shards(
    connection: Connection, names: list[int] | None, newer_than: Mapping[int, int], after: Mapping[int, int], clock: int
) -> Shards:
    """A pull from all ps, or from those that have the named variables."""
    messages: dict[int, Pull] = {}
    plan = connection.plan
    min_step = connection.local_step if connection.sync else 0
    for ps in plan.ps:
        parts = [] if names is None else [p.index for i in names for p in plan.parts_of[i] if p.ps == ps]
        if names is None or parts:
            messages[ps] = Pull(
                connection.epoch, 0 if after else min_step, after.get(ps, 0), clock, newer_than.get(ps, -1), parts
            )
    if connection.bounded and connection.step_ps in messages:
        messages = {connection.step_ps: messages.pop(connection.step_ps), **messages}
    return Shards(connection, messages)


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
