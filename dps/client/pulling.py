"""A session's pulls: one transfer per ps, restarted when a new run epoch begins."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from dps.client.connection import Connection
from dps.client.pushing import Pushes, PushOp
from dps.client.recycled import Recycled, Taken
from dps.client.transfers import PullTransfer
from dps.client.waiting import Operation, Waiter
from dps.protocol import Pull
from dps.reply import Version
from dps.transport.message import changed
from dps.transport.wire import Array
from dps.variables.plan import ShardLayout
from dps.variables.tree import Nesting, is_tensor, leaves, memory_of_tensor, nested

MOST_PARTS = 256
"""Up to this number of parts, values stay in the messages that bring them; more are faster to assemble in one run."""

Kept = dict[int, tuple[int, Array]]
"""For each ps the counter of a version, and its values as a run of bytes."""


class PullOp(Operation):
    """One pull: a transfer per ps. `names`: of variables; None for all.

    `conditional`: shards that have not changed are not sent. `launch` makes the messages for the current run epoch.
    """

    def __init__(
        self, connection: Connection, names: list[str] | None, conditional: bool, launch: Callable[[], dict[int, Pull]],
        take: Callable[[ShardLayout], Taken], hold: bool, behind: PushOp | None = None,
    ) -> None:  # fmt: skip
        self.names, self.conditional = names, conditional
        self._connection, self.launch, self._take, self._hold = connection, launch, take, hold
        self._behind = behind
        """The push of the same step, whose result may bring the values."""
        self._incarnation = -1
        self._messages: dict[int, Pull] = {}
        """The messages that are not sent yet."""
        self.transfers: dict[int, PullTransfer] = {}

    def start(self) -> None:
        """Send the messages that are not sent yet; after a rollback all of them again. They leave at the next flush."""
        if self._incarnation != self._connection.caller.incarnation:
            self.drop()
            self.transfers = {}
            self._messages = self.launch()
            self._incarnation = self._connection.caller.incarnation
        if self._messages:
            self._start_more()

    def _start_more(self) -> None:
        """Send what may be sent: in bounded mode the step ps has to answer before the others are asked."""
        connection = self._connection
        first = connection.agreed.step_ps
        if connection.agreed.bounded:
            if first in self.transfers and not self.transfers[first].complete:
                return
            due = [first] if first in self._messages else list(self._messages)
        else:
            due = list(self._messages)
        for ps in due:
            packing = None if self._messages[ps].averages else connection.compression
            start = PullTransfer if packing is None else packing.pull
            push = None if self._behind is None else self._behind.transfers.get(ps)
            self.transfers[ps] = start(
                connection.peers[ps], self._messages.pop(ps), self._take, self._hold,
                push if push is not None and push.lends else None,
            )  # fmt: skip
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

    def parts(self, kept: Kept, still: bool) -> list[Array]:
        """All parts of a whole pull, shard after shard, in the order of their runs. Those of shards that have not
        changed are copies of `kept`. `still`: read-only."""
        found: list[Array] = []
        for ps, layout in self._connection.agreed.plan.layouts.items():
            transfer = self.transfers[ps]
            if transfer.taken is not None:
                found += transfer.taken.parts(still)
            elif transfer.hold is not None:
                found += layout.listed(transfer.hold.memories)
            else:
                run = kept[ps][1].copy()
                run.flags.writeable = not still
                found += layout.listed(layout.memories(run))
        return found

    def taken(self) -> list[Taken]:
        """The memory of all shards' values; empty if some values are elsewhere."""
        found = [self.transfers[ps].taken for ps in self._connection.agreed.plan.layouts]
        mine = [taken for taken in found if isinstance(taken, Taken)]
        return mine if len(mine) == len(found) else []

    def held(self) -> list[Array] | None:
        """The bytes of all arenas of all shards if all are held in place; else None."""
        found: list[Array] = []
        for ps in self._connection.agreed.plan.layouts:
            hold = self.transfers[ps].hold
            if hold is None:
                return None
            found += hold.memories
        return found

    def some(self) -> dict[int, Array]:
        """The parts that were asked for, by index."""
        found: dict[int, Array] = {}
        for transfer in self.transfers.values():
            assert isinstance(transfer.taken, Taken), "parts are not held, and come without a condition"
            run, layout, parts = transfer.taken.bytes, transfer.peer.layout, self._connection.agreed.plan.parts
            found |= {index: layout.view(run, parts[index]) for index in transfer.parts}
        return found

    def drop(self) -> None:
        """Forget the requests; late answers are ignored."""
        for transfer in self.transfers.values():
            transfer.drop()

    def release(self) -> None:
        """Release what is held."""
        for transfer in self.transfers.values():
            transfer.release()

    def forget_runs(self) -> None:
        """Drop the references to the values: they are the caller's."""
        for transfer in self.transfers.values():
            transfer.taken = None

    def kept_runs(self, kept: Kept) -> Kept:
        """Private copies of the runs, for the next conditional pull."""
        return {ps: kept[ps] if t.taken is None else (t.counter, t.taken.copied()) for ps, t in self.transfers.items()}


class Pulls:
    """The pulls of a session: makes their messages, and the user's nested arrays from the answers."""

    def __init__(self, connection: Connection, waiter: Waiter, pushes: Pushes) -> None:
        self._connection, self._waiter, self._pushes = connection, waiter, pushes
        self.read: tuple[int, dict[int, int]] = connection.membership.epoch, {}
        """The run epoch and each shard's counter of the last whole pull."""
        self._cache: Kept = {}
        self._recycled = Recycled()

    def roll_back(self) -> None:
        """A new run epoch has begun: forget all values."""
        self._pushes.assembly.forget()
        self._cache = {}
        self._recycled.forget()

    def start(
        self, names: Sequence[str] | None, newer_than: Version | None, after: bool, hold: bool = False,
        behind: PushOp | None = None, leads: bool = False,
    ) -> PullOp:  # fmt: skip
        """Make a pull. Does not block.

        `after`: it is answered once the pushes in flight have been applied. `hold`: values in the memory of a ps are
        not copied. `behind`: the push of the same step, whose result may bring the values. `leads`: the pull is sent
        right before a push to all ps, and waits for that push, too.
        """
        self._waiter.check_open()
        by_name = self._connection.agreed.plan.by_name
        wanted = None if names is None else list(dict.fromkeys(names))
        if unknown := [name for name in wanted or () if name not in by_name]:
            raise ValueError(f"pull: no variables {unknown}; there are {list(by_name)[:10]}")
        to_come = itertools.chain([int(leads)], itertools.repeat(0))  # after a rollback it leads nothing

        def launch() -> dict[int, Pull]:
            return self._launch(wanted, newer_than, after, next(to_come))

        conditional = newer_than is not None
        return PullOp(self._connection, wanted, conditional, launch, self._recycled.take, hold, behind)

    @property
    def version(self) -> Version:
        """The version that the last whole pull read."""
        epoch, counters = self.read
        return Version(epoch, tuple(sorted(counters.items())))

    def prepared(self, layout: ShardLayout) -> tuple[Array, Any]:
        """Memory for the values of the only shard, a run of bytes, and the user's nested arrays in it."""
        taken = self._recycled.take(layout)
        return taken.bytes, self._tree([taken])

    @property
    def sync(self) -> bool:
        """Whether the run's update mode is sync."""
        return self._connection.agreed.sync

    @property
    def may_follow_a_push(self) -> bool:
        """Whether a pull may be sent right behind a push: not if the token can come before the push is applied."""
        update = self._connection.agreed.settings["update"]
        if update["mode"] == "sync":
            return update["replicas_to_aggregate"] is None and not update["initial_tokens"]
        return not (self._connection.agreed.bounded and len(self._connection.agreed.plan.ps) > 1)

    @property
    def may_come_with_a_push(self) -> bool:
        """Whether a ps on this machine may lend values with the result of a push."""
        return self.may_follow_a_push and not self._connection.agreed.bounded and self._connection.compression is None

    def _launch(
        self, names: list[str] | None, newer_than: Version | None, after: bool, to_come: int
    ) -> dict[int, Pull]:
        """The messages of a pull for the current run epoch; after a rollback they are made again. `to_come`: how many
        pushes leave right after it."""
        connection, pushes = self._connection, self._pushes
        counters = dict(newer_than.counters) if newer_than and newer_than.epoch == connection.membership.epoch else {}
        behind = after and (pushes.under_way or to_come > 0)
        clock = pushes.acknowledged + (1 if behind else 0)
        last = {ps: number + to_come if behind else 0 for ps, number in pushes.numbers.items()}
        min_step = connection.steps.local_step if connection.agreed.sync and not behind else 0
        patience_ms, plan = self._waiter.patience_ms, connection.agreed.plan
        some = [part for name in names or () for part in plan.parts_of[plan.by_name[name]]]
        messages: dict[int, Pull] = {}
        for ps in plan.ps:
            parts = [part.index for part in some if part.ps == ps]
            if names is None or parts:
                lane = connection.peers[ps].lane
                messages[ps] = Pull(
                    connection.membership.epoch, min_step, last[ps], clock, counters.get(ps, -1),
                    parts, patience_ms, lane.on and not parts, lane.all_released_below(),
                    whole=not parts and self._may_be_kept(plan.layouts[ps]),
                )  # fmt: skip
        return messages

    def _may_be_kept(self, layout: ShardLayout) -> bool:
        """Whether a shard's values may stay in the messages that bring them."""
        runtime = self._connection.home.runtime
        worth = layout.data_nbytes >= runtime.tuning.piece_nbytes // 4
        return worth and runtime.keeps_blocks and len(layout.indices) <= MOST_PARTS

    def finish(self, operation: PullOp, timeout: float | None, still: bool = False) -> Any:
        """Wait for a pull; the nested arrays, None where nothing was newer. `still`: they are read-only."""
        self._waiter.wait(operation, timeout, "a pull")
        connection = self._connection
        kept: Kept = {}
        if operation.conditional:
            if not any(t.newer for t in operation.transfers.values()):
                return None
            if not self._has_the_others(operation):
                return self.finish(self.start(operation.names, None, after=False), timeout)
            if operation.names is None:
                kept = self._cache
                self._cache = operation.kept_runs(kept)
        if connection.compression is not None:
            connection.compression.pulled(operation.transfers.values(), whole=operation.names is None)
        if operation.names is None:
            counters = {ps: t.counter for ps, t in operation.transfers.items()}
            self._pushes.pulled |= counters
            self.read = connection.membership.epoch, counters
        connection.steps.saw(max((t.step for t in operation.transfers.values()), default=0))
        names = operation.names
        if names is not None:
            tree = self._some(operation.some(), names)
        elif (held := operation.held()) is not None:
            tree = self.still(held)
        else:
            taken = [] if still else operation.taken()
            tree = self._tree(taken) if taken else self._pushes.assembly.values(operation.parts(kept, still))
        operation.forget_runs()
        return tree

    def averages(self, names: Sequence[str] | None, timeout: float | None) -> Any:
        """The moving averages, and the values of variables that have none; nested as by a pull of these names."""
        operation = self.start(names, None, after=False)
        launch = operation.launch
        operation.launch = lambda: {
            ps: changed(pull, averages=True, shared=False, whole=False) for ps, pull in launch().items()
        }
        try:
            self._waiter.wait(operation, timeout, "a pull of the moving averages")
            if operation.names is not None:
                return self._some(operation.some(), operation.names)
            return self._pushes.assembly.values(operation.parts({}, still=False))
        finally:
            operation.drop()

    def _has_the_others(self, operation: PullOp) -> bool:
        """Whether the values of all shards that have not changed are kept, in their current version."""
        whole, kept = operation.names is None, self._cache
        return all(
            t.newer or (whole and ps in kept and kept[ps][0] == t.counter) for ps, t in operation.transfers.items()
        )

    def still(self, memories: list[Array]) -> Any:
        """Read-only nested arrays in the memory of all arenas of all shards."""
        return self._pushes.assembly.still(memories)

    def _tree(self, taken: list[Taken]) -> Any:
        """The user's nested arrays of the values in this memory, one for each shard."""
        assembly = self._pushes.assembly
        if assembly.plan.is_split:
            return assembly.values([part for one in taken for part in one.parts()])
        return self._recycled.tree(taken, assembly.values, assembly.copy)

    def _some(self, views: dict[int, Array], names: list[str]) -> Any:
        """Nested dicts of these variables. `views`: their parts, by index."""
        plan = self._connection.agreed.plan
        nesting = Nesting(nested(names))
        found = [[views[p.index] for p in plan.parts_of[plan.by_name[path]]] for path in nesting.paths]
        return nesting.build([parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in found])


def filled(out: Any, tree: Any, replaces: Callable[[str, Array, Array], None]) -> Any:
    """Copy values into the caller's arrays and CPU tensors; ValueError where one does not fit. `replaces(name, array,
    value)` is called before a value is written."""
    targets = dict(leaves(out))
    for name, array in leaves(tree):
        target = targets.get(name)
        if is_tensor(target):
            target = memory_of_tensor(target, name)
        if not isinstance(target, np.ndarray) or target.shape != array.shape or target.dtype != array.dtype:
            got = (
                "nothing"
                if target is None
                else f"{getattr(target, 'dtype', type(target))} {getattr(target, 'shape', '')}"
            )
            raise ValueError(f"pull: out has {got} for {name}; wanted an array of {array.dtype} {array.shape}")
        replaces(name, target, array)
        target[...] = array
    return out
