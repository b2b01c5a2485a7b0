"""The algorithms of a sum as data: which member sends which piece of a run to which other member."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dps.transport.wire import Array

SLACK = 8
"""A slice may be larger than its share by one of so many parts."""


class RunSegment(NamedTuple):
    """A piece of a run: elements `start` to `stop`. `root` is the member that has its result first."""

    start: int
    stop: int
    root: int


class Route(NamedTuple):
    """What one member does with one piece. Members are named by their ranks, 0 to `size` - 1."""

    takes: tuple[int, ...]
    """From whom it takes parts, which it adds to its own in the order of ranks."""
    up: tuple[int, ...]
    """To whom that goes; with `early`, its own part alone."""
    down: tuple[int, ...]
    """To whom it gives the result when it has it."""
    source: int
    """From whom it gets the result; -1: it makes the result itself."""
    early: bool = False
    """Whether its part leaves before the others' have come."""


Algorithm = Callable[[int, int, int], Route]
"""The route of the pieces of a root: of (rank, size, root)."""


def everyone(rank: int, size: int, root: int) -> Route:
    """Each member sends its part to all others, and all make the sum: one hop, for few members or few bytes."""
    others = _others(rank, size)
    return Route(others, others, (), -1, early=True)


def direct(rank: int, size: int, root: int) -> Route:
    """The root takes the parts of all, and gives all the sum: two hops, and each byte travels as often as in a ring."""
    if rank == root:
        return Route(_others(rank, size), (), _others(rank, size), -1)
    return Route((), (root,), (), root)


def ring(rank: int, size: int, root: int) -> Route:
    """Parts are added along a ring that ends at the root; the sum goes back along it. Each talks to its neighbours."""
    place = (rank - root - 1) % size
    takes = ((rank - 1) % size,) if place else ()
    if rank == root:
        return Route(takes, (), takes, -1)
    parent = (rank + 1) % size
    return Route(takes, (parent,), takes, parent)


def tree(rank: int, size: int, root: int) -> Route:
    """Parts are added along a binary tree to its root, and the sum goes back: the fewest hops for many members."""
    place = (rank - root) % size
    takes = tuple((child + root) % size for child in (2 * place + 1, 2 * place + 2) if child < size)
    if rank == root:
        return Route(takes, (), takes, -1)
    parent = ((place - 1) // 2 + root) % size
    return Route(takes, (parent,), takes, parent)


def through(rank: int, size: int, root: int) -> Route:
    """All give their parts to a ps, whose rank follows the last member's, and take the sum from it: two hops."""
    return Route((), (size,), (), size)


def gather(rank: int, size: int, root: int) -> Route:
    """The root gives its part to all others: nothing is added."""
    if rank == root:
        return Route((), (), _others(rank, size), -1)
    return Route((), (), (), root)


ALGORITHMS: dict[str, Algorithm] = {"all": everyone, "direct": direct, "ring": ring, "tree": tree}


def _others(rank: int, size: int) -> tuple[int, ...]:
    return tuple(other for other in range(size) if other != rank)


def parts_of(count: int, size: int, most: int) -> list[RunSegment]:
    """A run of elements in pieces of at most `most`; the roots take turns, and each has at least one if there are
    enough elements."""
    length = max(1, min(most, -(-count // size)))
    return [RunSegment(start, min(start + length, count), i % size) for i, start in enumerate(range(0, count, length))]


def slots(counts: list[int], most: int) -> list[RunSegment]:
    """What the members bring, one after the other, in pieces of at most `most` elements."""
    parts, first = [], 0
    for root, count in enumerate(counts):
        parts += [RunSegment(at, min(at + most, first + count), root) for at in range(first, first + count, most)]
        first += count
    return parts


def owned(sizes: list[int], size: int, most: int) -> tuple[list[RunSegment], list[int]]:
    """Arrays that lie one after the other, in as many slices as there are members, each with a root of its own, and
    these in pieces; and where each slice begins. Slices end where arrays do, if that makes them nearly equal."""
    ends = list(itertools.accumulate(sizes))
    count = ends[-1] if ends else 0
    first = [0]
    for root in range(1, size):
        target = count * root // size
        near = min(ends, key=lambda end: abs(end - target), default=0)
        first.append(max(first[-1], near if abs(near - target) * SLACK <= count // size else target))
    slices = [parts_of(b - a, 1, most) for a, b in zip(first, [*first[1:], count], strict=True)]
    parts = [
        RunSegment(first[root] + of[i].start, first[root] + of[i].stop, root)
        for i in range(max(map(len, slices))) for root, of in enumerate(slices) if i < len(of)
    ]  # fmt: skip
    return parts, first


SMALL_NBYTES = 256 << 10
"""Up to this many bytes of all members together, each member sends its part to all others."""
PAIR_NBYTES = 1 << 20
"""The same for two members."""
PS = "ps"
"""The name of sums through a ps."""
Own = Callable[[Sequence[Array]], Any]
"""An algorithm of the user's: a function that gets the arrays of all members, in their order, and returns the sum."""


def chosen(asked: str, op: str, nbytes: int, size: int, together: bool, shown: bool) -> Algorithm:
    """The algorithm for a run of so many bytes of each of `size` members; the same on all of them. `together`: they can
    read each other's memory. `shown`: they look at each other's boards. "auto" never takes the ps, which is at no size
    clearly faster than the best of the others (docs/performance.md)."""
    if asked == PS and op == "sum" and size > 1:
        return through
    if asked not in ("auto", PS):
        return ALGORITHMS[asked]
    if together:
        return everyone if shown else direct
    if nbytes * size <= SMALL_NBYTES or (size == 2 and nbytes <= PAIR_NBYTES):
        return everyone
    return direct if size == 2 else ring
