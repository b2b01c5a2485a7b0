"""The compute model: how much virtual time a computing step takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True, slots=True)
class Compute:
    """How much virtual time a computing step takes.

    Args:
        seconds: The length of a step.
        jitter: A step is longer or shorter by up to this share; from 0 to 1.
        slow: Factors for slow tasks, by name ("worker:3", "ps:0") or, for workers, by index (3).

    Raises:
        ValueError: A number out of range.

    Example:
        ```pycon
        >>> dps.sim.Compute(seconds=0.1, slow={3: 10.0}).step_s(seed=0, task="worker:3", step=0)
        1.0
        ```
    """

    seconds: float = 0.0
    jitter: float = 0.0
    slow: Mapping[int | str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.seconds < 0 or not 0 <= self.jitter <= 1:
            raise ValueError(
                f"Compute(seconds={self.seconds}, jitter={self.jitter}): wanted seconds >= 0 and 0 <= jitter <= 1"
            )

    def step_s(self, seed: int | str, task: str, step: int) -> float:
        """How long one step takes; the same for the same arguments.

        Args:
            seed: The world's seed.
            task: The task's name.
            step: The number of the step, from 0.

        Returns:
            Virtual seconds.
        """
        factor = self.slow.get(task)
        if factor is None:
            job, _, index = task.partition(":")
            factor = self.slow.get(int(index), 1.0) if job == "worker" and index.isdecimal() else 1.0
        jitter = self.jitter * Random(f"{seed}/compute/{task}/{step}").uniform(-1.0, 1.0) if self.jitter else 0.0
        return self.seconds * (1.0 + jitter) * factor
