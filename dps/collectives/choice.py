"""Chooses the algorithm of a sum: the one that the user names, or the fastest for its size and its members' places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dps.collectives.routes import ALGORITHMS, Algorithm, direct, everyone, ring, through
from dps.transport.wire import Array

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
