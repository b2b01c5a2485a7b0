"""Encodes arrays of any shapes and dtypes, with these, as the part that one member brings to a gathering."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence

import numpy as np

from dps.collectives.flow import Flow, read_only
from dps.collectives.routes import Route, RunSegment
from dps.transport.dtypes import dtype_of, wire_name
from dps.transport.wire import Array


def pack_arrays(arrays: Sequence[Array]) -> tuple[Array, Array]:
    """A description, and the bytes of the arrays; at least one."""
    described = [f"{wire_name(array.dtype)}:{','.join(map(str, array.shape))}" for array in arrays]
    parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    return np.frombuffer(";".join(described).encode(), np.uint8), np.concatenate(parts or [np.zeros(1, np.uint8)])


def unpack_arrays(row: Array, head: int) -> list[Array]:
    """The arrays of a description of so many bytes, and what follows it."""
    found, at = [], head
    for text in bytes(row[:head]).decode().split(";") if head else ():
        name, _, sizes = text.rpartition(":")
        shape = tuple(int(size) for size in sizes.split(",") if size)
        dtype = dtype_of(name)
        nbytes = dtype.itemsize * math.prod(shape)
        found.append(row[at : at + nbytes].copy().view(dtype).reshape(shape))
        at += nbytes
    return found


class FusedArrays:
    """The arrays of one member, for one operation, and the pieces of which it consists."""

    def __init__(
        self, arrays: Sequence[Array], given: Array, parts: Sequence[RunSegment], routes: Sequence[Route]
    ) -> None:
        """`routes`: the routes for each root."""
        self._flat = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
        self._starts = [0, *itertools.accumulate(array.size for array in arrays)]
        self._given, self._parts, self._routes = given, parts, routes
        self._scratch: Array = np.empty(0, given.dtype)

    def fill_piece(self, index: int) -> Array:
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


def split_results(flow: Flow, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
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
                flow.copy_lent_piece(index)
        found.append(read_only(run[at : at + size].reshape(shape)))
        at += size
    return found
