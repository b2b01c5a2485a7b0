"""Finds a placement that spreads a model's bytes more evenly over its ps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dps.cluster.partition import MinSize, Partitioner, cut
from dps.cluster.placement import Greedy, Policy, RoundRobin, imbalance, nbytes

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

WARN_ABOVE = 1.25
"""The largest number of bytes per ps over the mean."""
ALIKE = 0.03
"""A difference that does not matter."""
WORTH_NBYTES = 1 << 20
"""For smaller models an uneven placement does not matter."""


def advice(variables: Sequence[tuple[str, Sequence[int], DTypeLike]], nbytes_per_task: Mapping[int, int]) -> str | None:
    """One line of advice if the largest ps of a plan is above `WARN_ABOVE` times the mean and a better placement
    exists.

    `variables`: name, shape and dtype, in creation order. It tries greedy placement, partitioned variables, and both,
    and names the best; of equally good ones, the simplest. None for an even plan or a small model, or if none helps.
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
    """The largest number of bytes per ps over the mean, if the variables were split and placed this way on `n` ps."""
    held = dict.fromkeys(range(n), 0)
    for name, shape, dtype in variables:
        for part in cut(name, shape, dtype, partitioner):
            held[policy(part.name, part.shape, dtype)] += nbytes(part.name, part.shape, dtype)
    return imbalance(held)
