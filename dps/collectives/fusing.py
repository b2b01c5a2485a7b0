"""Copies arrays of one dtype into one run, a piece at a time, and takes their sums out of the run's sum."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

import numpy as np

from dps.collectives.flow import Flow, still
from dps.collectives.routes import Part, Route
from dps.transport.wire import Array


class Fused:
    """The arrays of one member, for one operation, and the pieces of which it consists."""

    def __init__(self, arrays: Sequence[Array], given: Array, parts: Sequence[Part], routes: Sequence[Route]) -> None:
        """`routes`: the routes for each root."""
        self._flat = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
        self._starts = [0, *itertools.accumulate(array.size for array in arrays)]
        self._given, self._parts, self._routes = given, parts, routes
        self._scratch: Array = np.empty(0, given.dtype)

    def bring(self, index: int) -> Array:
        """As of `Flow`: a part that is only added here does not need `given`, and stays in the caches."""
        start, stop, root = self._parts[index]
        route = self._routes[root]
        if route.up and (route.early or not route.takes):
            out = self._given[start:stop]
        else:
            if self._scratch.size < stop - start:
                self._scratch = np.empty(stop - start, self._given.dtype)
            out = self._scratch[: stop - start]
        at = bisect.bisect_right(self._starts, start) - 1
        while start < stop:
            first = self._starts[at]
            end = min(stop, self._starts[at + 1])
            if end > start:
                filled = out.size - (stop - start)
                out[filled : filled + end - start] = self._flat[at][start - first : end - first]
            start, at = max(start, end), at + 1
        return out


def results(flow: Flow, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """The arrays of a sum, read-only; in a peer's memory, if all of an array lies there."""
    order = sorted(range(len(flow.parts)), key=lambda index: flow.parts[index].start)
    starts = [flow.parts[index].start for index in order]
    found, at = [], 0
    for shape in shapes:
        size = int(np.prod(shape))
        pieces = order[bisect.bisect_right(starts, at) - 1 : bisect.bisect_left(starts, at + size)] if size else []
        roots = {flow.parts[index].root for index in pieces}
        if flow.lent and len(roots) == 1 and all(index in flow.lent for index in pieces):
            run = flow.wholes[roots.pop()]
        else:
            run = flow.result
            for index in pieces:
                flow.take(index)
        found.append(still(run[at : at + size].reshape(shape)))
        at += size
    return found
