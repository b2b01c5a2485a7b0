"""A session's pulls: one transfer per ps, restarted when a new run epoch begins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dps.actors.requests import Request
from dps.connection import Connection
from dps.protocol import Pull
from dps.pushing import Pushes
from dps.reply import Version
from dps.transport.wire import Array
from dps.variables.layout import assemble
from dps.variables.transfers import PullTransfer
from dps.variables.tree import builder, leaves, nested
from dps.waiting import Waiter


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
            elif transfer.held is not None:
                found |= transfer.layout.views_of(transfer.held)
        return found

    def release(self) -> None:
        """Give what is held in place back to the ps."""
        for transfer in self._shards.transfers.values() if self._shards is not None else ():
            if transfer.held is not None:
                transfer.release()

    def forget_runs(self) -> None:
        """The values are the caller's alone from here on (a transfer and its request would keep each other alive)."""
        for transfer in self.transfers.values():
            transfer.run = None

    def kept_runs(self, cache: Mapping[int, Array]) -> dict[int, Array]:
        """Private copies of the runs, for the next conditional pull."""
        return {ps: t.run.copy() if t.newer and t.run is not None else cache[ps] for ps, t in self.transfers.items()}


class Recycled:
    """Runs of bytes for pulled values: one that nothing refers to any more is used again.

    Fresh memory costs as much as the copy into it: each of its pages has to be found and cleared first.
    """

    KEPT = 4
    _OWN_REFERENCES = 3  # the list's, the loop's and getrefcount's

    def __init__(self) -> None:
        self._runs: list[Array] = []

    def take(self, nbytes: int) -> Array:
        """A run, its bytes undefined, for the caller to keep for as long as it likes."""
        for run in self._runs:
            if len(run) == nbytes and sys.getrefcount(run) <= self._OWN_REFERENCES:
                return run
        made: Array = np.empty(nbytes, np.uint8)
        self._runs = [*self._runs[1 - self.KEPT :], made]
        return made


class Shards:
    """The transfers of one pull in one run epoch. In bounded mode the step ps answers before the others are asked."""

    def __init__(
        self, connection: Connection, messages: dict[int, Pull], take: Callable[[int], Array], hold: bool
    ) -> None:
        self.connection, self.incarnation = connection, connection.caller.incarnation
        self._messages, self._take, self._hold = messages, take, hold
        self.transfers: dict[int, PullTransfer] = {}

    def drop(self) -> None:
        """Forget the requests; their late answers are for nobody."""
        for transfer in self.transfers.values():
            transfer.drop()

    def epoch_over(self) -> bool:
        return self.incarnation != self.connection.caller.incarnation

    @property
    def complete(self) -> bool:
        return not self._messages and all(t.complete for t in self.transfers.values())

    def start_more(self) -> None:
        if not self._messages:
            return
        connection = self.connection
        first = connection.step_ps
        gate = connection.bounded and first in self._messages
        waiting = connection.bounded and first in self.transfers and not self.transfers[first].complete
        if waiting:
            return
        for ps in [first] if gate else list(self._messages):
            message = self._messages.pop(ps)
            start = PullTransfer if connection.compression is None else connection.compression.pull
            self.transfers[ps] = start(
                connection.caller, connection.refs[ps], ps, connection.plan.layouts[ps], message, connection.aborter(),
                connection.lanes[ps], self._take, self._hold,
            )  # fmt: skip


def pull_shards(
    connection: Connection, names: list[int] | None, newer_than: Mapping[int, int], after: Mapping[int, int],
    clock: int, patience_ms: int, take: Callable[[int], Array], hold: bool,
) -> Shards:  # fmt: skip
    """A pull from all ps, or from those that have the named variables; see PullTransfer for `take` and `hold`."""
    messages: dict[int, Pull] = {}
    plan = connection.plan
    min_step = connection.local_step if connection.sync else 0
    for ps in plan.ps:
        parts = [] if names is None else [p.index for i in names for p in plan.parts_of[i] if p.ps == ps]
        if names is None or parts:
            messages[ps] = Pull(
                connection.epoch, 0 if after else min_step, after.get(ps, 0), clock, newer_than.get(ps, -1), parts,
                patience_ms, connection.lanes[ps].on and not parts,
            )  # fmt: skip
    if connection.bounded and connection.step_ps in messages:
        messages = {connection.step_ps: messages.pop(connection.step_ps), **messages}
    return Shards(connection, messages, take, hold)


class Pulls:
    """The pulls of a session: what they ask for, and the user's nested arrays out of what they bring."""

    def __init__(self, connection: Connection, waiter: Waiter, pushes: Pushes, params: Any) -> None:
        """`params`: the user's nesting; None for a reader, which gets that of the names."""
        self._connection, self._waiter, self._pushes = connection, waiter, pushes
        self.build = builder(params if params is not None else nested([v.name for v in connection.plan.variables]))
        self.version = Version(connection.epoch, ())
        self._cache: dict[int, Array] = {}
        self._recycled = Recycled()

    def roll_back(self) -> None:
        """A new run epoch has begun: nothing is known of its values."""
        self._cache = {}

    def start(self, names: Sequence[str] | None, newer_than: Version | None, after: bool, hold: bool = False) -> PullOp:
        """A pull; `after`: it is answered when the pushes on their way have been applied. Does not block.

        `hold`: what ps on this machine have is not copied; see PullTransfer.
        """
        self._waiter.check_open()
        known = None if names is None else self._indices(names)
        return PullOp(known, newer_than is not None, lambda: self._launch(known, newer_than, after, hold))

    @property
    def may_follow_a_push(self) -> bool:
        """Whether a pull may be sent right behind a push: not where a token can come before the push is applied."""
        update = self._connection.settings["update"]
        if update["mode"] == "sync":
            return update["replicas_to_aggregate"] is None and not update["initial_tokens"]
        return not (self._connection.bounded and len(self._connection.plan.ps) > 1)

    def _launch(self, names: list[int] | None, newer_than: Version | None, after: bool, hold: bool) -> Shards:
        """Ask the ps, with what holds in the run epoch of now: a pull that outlives a rollback is launched again."""
        connection, pushes = self._connection, self._pushes
        counters = dict(newer_than.counters) if newer_than and newer_than.epoch == connection.epoch else {}
        behind = after and pushes.under_way
        clock = pushes.acknowledged + (1 if behind else 0)
        numbers = pushes.numbers if behind else {}
        patience_ms = self._waiter.patience_ms
        return pull_shards(connection, names, counters, numbers, clock, patience_ms, self._recycled.take, hold)

    def _indices(self, names: Sequence[str]) -> list[int]:
        by_name = self._connection.plan.by_name
        unknown = [n for n in names if n not in by_name]
        if unknown:
            raise ValueError(f"no variables {unknown}; there are {list(by_name)[:10]}")
        return [by_name[n] for n in names]

    def finish(self, operation: PullOp, out: Any, timeout: float | None) -> Any:
        """Wait for a pull; the nested arrays, None where nothing was newer. `out`: arrays to fill and return."""
        self._waiter.wait(operation, timeout, "a pull")
        connection = self._connection
        if not operation.conditional:
            views = operation.views()
        else:
            if not any(t.newer for t in operation.transfers.values()):
                return None
            missing = [ps for ps, t in operation.transfers.items() if not t.newer and ps not in self._cache]
            if missing:
                return self.finish(self.start(None, None, after=False), out, timeout)
            views = operation.views(self._cache)
            self._cache = operation.kept_runs(self._cache)
        if connection.compression is not None:
            connection.compression.pulled(operation.transfers.values(), whole=operation.names is None)
        if operation.names is None:
            counters = {ps: t.counter for ps, t in operation.transfers.items()}
            self._pushes.pulled |= counters
            self.version = Version(connection.epoch, tuple(sorted(counters.items())))
        connection.step = max(connection.step, *(t.step for t in operation.transfers.values()))
        operation.forget_runs()
        tree = self.tree(views, operation.names)
        return tree if out is None else _filled(out, tree)

    @contextmanager
    def held(self, timeout: float | None) -> Iterator[Any]:
        """The nested arrays, read-only; what ps on this machine have is read where it lies, inside the block."""
        operation = self.start(None, None, after=False, hold=True)
        try:
            tree = self.finish(operation, None, timeout)
            for _, array in leaves(tree):
                array.flags.writeable = False
            yield tree
        finally:
            operation.release()

    def tree(self, views: dict[int, Array], names: list[int] | None) -> Any:
        """The user's nesting, or with `names` nested dicts, over the parts in `views`."""
        plan = self._connection.plan
        leaf = assemble(plan, views, plan.by_name)
        if names is None:
            return self.build(leaf)
        return builder(nested([plan.variables[i].name for i in names]))(leaf)


def _filled(out: Any, tree: Any) -> Any:
    """Copy values into the caller's arrays; ValueError where one does not fit."""
    targets = dict(leaves(out))
    for name, array in leaves(tree):
        target = targets.get(name)
        if not isinstance(target, np.ndarray) or target.shape != array.shape or target.dtype != array.dtype:
            got = (
                "nothing"
                if target is None
                else f"{getattr(target, 'dtype', type(target))} {getattr(target, 'shape', '')}"
            )
            raise ValueError(f"out has {got} for {name}; wanted an array of {array.dtype} {array.shape}")
        target[...] = array
    return out
