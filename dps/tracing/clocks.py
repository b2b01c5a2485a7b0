"""Compares the clocks of tasks, from round trips that happen anyway: orders about the trace, and pushes.

A task that reads its clock as `c` between two readings `a` and `b` of another clock is ahead of that by at least
`c - b` and at most `c - a`, however long each way took. All such bounds together are difference constraints. Their
shortest paths are the tightest bounds that follow (Cormen et al., Introduction to Algorithms, 24.4), and readings
within them put no arrival before its departure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

SLACK_NS = 1_000.0
"""By how much bounds that contradict each other are widened first; clocks of two machines differ in speed."""
WIDEST_NS = 1e12


class ClockBound(NamedTuple):
    """The clock of `ahead` minus that of `of`, in nanoseconds, is at least `least` and at most `most`."""

    of: str
    ahead: str
    least: float
    most: float


class ClockReading(NamedTuple):
    """A clock, against the common one: by how much it is ahead, and by how much that may be wrong, in nanoseconds."""

    ahead_ns: int
    error_ns: float


def compare_clocks(
    clocks: Sequence[str], bounds: Iterable[ClockBound], same: Mapping[str, str] | None = None
) -> dict[str, ClockReading]:
    """By how much each clock is ahead of the first one. `same`: the machine of a clock; clocks of one machine are the
    same, as far as the bounds allow that. A clock without bounds counts as the first one, with an infinite error."""
    index, given, machines = {name: number for number, name in enumerate(clocks)}, list(bounds), same or {}
    paths, first = _tightest(index, given), dict[str, int]()
    for name in clocks:
        if machine := machines.get(name):
            other = first.setdefault(machine, index[name])
            if -paths[index[name], other] <= 0 <= paths[other, index[name]]:
                _tie(paths, other, index[name], 0.0)
    widest, found = paths.copy(), {clocks[0]: ClockReading(0, 0.0)}
    for name in clocks[1:]:
        own = index[name]
        least, most = -paths[own, 0], paths[0, own]
        known = np.isfinite(least) and np.isfinite(most)
        ahead = float(np.clip(round((least + most) / 2) if known else 0.0, least, most))
        error = max(widest[0, own] - ahead, ahead + widest[own, 0])
        found[name] = ClockReading(int(ahead), float(error))
        _tie(paths, 0, own, ahead)  # what follows for the others
    return found


def _tightest(index: Mapping[str, int], bounds: Sequence[ClockBound]) -> npt.NDArray[np.float64]:
    """`[i, j]`: by how much clock j is at most ahead of clock i. Bounds that contradict each other are widened, all by
    the same, until they do not."""
    slack = 0.0
    while True:
        paths = np.full((len(index), len(index)), np.inf)
        np.fill_diagonal(paths, 0.0)
        for of, ahead, least, most in bounds:
            i, j = index[of], index[ahead]
            paths[i, j] = min(paths[i, j], most + slack)
            paths[j, i] = min(paths[j, i], -least + slack)
        for k in range(len(index)):
            np.minimum(paths, paths[:, k, None] + paths[None, k, :], out=paths)
        if not (np.diagonal(paths) < 0).any() or slack > WIDEST_NS:
            np.fill_diagonal(paths, 0.0)
            return paths
        slack = max(SLACK_NS, slack * 2)


def _tie(paths: npt.NDArray[Any], i: int, j: int, ahead: float) -> None:
    """Clock j is ahead of clock i by exactly this, which its bounds allow: what follows for all."""
    paths[i, j], paths[j, i] = ahead, -ahead
    for k in (i, j):
        np.minimum(paths, paths[:, k, None] + paths[None, k, :], out=paths)
