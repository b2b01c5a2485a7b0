"""Finds a placement that spreads a model's bytes more evenly over its ps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dps.cluster.partition import MinSize, Partitioner, cut
from dps.cluster.placement import Greedy, Policy, RoundRobin, imbalance, nbytes

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

WARN_ABOVE = 1.25
"""Of the bytes per ps: the largest over the mean."""
ALIKE = 0.03
"""A difference that nobody notices."""
WORTH_NBYTES = 1 << 20
"""Smaller models may lie as unevenly as they like."""


def advice(variables: Sequence[tuple[str, Sequence[int], DTypeLike]], nbytes_per_task: Mapping[int, int]) -> str | None:
    """One line for a plan whose largest ps is above `WARN_ABOVE` times the mean, if another placement brings it below.

    `variables`: name, shape and dtype, in creation order. Greedy placement, cut variables, and both are tried; the best
    is named, of those that are alike the simplest. None for an even plan, a small model, and where none is enough.
    """
    ratio, n = imbalance(nbytes_per_task), len(nbytes_per_task)
    if ratio <= WARN_ABOVE or sum(nbytes_per_task.values()) < WORTH_NBYTES:
        return None
    partitioner = MinSize(max_shards=n)
    greedy, split = f"placement=dps.placement.Greedy({n})", f"partitioner=dps.partition.{partitioner!r}"
    tried = (
        (spread(variables, Greedy(n), None, n), greedy),
        (spread(variables, RoundRobin(n), partitioner, n), split),
        (spread(variables, Greedy(n), partitioner, n), f"{greedy} and {split}"),
    )
    best = min(would_be for would_be, _ in tried)
    would_be, what = next(one for one in tried if one[0] <= best + ALIKE)
    if would_be > WARN_ABOVE:
        return None
    fullest = max(nbytes_per_task, key=nbytes_per_task.__getitem__)
    return f"ps:{fullest} holds {ratio:.2f} times the mean of all ps; with {what} it would be {would_be:.2f} times"


def spread(
    variables: Sequence[tuple[str, Sequence[int], DTypeLike]], policy: Policy, partitioner: Partitioner | None, n: int
) -> float:
    """The largest over the mean of the bytes per ps, if these variables were cut and placed so on `n` ps."""
    held = dict.fromkeys(range(n), 0)
    for name, shape, dtype in variables:
        for part in cut(name, shape, dtype, partitioner):
            held[policy(part.name, part.shape, dtype)] += nbytes(part.name, part.shape, dtype)
    return imbalance(held)
