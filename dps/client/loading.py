"""Prepares a push: checks the gradients, chooses a kind of cargo for each ps, and gathers it."""

from __future__ import annotations

import operator
from collections.abc import Mapping

import numpy as np

from dps.client.cargo import About, ArraysCargo, Cargo, Run, RunCargo
from dps.client.connection import Connection
from dps.client.dense import gather, is_whole
from dps.client.lanes import Peer
from dps.errors import NOT_FINITE, advised
from dps.transport.dtypes import is_float
from dps.transport.endpoint import Runtime
from dps.transport.wire import Array
from dps.variables.layout import Gradient, parts_of_shard, values_of_shard
from dps.variables.packed import PackedGradient
from dps.variables.tree import Rows


class Runs:
    """The memory for pushes to one ps. A run is used again once its push has its result."""

    def __init__(self, runtime: Runtime, peer: Peer) -> None:
        self._runtime, self._lane = runtime, peer.lane
        self._made: list[Run] = []

    def take(self, nbytes: int) -> Run:
        """A run of at least `nbytes` that no push in flight uses. Its bytes are undefined."""
        idle = [run for run in self._made if not run.in_use]
        for run in idle:
            if len(run.bytes) >= nbytes and (run.memory is not None or not self._lane.on):
                return run
        made = Run(self._runtime, self._lane, nbytes)
        self._made = [run for run in self._made if run not in idle] + [made]  # the idle ones are too small
        return made

    def take_rounded(self, nbytes: int) -> Run:
        """Like `take`, for sizes that change from push to push."""
        return self.take(1 << (nbytes - 1).bit_length())


class OwnRun(Run):
    """A run that the user fills: the arrays of `session.gradients()` are its parts."""

    def __init__(self, runtime: Runtime, peer: Peer) -> None:
        super().__init__(runtime, peer.lane, peer.layout.nbytes)
        self.parts = peer.layout.listed(peer.layout.memories(self.bytes))
        """The arrays, in the order of the run."""
        views = dict(zip(peer.layout.indices, self.parts, strict=True))
        self._variables = peer.layout.trained_variables
        self._trained = [views[part.index] for part in peer.layout.trained]

    def holds(self, gradients: Mapping[int, Gradient]) -> bool:
        """Whether the gradients of all of the shard are these arrays."""
        return all(map(operator.is_, map(gradients.get, self._variables), self._trained))


class Loader:
    """Prepares the pushes of one session, and owns the memory that they are gathered in."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._runs: dict[int, Runs] = {}
        self._own: list[dict[int, OwnRun]] = []
        """For each result of `session.gradients()`, by ps."""

    def check(self, gradients: Mapping[int, Gradient]) -> None:
        """ValueError for NaN and infinite values where the ps cannot refuse the push as one: in async with several."""
        connection = self._connection
        if (
            not connection.agreed.sync
            and len(connection.agreed.plan.ps) > 1
            and connection.agreed.settings.get("check_finite", True)
        ):
            for index, gradient in gradients.items():
                assert not isinstance(gradient, PackedGradient), "gradients are looked at before they are packed"
                values = gradient.values if isinstance(gradient, Rows) else gradient
                check_finite(f"the gradient of {connection.agreed.plan.variables[index].name}", values)

    def cargo(
        self, peer: Peer, gradients: Mapping[int, Gradient], about: About, values: Mapping[int, Array]
    ) -> Cargo | None:
        """What one ps gets; None for nothing. In sync every ps gets a push, and in every mode the step ps gets one of
        gradients. `values`: what variables are set to, by their index."""
        connection = self._connection
        if not values and is_whole(peer.layout, gradients):
            travels = not peer.lane.on and self._own_run(peer, gradients) is None
            if travels and ArraysCargo.pays(peer.layout, connection.home.runtime.tuning):
                return ArraysCargo(peer, about, connection.agreed.plan, gradients)
            return RunCargo(peer, about, self.run(peer, gradients))
        parts = parts_of_shard(connection.agreed.plan, peer.layout, gradients, connection.row_lists)
        to_set = values_of_shard(connection.agreed.plan, peer.layout, values)
        if not (parts or to_set or connection.agreed.sync) and (values or peer.ps != connection.agreed.step_ps):
            return None
        from dps.client.partial import PartsCargo

        return PartsCargo(peer, about, parts, self._of(peer).take_rounded, to_set)

    def run(self, peer: Peer, gradients: Mapping[int, Gradient]) -> Run:
        """A run with the gradients of all of a shard in it: the user's own where they lie there, or they are copied."""
        own = self._own_run(peer, gradients)
        if own is not None and not own.in_use:
            return own
        run = self._of(peer).take(peer.layout.nbytes)
        gather(self._connection.agreed.plan, peer.layout, gradients, run.bytes)
        return run

    def _own_run(self, peer: Peer, gradients: Mapping[int, Gradient]) -> OwnRun | None:
        return next((runs[peer.ps] for runs in self._own if runs[peer.ps].holds(gradients)), None)

    def _of(self, peer: Peer) -> Runs:
        if peer.ps not in self._runs:
            self._runs[peer.ps] = Runs(self._connection.home.runtime, peer)
        return self._runs[peer.ps]

    def own_parts(self) -> list[Array]:
        """Arrays for the user to fill: all parts of all shards, in the order of their runs."""
        runs = {ps: OwnRun(self._connection.home.runtime, peer) for ps, peer in self._connection.peers.items()}
        self._own = [*self._own[1 - self._connection.home.runtime.tuning.client.kept_gradients :], runs]
        return [part for run in runs.values() for part in run.parts]

    def forget(self) -> None:
        """The session has joined anew. A ps may still read the runs of before, which go when it has done so; of the
        user's own it has forgotten who lent them."""
        self._runs = {}
        for run in (run for runs in self._own for run in runs.values()):
            run.reader = None


def check_finite(what: str, values: Array) -> None:
    """Raise ValueError for NaN and infinite values."""
    with np.errstate(all="ignore"):
        suspect = is_float(values.dtype) and not np.isfinite(np.sum(values))
    if suspect and not np.isfinite(values).all():
        raise ValueError(advised(f"{what} {NOT_FINITE}"))
