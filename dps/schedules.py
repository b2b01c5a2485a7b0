"""Learning-rate schedules: the rate as a pure function of the global step, as data that can be sent to a ps.

The names users write are `dps.optim.Constant`, `Exponential`, `Cosine`, `Piecewise` and `WarmUp`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

from dps.definition import Definition, build
from dps.record import record


class Schedule(Definition):
    """A learning rate as a function of the global step. Pure: the same step gives the same rate."""

    def at(self, step: int) -> float:
        """The learning rate at global step `step`, counted from 0."""
        raise NotImplementedError(f"{type(self).__name__} does not define at(step)")


@record
class Constant(Schedule):
    """The same rate at every step."""

    name: ClassVar[str] = "constant"
    value: float

    def __post_init__(self) -> None:
        self._at_least_zero("value", 0.01)

    def at(self, step: int) -> float:
        return self.value


@record
class Exponential(Schedule):
    """`initial * decay_rate ** (step / decay_steps)`; the exponent is rounded down when `staircase`.

    Source: tf.keras.optimizers.schedules.ExponentialDecay.
    """

    name: ClassVar[str] = "exponential"
    initial: float
    decay_rate: float
    decay_steps: int
    staircase: bool = False

    def __post_init__(self) -> None:
        self._at_least_zero("initial", 0.1)
        self._positive("decay_rate", 0.96)
        self._whole_steps("decay_steps", 1000)
        self._flag("staircase")

    def at(self, step: int) -> float:
        exponent = step // self.decay_steps if self.staircase else step / self.decay_steps
        try:
            return self.initial * self.decay_rate**exponent
        except OverflowError:  # only a decay_rate above 1 gets here
            return math.inf


@record
class Cosine(Schedule):
    """`initial * ((1 - alpha) * (1 + cos(pi * s / decay_steps)) / 2 + alpha)`, `s = min(step, decay_steps)`.

    `alpha` is the fraction of the initial rate that is left at the end. Sources: Loshchilov and Hutter 2017
    (SGDR), tf.keras.optimizers.schedules.CosineDecay (without its warm-up, for which there is `WarmUp`).
    """

    name: ClassVar[str] = "cosine"
    initial: float
    decay_steps: int
    alpha: float = 0.0

    def __post_init__(self) -> None:
        self._at_least_zero("initial", 0.1)
        self._whole_steps("decay_steps", 1000)
        self._at_least_zero("alpha", 0.0)

    def at(self, step: int) -> float:
        done = min(step, self.decay_steps) / self.decay_steps
        return self.initial * ((1 - self.alpha) * 0.5 * (1 + math.cos(math.pi * done)) + self.alpha)


@record
class Piecewise(Schedule):
    """values[i] while step <= boundaries[i] (and above the boundary before it), then the last value.

    `values` has one more item than `boundaries`, which rise strictly.
    Source: tf.keras.optimizers.schedules.PiecewiseConstantDecay (a boundary still has the value before it).
    """

    name: ClassVar[str] = "piecewise"
    boundaries: Sequence[int]
    values: Sequence[float]

    def __post_init__(self) -> None:
        boundaries, values = tuple(self.boundaries), tuple(self.values)
        if len(values) != len(boundaries) + 1:
            wanted = f"one longer than boundaries, here {len(boundaries) + 1} values"
            raise self._refuse("values", list(values), wanted, [0.1 / 10**i for i in range(len(boundaries) + 1)])
        if any(later <= earlier for earlier, later in pairwise(boundaries)):
            raise self._refuse("boundaries", list(boundaries), "strictly rising", sorted(set(boundaries)))
        self._put("boundaries", tuple(int(boundary) for boundary in boundaries))
        self._put("values", tuple(Constant(value).value for value in values))

    def at(self, step: int) -> float:
        return self.values[bisect_left(self.boundaries, step)]


@record
class WarmUp(Schedule):
    """From 0 in a straight line to `target` over `steps` steps, then `target`, its own steps counted from there.

    target(0) * step / steps while step < steps, then target(step - steps). Source: the warm-up of
    tf.keras.optimizers.schedules.CosineDecay (Goyal et al. 2017), with initial rate 0 and any target.
    """

    name: ClassVar[str] = "warmup"
    target: float | Schedule
    steps: int

    def __post_init__(self) -> None:
        self._rate("target")
        self._whole_steps("steps", 1000)

    def at(self, step: int) -> float:
        if step < self.steps:
            return rate_at(self.target, 0) * step / self.steps
        return rate_at(self.target, step - self.steps)


def rate_at(rate: float | Schedule, step: int) -> float:
    return rate.at(step) if isinstance(rate, Schedule) else rate


_KNOWN: dict[str, type[Schedule]] = {cls.name: cls for cls in (Constant, Exponential, Cosine, Piecewise, WarmUp)}
_DEEPEST = 4  # a warm-up of a warm-up of ...: what arrives from the wire must not recurse for long


def schedule_from_wire(wire: object, depth: int = 0) -> Schedule:
    """The schedule that `Schedule.to_wire` wrote. Raises ValueError or TypeError for anything else."""
    if depth > _DEEPEST:
        raise ValueError(f"schedule: got schedules nested more than {_DEEPEST} deep; try one warm-up of one schedule")
    if isinstance(wire, Mapping) and isinstance(wire.get("target"), Mapping):
        wire = {**wire, "target": schedule_from_wire(wire["target"], depth + 1)}
    return build(_KNOWN, "schedule", wire)
