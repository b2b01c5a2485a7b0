"""A seeded stream of clicks whose probabilities are known: what `examples/clicks.py` trains on.

An example has 13 numbers and the ids of 26 features, as public click logs have. How often an id comes follows Zipf's
law, and every day one in twenty ids gives its place to a new one and never comes again. Each id adds a number to the
log-odds of a click. Over the first eight features, two sums of other numbers are multiplied, which no linear model can
say. The generator knows the probability of each click, and so the best log loss that a model can have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

DENSE, FEATURES, MULTIPLIED = 13, 26, 8
FEATURE_BIT = 58
"""A key has the number of its feature from this bit on, and the id below."""
RENEWED, ZIPF = 0.05, 1.2


@dataclass(frozen=True)
class Clicks:
    """`dense` float32 (n, 13), `keys` int64 (n, 26), `clicked` float32 (n,) of 0 and 1, `probability` float64 (n,)."""

    dense: np.ndarray
    keys: np.ndarray
    clicked: np.ndarray
    probability: np.ndarray

    def batches(self, size: int) -> Iterator[Clicks]:
        for start in range(0, len(self.clicked), size):
            cut = slice(start, start + size)
            yield Clicks(self.dense[cut], self.keys[cut], self.clicked[cut], self.probability[cut])

    def loss(self, probability: np.ndarray | float) -> float:
        """Mean log loss if this is predicted: a probability for each example, or one for all."""
        p = np.clip(probability, 1e-6, 1 - 1e-6)
        return float(-np.mean(self.clicked * np.log(p) + (1 - self.clicked) * np.log1p(-p)))


def days(n: int, log: int = 0, seed: int = 5) -> Iterator[Clicks]:
    """`n` examples of each day, without end. All logs of a seed have the same ids, and each has its own examples."""
    world, own = np.random.default_rng(seed), np.random.default_rng((seed, log))
    sizes = np.geomspace(10, 10_000, FEATURES).astype(int)  # how many ids each feature has at a time
    shares = [np.arange(1, size + 1) ** -ZIPF for size in sizes]
    ids, weights = [np.arange(size) for size in sizes], world.normal(0, 0.4, DENSE)
    adds, factors = ([world.normal(size=size) for size in sizes] for _ in range(2))
    while True:
        dense = own.normal(size=(n, DENSE)).astype(np.float32)
        places = [own.choice(len(share), n, p=share / share.sum()) for share in shares]
        added = np.sum([adds[f][places[f]] for f in range(FEATURES)], axis=0)
        one, other = (np.sum([factors[f][places[f]] for f in range(k, MULTIPLIED, 2)], axis=0) for k in (0, 1))
        probability = 1 / (1 + np.exp(1.5 - dense @ weights - 0.2 * added - 0.25 * one * other))
        keys = np.stack([(f << FEATURE_BIT) + ids[f][places[f]] for f in range(FEATURES)], axis=1)
        yield Clicks(dense, keys, (own.random(n) < probability).astype(np.float32), probability)
        for f in range(FEATURES):
            gone = np.flatnonzero(world.random(sizes[f]) < RENEWED)
            ids[f][gone] = ids[f].max() + 1 + np.arange(len(gone))
            adds[f][gone], factors[f][gone] = world.normal(size=(2, len(gone)))
