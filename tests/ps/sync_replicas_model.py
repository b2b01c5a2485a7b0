"""TensorFlow's SyncReplicasOptimizer as its documentation describes it, for one variable: a model to compare with.

Workers apply gradients to an accumulator, which drops those that are older than its own time step. When it has enough,
the chief takes their mean, updates the variable, raises the global step and puts tokens with its value into a queue
that is first in, first out. A worker that has applied its gradient takes a token; its value is its next local step.
Here the chief acts as soon as there are enough gradients, so the mean is never of more.
"""

from __future__ import annotations

from collections import deque
from fractions import Fraction


class Accumulator:
    """Gradients of one variable, until enough are there."""

    def __init__(self) -> None:
        self.time_step = 0
        self.held: list[tuple[int, Fraction]] = []
        """Workers and their gradients."""

    def apply(self, worker: int, gradient: Fraction, local_step: int) -> bool:
        """Whether it was taken."""
        if local_step < self.time_step:
            return False
        self.held.append((worker, gradient))
        return True

    def take_mean(self, required: int) -> Fraction | None:
        """None while there are fewer gradients."""
        if len(self.held) < required:
            return None
        mean = sum((gradient for _, gradient in self.held), Fraction(0)) / len(self.held)
        self.held = []
        self.time_step += 1
        return mean


class SyncReplicasModel:
    """The chief, the accumulator, the token queue, and the local steps of the workers. The learning rate is 1."""

    def __init__(self, workers: int, aggregate: int, total: int, initial_tokens: int) -> None:
        self.aggregate, self.tokens_per_step = aggregate, max(aggregate, total)
        self.accumulator = Accumulator()
        self.queue = deque([0] * initial_tokens)
        self.local_step = dict.fromkeys(range(workers), 0)
        self.global_step, self.value = 0, Fraction(0)
        self._dequeuing: deque[int] = deque()

    def push(self, worker: int, gradient: Fraction) -> tuple[bool, list[tuple[int, int]]]:
        """Whether the gradient was taken, and the tokens that are taken now, as (worker, value)."""
        taken = self.accumulator.apply(worker, gradient, self.local_step[worker])
        self._dequeuing.append(worker)
        mean = self.accumulator.take_mean(self.aggregate)
        if mean is not None:
            self.value -= mean
            self.global_step += 1
            self.queue.extend([self.global_step] * self.tokens_per_step)
        released = []
        while self.queue and self._dequeuing:
            worker = self._dequeuing.popleft()
            self.local_step[worker] = self.queue.popleft()
            released.append((worker, self.local_step[worker]))
        return taken, released

    def free(self) -> list[int]:
        """The workers that compute."""
        return [worker for worker in self.local_step if worker not in self._dequeuing]
