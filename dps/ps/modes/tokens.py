"""The tokens of synchronous steps: step values that release waiting pushes, the oldest first."""

from __future__ import annotations

from collections import deque


class Tokens:
    """A worker's next local step is the value of the token it takes.

    `queued`: tokens that are left over when a step is made stay, as in TensorFlow's queue; else they are discarded, and
    every token has the value of the current step.
    """

    def __init__(self, queued: bool) -> None:
        self._queued = queued
        self._values: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._values)

    @property
    def values(self) -> tuple[int, ...]:
        """Those that are left, oldest first."""
        return tuple(self._values)

    def add(self, step: int, count: int) -> None:
        """So many more of a step: at the start, or to end a standstill."""
        self._values.extend([step] * count)

    def hand_out(self, step: int, count: int) -> None:
        """The tokens of a step that was made."""
        if not self._queued:
            self._values.clear()
        self.add(step, count)

    def take(self) -> int:
        """The oldest; its value."""
        return self._values.popleft()

    def worker_ended(self) -> None:
        """A worker takes no token any more: one that it could have taken goes from the queue."""
        if self._queued and self._values:
            self._values.popleft()
