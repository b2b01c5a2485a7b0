"""Learning-rate schedules: pure functions of the global step, as plain data that can be sent to a ps.

The names users write are `dps.optim.Constant`, `Exponential`, `Cosine`, `Piecewise`, `PerStep` and `WarmUp`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

from dps.process.record import record
from dps.training.definition import Definition, build

MOST_VALUES = 100_000
"""The most values of a `PerStep`, which every task of a run is sent."""


class Schedule(Definition):
    """A learning rate as a function of the global step. Pure: the same step gives the same rate."""

    def at(self, step: int) -> float:
        """The learning rate at a global step.

        Args:
            step: The global step, counted from 0.

        Returns:
            The rate.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define at(step)")


@record
class Constant(Schedule):
    """The same rate at every step.

    Args:
        value: The rate; at least 0.

    Raises:
        ConfigError: A number out of range; a TypeError as well if it is not a number.

    Example:
        ```pycon
        >>> dps.optim.Constant(0.1).at(1000)
        0.1
        ```
    """

    name: ClassVar[str] = "constant"
    value: float

    def __post_init__(self) -> None:
        self._at_least_zero("value", 0.01)

    def at(self, step: int) -> float:
        return self.value


@record
class Exponential(Schedule):
    """`initial * decay_rate ** (step / decay_steps)`.

    Source: tf.keras.optimizers.schedules.ExponentialDecay.

    Args:
        initial: The rate at step 0; at least 0.
        decay_rate: The factor for each `decay_steps`; above 0.
        decay_steps: Steps; a whole number from 1.
        staircase: Whether the exponent is rounded down, so that the rate falls in stairs.

    Raises:
        ConfigError: A number out of range; a TypeError as well if it is not a number.

    Example:
        ```pycon
        >>> dps.optim.Exponential(0.1, decay_rate=0.5, decay_steps=100).at(200)
        0.025
        ```
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

    Sources: Loshchilov and Hutter 2017 (SGDR), tf.keras.optimizers.schedules.CosineDecay. Its warm-up is `WarmUp` here.

    Args:
        initial: The rate at step 0; at least 0.
        decay_steps: Steps until the last rate; a whole number from 1.
        alpha: The share of the initial rate that is left at the end.

    Raises:
        ConfigError: A number out of range; a TypeError as well if it is not a number.

    Example:
        ```pycon
        >>> schedule = dps.optim.Cosine(0.1, decay_steps=1000, alpha=0.1)
        >>> schedule.at(0), round(schedule.at(1000), 3)
        (0.1, 0.01)
        ```
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
    """`values[i]` from above `boundaries[i - 1]` up to and with `boundaries[i]`, then the last value.

    Source: tf.keras.optimizers.schedules.PiecewiseConstantDecay.

    Args:
        boundaries: Steps; they rise strictly.
        values: The rates; one more than there are boundaries.

    Raises:
        ConfigError: Boundaries that do not rise, or a wrong number of values.

    Example:
        ```pycon
        >>> schedule = dps.optim.Piecewise([100, 200], [0.1, 0.01, 0.001])
        >>> schedule.at(100), schedule.at(101), schedule.at(500)
        (0.1, 0.01, 0.001)
        ```
    """

    name: ClassVar[str] = "piecewise"
    boundaries: Sequence[int]
    values: Sequence[float]

    def __post_init__(self) -> None:
        boundaries, values = self._listed("boundaries", [100]), self._listed("values", [0.1, 0.01])
        if len(values) != len(boundaries) + 1:
            wanted = f"one longer than boundaries, here {len(boundaries) + 1} values"
            raise self._refuse("values", list(values), wanted, [0.1 / 10**i for i in range(len(boundaries) + 1)])
        if not all(_is_whole(boundary) for boundary in boundaries):
            raise self._refuse("boundaries", list(boundaries), "whole numbers of steps", [100])
        if any(later <= earlier for earlier, later in pairwise(boundaries)):
            raise self._refuse("boundaries", list(boundaries), "strictly rising", sorted(set(boundaries)))
        self._put("boundaries", tuple(int(boundary) for boundary in boundaries))
        self._put("values", tuple(Constant(value).value for value in values))

    def at(self, step: int) -> float:
        return self.values[bisect_left(self.boundaries, step)]


@record
class PerStep(Schedule):
    """`values[step]`, then the last value.

    `dps.torch.schedule` makes one of a scheduler of PyTorch.

    Args:
        values: The rate of each step from 0 on; at least 0, and from 1 to 100,000 of them.

    Raises:
        ConfigError: No value or too many, or a number out of range; a TypeError as well if it is not a number.

    Example:
        ```pycon
        >>> schedule = dps.optim.PerStep([0.1, 0.2, 0.05])
        >>> schedule.at(1), schedule.at(500)
        (0.2, 0.05)
        ```
    """

    name: ClassVar[str] = "per_step"
    values: Sequence[float]

    def __post_init__(self) -> None:
        values = self._listed("values", [0.1, 0.05])
        if not 1 <= len(values) <= MOST_VALUES:
            got = f"{len(values)} values"
            raise self._refuse("values", got, f"from 1 to {MOST_VALUES} numbers", [0.1, 0.05])
        checked = {value: Constant(value).value for value in dict.fromkeys(values)}  # many steps often have one rate
        self._put("values", tuple(checked[value] for value in values))

    def at(self, step: int) -> float:
        return self.values[min(step, len(self.values) - 1)]

    def __repr__(self) -> str:
        if len(self.values) <= 8:
            return f"PerStep(values={self.values})"
        first = ", ".join(map(repr, self.values[:3]))
        return f"PerStep(values=({first}, ... {self.values[-1]!r}), {len(self.values)} of them)"


@record
class WarmUp(Schedule):
    """From 0 in a straight line to `target` over `steps` steps, then `target`.

    `target(0) * step / steps` while `step < steps`, then `target(step - steps)`. Source: the warm-up of
    tf.keras.optimizers.schedules.CosineDecay (Goyal et al. 2017), with initial rate 0 and any target.

    Args:
        target: The rate after the warm-up: a number, or a schedule whose steps are counted from there.
        steps: How long the warm-up is; a whole number from 1.

    Raises:
        ConfigError: A number out of range; a TypeError as well if it is not a number.

    Example:
        ```pycon
        >>> schedule = dps.optim.WarmUp(dps.optim.Constant(0.1), steps=100)
        >>> schedule.at(50), schedule.at(100)
        (0.05, 0.1)
        ```
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


def _is_whole(number: object) -> bool:
    """Whether this is a whole number, of any type but bool: 1e4 is one."""
    if isinstance(number, bool | str | bytes) or not hasattr(number, "__float__"):
        return False
    return math.isfinite(number) and number == int(number)  # type: ignore[call-overload]


def rate_at(rate: float | Schedule, step: int) -> float:
    return rate.at(step) if isinstance(rate, Schedule) else rate


_KNOWN: dict[str, type[Schedule]] = {
    cls.name: cls for cls in (Constant, Exponential, Cosine, Piecewise, PerStep, WarmUp)
}


def schedule_names() -> str:
    """The classes of all schedules, for messages."""
    return ", ".join(cls.__name__ for cls in _KNOWN.values())


_DEEPEST = 4  # nested warm-ups: data from the wire must not cause deep recursion


def schedule_from_wire(wire: object, depth: int = 0) -> Schedule:
    """The schedule that `Schedule.to_wire` wrote. Raises ValueError or TypeError for anything else."""
    if depth > _DEEPEST:
        raise ValueError(f"schedule: got schedules nested more than {_DEEPEST} deep; try one warm-up of one schedule")
    if isinstance(wire, Mapping) and isinstance(wire.get("target"), Mapping):
        wire = {**wire, "target": schedule_from_wire(wire["target"], depth + 1)}
    return build(_KNOWN, "schedule", wire)
