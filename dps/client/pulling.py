"""A session's pulls: one transfer per ps, restarted when a new run epoch begins."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from operator import is_
from sys import getrefcount
from typing import Any

import numpy as np

from dps.client.assembly import Assembly
from dps.client.connection import Connection
from dps.client.lanes import Lent, Releasable
from dps.client.push_operations import PushOp
from dps.client.pushing import Pushes
from dps.client.transfers import PullTransfer, copy_steadily
from dps.client.waiting import Operation, Waiter
from dps.messages.replies import Version
from dps.messages.sessions import Pull
from dps.transport.message import changed
from dps.transport.wire import Array
from dps.variables.plan import Part, Plan, ShardLayout
from dps.variables.tree import Nesting, described, is_module, is_tensor, leaves, list_names, memory_of_tensor, nested


class PullMemory:
    """Memory for the values of one pull: a run of bytes for each shard."""

    def __init__(self, layouts: Mapping[int, ShardLayout]) -> None:
        """Its bytes are undefined at first."""
        self.layouts = layouts
        self._runs = {ps: np.empty(layout.nbytes, np.uint8) for ps, layout in layouts.items()}
        self.arenas = {ps: layout.memories(self._runs[ps]) for ps, layout in layouts.items()}
        """The bytes of each arena of a shard. They are kept here: nobody else may."""
        self.parts = [part for ps, layout in layouts.items() for part in layout.listed(self.arenas[ps])]
        """Those of all shards. They are kept here: give others views of them."""
        self._references = sum(map(getrefcount, self._runs.values()))
        """The reference count of all runs while nobody else refers to them; each view of a run refers to it."""

    def run(self, ps: int) -> Array:
        """The bytes of a shard."""
        return self._runs[ps]

    def tree(self, assembly: Assembly) -> Any:
        """The values of all shards in the user's nesting, for the caller to keep."""
        return assembly.views(self.parts)

    @property
    def is_free(self) -> bool:
        """Whether nobody else refers to its bytes: each array of values, and each slice of one, does."""
        return sum(map(getrefcount, self._runs.values())) == self._references


OWN_REFERENCES = next(map(getrefcount, [object()]))
"""The reference count, in a `map`, of an object that only one list or dict has: as this Python counts it."""


class Recycled:
    """The memory of a session's pulls."""

    KEPT = 4

    def __init__(self) -> None:
        self._made: list[PullMemory] = []

    def take(self, layouts: Mapping[int, ShardLayout]) -> PullMemory:
        """Memory with undefined bytes. It is the caller's for as long as the caller refers to it."""
        for references, made in zip(map(getrefcount, self._made), self._made, strict=True):  # counted first
            if references == OWN_REFERENCES and made.layouts == layouts and made.is_free:
                return made
        self._made = [*self._made[1 - self.KEPT :], PullMemory(layouts)]
        return self._made[-1]

    def forget(self) -> None:
        """Drop all: there is another plan."""
        self._made = []


MOST_PARTS = 256
"""Up to this number of parts, values stay in the messages that bring them; more are faster to assemble in one run."""

NO_VALUES = 1 << 62
"""No shard has a version above this one: whoever asks for a newer one gets no values."""
Kept = dict[int, tuple[int, Array]]
"""For each ps the counter of a version, and its values as a run of bytes."""


class PullOp(Operation):
    """One pull: a transfer per ps. `names`: of variables; None for all.

    `conditional`: shards that have not changed are not sent. `launch(again)` makes the messages for the current run
    epoch, again after a rollback. `hold`: values in the memory of a ps stay there, and all are read-only. `behind`: the
    push of the same step, whose result may bring the values.
    """

    def __init__(
        self, connection: Connection, names: list[str] | None, conditional: bool,
        launch: Callable[[bool], dict[int, Pull]], take: Callable[[Collection[int]], PullMemory], hold: bool,
        behind: PushOp | None,
    ) -> None:  # fmt: skip
        self.names, self.conditional = names, conditional
        self._connection, self._launch, self._take, self._hold = connection, launch, take, hold
        self._memory: PullMemory | None = None
        self._behind = behind
        self._incarnation = -1
        self._messages: dict[int, Pull] = {}
        """The messages that are not sent yet."""
        self.transfers: dict[int, PullTransfer] = {}

    def start(self) -> None:
        """Send the messages that are not sent yet; after a rollback all of them again. They leave at the next flush.
        Nothing is sent while the session has to join again: `Waiter.wait` sees to that."""
        if not self._connection.membership.entered:
            return
        if self._incarnation != self._connection.caller.incarnation:
            self.drop()
            self.transfers, self._memory = {}, None
            self._messages = self._launch(self._incarnation >= 0)
            self._incarnation = self._connection.caller.incarnation
        if self._messages:
            self._start_more()

    def _start_more(self) -> None:
        """Send what may be sent: where the step ps lets the session read, it answers before the others are asked."""
        connection = self._connection
        first = connection.agreed.step_ps
        if connection.agreed.mode.asks_step_ps_first:
            due = [first] if first in self._messages else list(self._messages)
            if first not in due and first in self.transfers and not self.transfers[first].complete:
                return
        else:
            due = list(self._messages)
        for ps in due:
            pull = self._messages[ps]
            packing = None if pull.averages or pull.published else connection.compression
            make = PullTransfer if packing is None else packing.pull
            push = None if self._behind is None else self._behind.transfers.get(ps)
            if ps in self.transfers:  # Ctrl-C has come while it began
                self.transfers[ps].drop()
            self.transfers[ps] = make(
                connection.peers[ps], pull, self.run, self._hold,
                push if push is not None and push.lends and not push.complete else None,
            )  # fmt: skip
            self.transfers[ps].begin()  # once it is known, for after Ctrl-C it has to be dropped
            del self._messages[ps]
        self._behind = None

    @property
    def complete(self) -> bool:
        if self._messages:
            self._start_more()
            if self._messages:
                return False
        for transfer in self.transfers.values():
            if not transfer.complete:
                return False
        return self._incarnation >= 0

    def requests(self) -> Iterable[PullTransfer]:
        return self.transfers.values()

    def run(self, ps: int) -> Array:
        """Memory for the values of a shard."""
        if self._memory is None:
            self._memory = self._take({*self.transfers, *self._messages})
        return self._memory.run(ps)

    def values(self, assembly: Assembly) -> Any:
        """The values of a whole pull in the user's nesting."""
        copied = all(isinstance(transfer.values, np.ndarray) for transfer in self.transfers.values())
        if copied and self._memory is not None and not self._hold:
            return self._memory.tree(assembly)
        return assembly.values(self._parts())

    def _parts(self) -> list[Array]:
        """All parts, shard after shard, in the order of their runs."""
        found: list[Array] = []
        for ps, layout in self._connection.agreed.plan.layouts.items():
            values, hold = self.transfers[ps].values, self.transfers[ps].hold
            if hold is not None:
                found += map(np.ndarray.view, hold.parts)
            elif isinstance(values, np.ndarray):
                found += layout.listed(layout.memories(values))
            else:
                found += values or ()
        if self._hold:
            for part in found:
                part.flags.writeable = False
        return found

    def part(self, part: Part) -> Array:
        """A part that was asked for."""
        transfer = self.transfers[part.ps]
        assert isinstance(transfer.values, np.ndarray), "parts are not held, and come without a condition"
        return transfer.peer.layout.view(transfer.values, part)

    def fill(self, kept: Kept) -> None:
        """Copy the values of shards that have changed to those that are kept, and of all others from there."""
        for ps, transfer in self.transfers.items():
            if transfer.newer:
                assert isinstance(transfer.values, np.ndarray), "what comes with a condition is copied"
                kept[ps] = transfer.counter, transfer.values.copy()
            else:
                transfer.values = self.run(ps)
                transfer.values[:] = kept[ps][1]

    def drop(self) -> None:
        """Forget the requests; late answers are ignored."""
        for transfer in self.transfers.values():
            transfer.drop()

    def release(self) -> None:
        """Release what is held, and forget the requests that are not answered: a late answer lends nothing."""
        for transfer in self.transfers.values():
            if transfer.complete:
                transfer.release()
            else:
                transfer.drop()

    @property
    def is_silent(self) -> bool:
        """Whether `release` sends no message, so that any thread may call it."""
        return all(t.complete and t.peer.lane.is_silent(t.peer.layout.nbytes) for t in self.transfers.values())

    def forget(self) -> None:
        """Drop the references to the values: they are the caller's."""
        self._memory = None
        for transfer in self.transfers.values():
            transfer.values = None


class Pulls:
    """The pulls of a session: makes their messages, and the user's nested arrays from the answers."""

    def __init__(self, connection: Connection, waiter: Waiter, pushes: Pushes) -> None:
        self._connection, self._waiter, self._pushes = connection, waiter, pushes
        self.read: tuple[int, dict[int, int]] = connection.membership.epoch, {}
        """The run epoch and each shard's counter of the last whole pull."""
        self.left: list[Sequence[Releasable]] = []
        """What blocks held that ended in another thread's call, by Ctrl-C, or without an end. The next call releases
        it."""
        self._cache: Kept = {}
        self._recycled = Recycled()
        runtime = connection.home.runtime
        self._copy = partial(copy_steadily, runtime) if runtime.tuning.block_nbytes else np.copyto
        self._apart: dict[str, weakref.ref[Any]] = {}
        """The arrays and tensors of the last `out`, by name, no two of which share memory."""

    def roll_back(self) -> None:
        """A new run epoch has begun: forget all values."""
        self._cache = {}
        self._recycled.forget()

    def start(
        self, names: Sequence[str] | None, newer_than: Version | None, after: bool, hold: bool = False,
        behind: PushOp | None = None, leads: bool = False, averages: bool = False, published: int = 0,
    ) -> PullOp:  # fmt: skip
        """Make a pull. Does not block.

        `after`: it is answered once the pushes in flight have been applied. `hold`, `behind`: as of PullOp. `leads`:
        the pull is sent right before a push to all ps, and waits for that push, too. `averages`: moving averages are
        wanted. `published`: the number of the published version that is wanted.
        """
        self._waiter.check_open()
        if not isinstance(newer_than, Version | None):
            raise TypeError(f"pull: got if_newer_than={newer_than!r:.80}, wanted a session.version")
        by_name = self._connection.agreed.plan.by_name
        wanted = None if names is None else list_names(names)
        if tables := [name for name in wanted or () if name in self._connection.agreed.plan.tables_by_name]:
            raise ValueError(f"pull: {tables[0]} is a keyed table, of which some rows are read: use session.lookup")
        if unknown := [name for name in wanted or () if name not in by_name]:
            raise ValueError(f"pull: no variables {unknown}; there are {list(by_name)[:10]}")

        def launch(again: bool) -> dict[int, Pull]:  # after a rollback it leads nothing
            made = self._launch(wanted, newer_than, after, int(leads and not again), averages)
            own = {"min_step": 0, "after": 0, "shared": False, "published": published}
            if published:
                return {ps: changed(pull, **own) for ps, pull in made.items()}
            return made if averages else self._with_step_ps(made)

        def take(asked: Collection[int]) -> PullMemory:  # not of other ps, whose shards may be huge
            layouts = self._connection.agreed.plan.layouts
            return self._recycled.take({ps: layout for ps, layout in layouts.items() if ps in asked})

        return PullOp(self._connection, wanted, newer_than is not None, launch, take, hold, behind)

    def places(self, out: Any, names: Sequence[str] | None) -> dict[str, Array]:
        """The memory of the caller's arrays and CPU tensors for a pull of these names, None: of all variables;
        ValueError where one does not fit, or two share memory. Nothing is written."""
        if is_module(out):
            raise ValueError(f"out is a module of PyTorch ({type(out).__name__}); pass its state_dict()")
        assembly, found, targets = self._pushes.assembly, dict[str, Array](), dict[str, Any]()
        plan, given = assembly.plan, assembly.named(out)
        for name in assembly.names if names is None else names:
            if name not in plan.by_name:  # the pull says so
                continue
            targets[name] = place = given.get(name)
            if is_tensor(place):
                place = memory_of_tensor(place, name)
            _, dtype, shape = plan.described[plan.by_name[name]]
            if not isinstance(place, np.ndarray) or place.shape != shape or place.dtype != dtype:
                raise ValueError(f"out has {described(place)} for {name}; wanted an array of {dtype} {shape}")
            if not place.flags.carray:
                check_fillable(f"out for {name}", place)
            found[name] = place
        if [*targets] != [*self._apart] or not all(map(is_, targets.values(), [ref() for ref in self._apart.values()])):
            check_apart(plan, out)
            self._apart = {name: weakref.ref(target) for name, target in targets.items()}
        return found

    def fill(
        self, places: Mapping[str, Array], values: Any, replaces: Callable[[str, Array, Array], None] | None = None
    ) -> None:
        """Copy nested values to their places. `replaces(name, place, value)` is called before a value is written."""
        for name, value in self._pushes.assembly.named(values).items():
            if value is None:  # in place of a keyed table
                continue
            if replaces is not None:
                replaces(name, places[name], value)
            places[name][...] = value

    @property
    def version(self) -> Version:
        """The version that the last whole pull read."""
        epoch, counters = self.read
        return Version(epoch, tuple(sorted(counters.items())))

    def release_left(self) -> None:
        """Release what blocks have left."""
        while self.left:
            for each in self.left[0]:  # another thread may add one at the end
                each.release()
            del self.left[0]  # only now: after Ctrl-C the next call releases the others

    def prepared(self, assembly: Assembly) -> tuple[PullMemory, Any]:
        """Memory for the values of all shards, and the user's nested arrays in it; None if they can be made only of
        what it holds, because variables have several parts."""
        plan = assembly.plan
        memory = self._recycled.take(plan.layouts)
        return memory, None if plan.is_split else assembly.views(memory.parts)

    def copied(self, lent: Sequence[Lent], memory: PullMemory, tree: Any) -> Any:
        """The nested arrays of a copy of these versions, which are released. `memory`, `tree`: as `prepared` returns
        them."""
        for peer, request, _, _, (memories, _) in lent:
            for target, values in zip(memory.arenas[peer.ps], memories, strict=True):
                self._copy(target, values)
            lane = peer.lane
            if lane.reading or lane.tells_at_once:  # else the next message tells that this version is not read
                lane.release(request, peer.layout.nbytes)
        return memory.tree(self._pushes.assembly) if tree is None else tree

    @property
    def may_come_with_a_push(self) -> bool:
        """Whether a ps on this machine may lend values with the result of a push."""
        return self._connection.agreed.mode.push_lends_values and self._connection.compression is None

    def _launch(
        self, names: list[str] | None, newer_than: Version | None, after: bool, to_come: int, averages: bool
    ) -> dict[int, Pull]:
        """The messages of a pull for the current run epoch. `to_come`: how many pushes leave right after it."""
        connection, pushes = self._connection, self._pushes
        counters = dict(newer_than.counters) if newer_than and newer_than.epoch == connection.membership.epoch else {}
        behind = after and (pushes.under_way or to_come > 0)
        last = {ps: number + to_come if behind else 0 for ps, number in pushes.numbers.items()}
        min_step = 0 if behind else connection.steps.least
        patience_ms, plan = self._waiter.patience_ms, connection.agreed.plan
        some = [part for name in names or () for part in plan.parts_of[plan.by_name[name]]]
        messages: dict[int, Pull] = {}
        for ps in plan.ps:
            parts = [part.index for part in some if part.ps == ps]
            if names is None or parts:
                lane = connection.peers[ps].lane
                messages[ps] = Pull(
                    connection.membership.epoch, min_step, last[ps], pushes.acknowledged, counters.get(ps, -1),
                    parts, patience_ms, lane.on and not (parts or averages), lane.all_released_below(),
                    keeps_memory=not (parts or averages or newer_than) and self._may_be_kept(plan.layouts[ps]),
                    averages=averages,
                )  # fmt: skip
        return messages

    def _with_step_ps(self, made: dict[int, Pull]) -> dict[int, Pull]:
        """The messages of a pull, of which the step ps gets one, maybe without values, where it says who may read."""
        connection, epoch = self._connection, self._connection.membership.epoch
        step_ps, clock = connection.agreed.step_ps, self._pushes.acknowledged
        if not connection.agreed.mode.asks_step_ps_first or step_ps in made:
            return made
        return {step_ps: Pull(epoch, 0, 0, clock, NO_VALUES, [], self._waiter.patience_ms), **made}

    def _may_be_kept(self, layout: ShardLayout) -> bool:
        """Whether a shard's values may stay in the messages that bring them."""
        runtime = self._connection.home.runtime
        worth = layout.data_nbytes >= runtime.tuning.piece_nbytes // 4
        return worth and runtime.keeps_blocks and len(layout.indices) <= MOST_PARTS

    def pull(self, names: Sequence[str] | None, newer_than: Version | None, timeout: float | None) -> Any:
        """The nested arrays of these variables, None: of all; None where nothing was newer. Blocks."""
        operation = self.start(names, newer_than, after=False)
        try:
            return self.finish(operation, timeout)
        finally:
            operation.drop()

    def finish(self, operation: PullOp, timeout: float | None) -> Any:
        """Wait for a pull; the nested arrays, None where nothing was newer."""
        self._waiter.wait(operation, timeout, "a pull")
        connection = self._connection
        if operation.conditional:
            if not any(t.newer for t in operation.transfers.values()):
                return None
            if not self._has_the_others(operation):
                return self.pull(operation.names, None, timeout)
            if operation.names is None:
                operation.fill(self._cache)
        if connection.compression is not None:
            connection.compression.pulled(operation.transfers.values(), whole=operation.names is None)
        counters = {ps: t.counter for ps, t in operation.transfers.items()}
        if operation.names is None:
            self._pushes.pulled |= counters
            self.read = connection.membership.epoch, self._pushes.pulled
        else:
            self._pushes.note_read({ps: counters[ps] for ps, t in operation.transfers.items() if t.newer})
        connection.steps.saw(max((t.step for t in operation.transfers.values()), default=0))
        return self._values(operation)

    def apart(self, published: int, names: Sequence[str] | None, timeout: float | None) -> Any:
        """The values of a published version; 0: the moving averages, and the values of variables that have none. Nested
        as by a pull of these names, and not counted as read. Raises ValueError if the version is gone. Blocks."""
        operation = self.start(names, None, after=False, averages=not published, published=published)
        what = f"published version {published}" if published else "moving averages"
        try:
            self._waiter.wait(operation, timeout, f"a pull of the {what}")
            return self._values(operation)
        finally:
            operation.drop()

    def _values(self, operation: PullOp) -> Any:
        """The nested arrays of a complete pull, which are the caller's."""
        names = operation.names
        tree = operation.values(self._pushes.assembly) if names is None else self._some(operation, names)
        operation.forget()
        return tree

    def _has_the_others(self, operation: PullOp) -> bool:
        """Whether the values of all shards that have not changed are kept, in their current version."""
        whole, kept = operation.names is None, self._cache
        return all(
            t.newer or (whole and ps in kept and kept[ps][0] == t.counter) for ps, t in operation.transfers.items()
        )

    def _some(self, operation: PullOp, names: list[str]) -> Any:
        """Nested dicts of these variables."""
        plan, nesting = self._connection.agreed.plan, Nesting(nested(names))
        found = [list(map(operation.part, plan.parts_of[plan.by_name[path]])) for path in nesting.paths]
        return nesting.build([parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in found])


def check_apart(plan: Plan, out: Any) -> None:
    """ValueError if two variables would be written to the same memory of the caller's arrays and tensors."""
    from dps.variables.sharing import shared  # here: `import dps` stays quick

    targets = [(name, leaf) for name, leaf in leaves(out) if name in plan.by_name]
    for name, other, _ in shared(targets):
        if plan.by_name[name] != plan.by_name[other]:
            raise ValueError(
                f"out has one memory for {name} and {other}, which are two variables of the run; give each its "
                "own, or give Session the params that share it"
            )


def check_fillable(what: str, place: Array) -> None:
    """ValueError if an array that is to be filled is read-only, or some of its elements share memory."""
    from dps.variables.sharing import overlaps_itself

    if not place.flags.writeable:
        raise ValueError(f"{what} is read-only; wanted an array that can be written")
    if overlaps_itself(place):
        raise ValueError(
            f"{what} has one memory for several of its elements (shape {place.shape}, strides {place.strides}); wanted "
            f"an array of its own elements, as np.empty({place.shape}, np.{place.dtype})"
        )
