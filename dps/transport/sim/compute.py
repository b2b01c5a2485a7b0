"""What a step of computing costs in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True, slots=True)
class Compute:
    """A step takes `seconds`, plus or minus up to the share `jitter` of it, times the task's factor in `slow`.

    `slow` names tasks ("worker:3", "ps:0"), or workers by their index (3).
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
        """Virtual seconds of one step, counted from 0; the same for the same seed, task and step."""
        factor = self.slow.get(task)
        if factor is None:
            job, _, index = task.partition(":")
            factor = self.slow.get(int(index), 1.0) if job == "worker" and index.isdecimal() else 1.0
        jitter = self.jitter * Random(f"{seed}/compute/{task}/{step}").uniform(-1.0, 1.0) if self.jitter else 0.0
        return self.seconds * (1.0 + jitter) * factor
