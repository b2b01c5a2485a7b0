"""Interleaved rounds: each measures a raw TCP probe, then limits and works in turn, in an order that rotates from round
to round. Unsteady rounds are dropped."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dps.transport.limits import seconds

Item = TypeVar("Item")

PROBE_NBYTES = 16 << 20
"""Bytes that the probe sends over a raw TCP socket, to check that the machine is as fast as in other rounds."""
MOVED = 0.3
"""How far a round's probe may differ from the median of all rounds."""


@dataclass
class Rounds:
    """Samples (seconds) by round and by name, and which rounds count."""

    probes: list[float] = field(default_factory=list)
    samples: list[dict[str, list[float]]] = field(default_factory=list)
    rates: list[dict[str, float]] = field(default_factory=list)
    """Calls per second of the additional workers, if there are any."""

    def measure(self, probe: Callable[[], object], turns: Mapping[str, Turn], at_least_s: float) -> None:
        """Measure one more round. Blocks."""
        self.probes.append(statistics.median(seconds(probe, at_least_s / 4)))
        samples: dict[str, list[float]] = {}
        rates: dict[str, float] = {}
        for name in rotated(list(turns), len(self.probes) - 1):
            turn = turns[name]
            turn.begin()
            samples[name] = seconds(turn.call, at_least_s)
            rates[name] = turn.end()
        self.samples.append(samples)
        self.rates.append(rates)

    @property
    def steady(self) -> list[int]:
        """The rounds that count."""
        return steady(self.probes)

    @property
    def dropped(self) -> int:
        return len(self.probes) - len(self.steady)

    def median_s(self, name: str) -> float:
        """The median, over the rounds that count, of each round's median."""
        return statistics.median(statistics.median(self.samples[i][name]) for i in self.steady)

    def p99_s(self, name: str) -> float:
        """The 99th percentile over all calls of the rounds that count."""
        found = sorted(s for i in self.steady for s in self.samples[i][name])
        return found[min(len(found) - 1, int(len(found) * 0.99))]

    def beside_per_s(self, name: str) -> float:
        """Calls per second of the additional workers; the median over the rounds that count."""
        return statistics.median(self.rates[i][name] for i in self.steady)


@dataclass(frozen=True)
class Turn:
    """A function to call in a round. `begin` and `end` enclose its calls; `end` returns the others' rate."""

    call: Callable[[], object]
    begin: Callable[[], None] = lambda: None
    end: Callable[[], float] = lambda: 0.0


def rotated(items: Sequence[Item], by: int) -> list[Item]:
    """The items rotated by `by` places, so that no item always comes first."""
    by %= max(len(items), 1)
    return [*items[by:], *items[:by]]


def steady(probes: Sequence[float], moved: float = MOVED) -> list[int]:
    """The rounds whose probe is within `moved` of the median; at least one, as the lower of two medians counts."""
    middle = statistics.median_low(probes)
    return [i for i, probe in enumerate(probes) if abs(probe / middle - 1) <= moved]
