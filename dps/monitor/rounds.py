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
"""What the probe sends over a raw TCP socket, to see whether the machine is as fast as in the other rounds."""
MOVED = 0.3
"""How far a round's probe may lie from the median of all rounds."""


@dataclass
class Rounds:
    """Samples (seconds) by round and by name of what was measured, and which rounds count."""

    probes: list[float] = field(default_factory=list)
    samples: list[dict[str, list[float]]] = field(default_factory=list)
    rates: list[dict[str, float]] = field(default_factory=list)
    """Calls per second of the workers beside the measured one, where there are any."""

    def measure(self, probe: Callable[[], object], turns: Mapping[str, Turn], at_least_s: float) -> None:
        """One more round. Blocks."""
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
        """The median of the medians of the rounds that count."""
        return statistics.median(statistics.median(self.samples[i][name]) for i in self.steady)

    def p99_s(self, name: str) -> float:
        """The 99th percentile over all calls of the rounds that count."""
        found = sorted(s for i in self.steady for s in self.samples[i][name])
        return found[min(len(found) - 1, int(len(found) * 0.99))]

    def beside_per_s(self, name: str) -> float:
        """Calls per second of the workers beside, median over the rounds that count."""
        return statistics.median(self.rates[i][name] for i in self.steady)


@dataclass(frozen=True)
class Turn:
    """What is called in a round; `begin` and `end` go around all of its calls. `end` gives the rate of those beside."""

    call: Callable[[], object]
    begin: Callable[[], None] = lambda: None
    end: Callable[[], float] = lambda: 0.0


def rotated(items: Sequence[Item], by: int) -> list[Item]:
    """The same items, beginning `by` places later: no item always comes first, or always after the same one."""
    by %= max(len(items), 1)
    return [*items[by:], *items[:by]]


def steady(probes: Sequence[float], moved: float = MOVED) -> list[int]:
    """The rounds whose probe lies within `moved` of the median."""
    middle = statistics.median(probes)
    return [i for i, probe in enumerate(probes) if abs(probe / middle - 1) <= moved]
