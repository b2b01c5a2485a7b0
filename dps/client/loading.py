"""Prepares a push: checks the gradients, chooses a kind of cargo for each ps, and gathers it."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Mapping
from sys import getrefcount
from typing import Any

import numpy as np

from dps.client.assembly import Whole, fill, is_whole
from dps.client.cargo import About, ArraysCargo, Cargo, CargoMemory, PartsCargo, RunCargo
from dps.client.connection import Connection
from dps.client.lanes import PsPeer
from dps.client.membership import Agreed
from dps.errors import NOT_FINITE, advised
from dps.transport.dtypes import is_float
from dps.transport.endpoint import Runtime
from dps.transport.wire import Array
from dps.variables.layout import Gradient, array_for, check_is_nested, index_of, parts_of_shard, values_of_shard
from dps.variables.packed import PackedGradient
from dps.variables.plan import Plan, picker
from dps.variables.rowlists import RowsOfPart
from dps.variables.tree import Rows, leaves


class OwnRun(CargoMemory):
    """A run that the user fills: the arrays of `session.gradients()` are its parts."""

    def __init__(self, runtime: Runtime, peer: PsPeer) -> None:
        super().__init__(runtime, peer.lane, peer.layout.nbytes)
        self.parts = peer.layout.listed(peer.layout.memories(self.bytes))
        """The arrays, in the order of the run."""
        views = dict(zip(peer.layout.indices, self.parts, strict=True))
        self._variables = peer.layout.trained_variables
        self._pick = picker(self._variables)
        self._filled = [views[part.index] for part in peer.layout.trained]
        self._peer = peer
        views = {}
        self._whole = self.bytes if self.bytes.base is None else self.bytes.base
        """What slices of the arrays refer to."""
        self._references = self._count_references()
        """The reference count while nobody else refers to the arrays, or to slices of them."""

    def _count_references(self) -> int:
        return sum(map(getrefcount, self.parts)) + getrefcount(self._whole)

    def is_free(self, peer: PsPeer) -> bool:
        """Whether neither the program nor a push refers to it. `peer`: the ps as the session knows it now."""
        if self.reader is not None:
            if not self.reader.complete:
                return False
            self.reader = None  # it may refer to slices
        return self._peer is peer and self._count_references() == self._references

    def holds(self, gradients: Mapping[int, Gradient]) -> bool:
        """Whether the gradients of all of the shard are these arrays."""
        if gradients.__class__ is Whole:
            return all(map(operator.is_, self._pick(gradients.arrays), self._filled))
        return all(map(operator.is_, map(gradients.get, self._variables), self._filled))


class Loader:
    """Prepares the pushes of one session, and owns the memory that they are gathered in."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._runtime = connection, connection.home.runtime
        self._runs = defaultdict[int, list[CargoMemory]](list)
        """Those of each ps. A run is used again once its push has its result."""
        self._own: list[dict[int, OwnRun]] = []
        """For each result of `session.gradients()`, by ps."""

    def check(self, gradients: Mapping[int, Gradient]) -> None:
        """Raise ValueError for NaN and infinite values if the ps cannot refuse the push as one."""
        agreed = self._connection.agreed
        if agreed.mode.checks_finite:
            check_all_finite(agreed, gradients, "gradient")

    def cargo(
        self, peer: PsPeer, gradients: Mapping[int, Gradient], about: About, values: Mapping[int, Array]
    ) -> Cargo | None:
        """The cargo for one ps; None for nothing. Every ps gets an atomic push, and where it decides with them the step
        ps gets each push with gradients. `values`: the values that variables are set to, by their index."""
        connection = self._connection
        if not values and is_whole(peer.layout, gradients):
            travels = not peer.lane.on and not any(runs[peer.ps].holds(gradients) for runs in self._own)
            if travels and ArraysCargo.pays(peer.layout, connection.home.runtime.tuning):
                return ArraysCargo(peer, about, connection.agreed.plan, gradients)
            return RunCargo(peer, about, self.run(peer, gradients))
        parts = parts_of_shard(connection.agreed.plan, peer.layout, gradients, connection.row_lists)
        if parts and all(isinstance(rows, RowsOfPart) and rows.first == rows.last for _, rows in parts):
            about = about._replace(counter=-1)  # it only counts as an update of theirs: nothing of it can be stale
        to_set = values_of_shard(connection.agreed.plan, peer.layout, values)
        agreed = connection.agreed
        to_all = agreed.mode.is_atomic or (agreed.mode.step_ps_gets_all and peer.ps == agreed.step_ps and not values)
        if not (parts or to_set or to_all):
            return None
        return PartsCargo(peer, about, parts, lambda nbytes: self._take(peer, 1 << (nbytes - 1).bit_length()), to_set)

    def empty(self, peer: PsPeer, about: About) -> Cargo:
        """The cargo of a push that has nothing for a ps, and that this ps counts."""
        return PartsCargo(peer, about, [], lambda nbytes: self._take(peer, nbytes))

    def run(self, peer: PsPeer, gradients: Mapping[int, Gradient]) -> CargoMemory:
        """A run with the gradients of all of a shard: the user's own run if they lie there, else a run to which they
        are copied."""
        for runs in self._own:
            own = runs[peer.ps]
            if own.holds(gradients) and not own.in_use:
                return own
        layout = peer.layout
        run = self._take(peer, layout.nbytes)
        fill(self._connection.agreed.plan, run.trained(layout), gradients)
        self._runtime.charge_pass("gather", layout.gradient_nbytes)
        return run

    def _take(self, peer: PsPeer, nbytes: int) -> CargoMemory:
        """A run of at least `nbytes` that no push in flight uses. Its bytes are undefined."""
        runs = self._runs[peer.ps]
        for run in runs:
            if not run.in_use and run.nbytes >= nbytes and (run.memory is not None or not peer.lane.on):
                return run
        made = CargoMemory(self._runtime, peer.lane, nbytes)
        self._runs[peer.ps] = [run for run in runs if run.in_use] + [made]  # the idle ones are too small
        return made

    def own_parts(self) -> list[Array]:
        """Arrays for the user to fill: all parts of all shards, in the order of their runs. Those of an earlier call
        are given again if nobody refers to them."""
        peers = self._connection.peers
        for runs in self._own:
            if runs.keys() == peers.keys() and all(run.is_free(peers[ps]) for ps, run in runs.items()):
                break
        else:
            runs = {ps: OwnRun(self._runtime, peer) for ps, peer in peers.items()}
            self._own = [*self._own[1 - self._runtime.tuning.client.kept_gradients :], runs]
        return [part for run in runs.values() for part in run.parts]

    def forget(self) -> None:
        """The session has joined again. A ps may still read the runs of before, which are freed when it has finished.
        Of the user's own runs it has forgotten which ones it reads."""
        self._runs.clear()
        for run in (run for runs in self._own for run in runs.values()):
            run.reader = None


def check_all_finite(agreed: Agreed, gradients: Mapping[int, Gradient], what: str) -> None:
    """Raise ValueError for NaN and infinite values in gradients, if the run checks them."""
    if agreed.settings.get("check_finite", True):
        for index, gradient in gradients.items():
            assert not isinstance(gradient, PackedGradient), "gradients are looked at before they are packed"
            values = gradient.values if isinstance(gradient, Rows) else gradient
            if not all_finite(values):
                raise ValueError(advised(f"the {what} of {agreed.plan.name_of(index)} {NOT_FINITE}"))


def all_finite(values: Array) -> bool:
    """Whether no element is NaN or infinite."""
    with np.errstate(all="ignore"):
        suspect = is_float(values.dtype) and not np.isfinite(np.sum(values))
    return not (suspect and not np.isfinite(values).all())


def is_empty(gradients: Mapping[int, Gradient]) -> bool:
    """Whether a push has no element of any gradient."""
    arrays = (g.indices if isinstance(g, Rows) else g for g in gradients.values())
    return not any(isinstance(array, PackedGradient) or array.size for array in arrays)


def checked(plan: Plan, tree: Any, finite: bool) -> dict[int, Array]:
    """Nested values as copies, by variable index; a leaf that is None is no value.

    Raises ValueError for a name, a shape or a dtype that no variable has and, where `finite`, for NaN and infinity;
    TypeError for what is no array."""
    check_is_nested(plan, tree, "assign wants values")
    found: dict[int, Array] = {}
    for name, value in leaves(tree) if tree is not None else ():
        if value is None:
            continue
        index = index_of(plan, name, "value")
        if isinstance(value, Rows):
            raise TypeError(f"assign sets whole variables; got dps.Rows for {name}, wanted an array of all its rows")
        array = array_for(plan, index, value, "value")
        if finite and not all_finite(array):
            advice = "give finite values; Session(check_finite=False) lets a run have others"
            raise ValueError(f"the value of {name} {NOT_FINITE}: nothing was set; {advice}")
        if index in found and not np.array_equal(found[index], array):
            raise ValueError(
                f"{plan.variables[index].name} and {name} are one variable (tied weights) and got two values"
            )
        found[index] = array.copy()
    return found


class Assigned:
    """The values that one session has assigned and that are not part of a step yet, by variable index."""

    def __init__(self) -> None:
        self.waiting: Mapping[int, Array] = {}
        """The values that go with the next push. `Pushes` empties it when that push leaves."""
        self._newest: dict[int, Array] = {}

    def keep(self, values: Mapping[int, Array]) -> None:
        """Add values for the next push; the last value of a variable counts."""
        self._newest |= values
        self.waiting = {**self.waiting, **values}

    def record_outcome(self, values: Mapping[int, Array], accepted: bool) -> None:
        """The push that carries these values has its result. If it was not accepted, they go with the next push, unless
        newer ones were assigned."""
        for index, value in values.items():
            if self._newest.get(index) is not value:
                continue
            if accepted:
                del self._newest[index]
            else:
                self.waiting = {**self.waiting, index: value}
