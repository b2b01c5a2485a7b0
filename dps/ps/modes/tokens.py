"""The tokens of synchronous steps: step values that release waiting pushes, the oldest first."""

from __future__ import annotations

from collections import deque


class Tokens:
    """A worker's next local step is the value of the token that it takes."""

    def __init__(self, queued: bool) -> None:
        """`queued`: tokens that are left when a step is made stay, as in TensorFlow's queue. Otherwise they are
        discarded, and every token has the value of the current step."""
        self._queued = queued
        self.left: deque[int] = deque()
        """The values of the tokens that are left, the oldest first."""

    def add(self, step: int, count: int) -> None:
        """Add this many tokens of a step: at the start, or to end a standstill."""
        self.left.extend([step] * count)

    def hand_out(self, step: int, count: int) -> None:
        """Add the tokens of a step that was made."""
        if not self._queued:
            self.left.clear()
        self.add(step, count)

    def take(self) -> int:
        """Take the oldest token; returns its value."""
        return self.left.popleft()

    def worker_ended(self) -> None:
        """A worker takes no token any more. Remove one that it could have taken from the queue."""
        if self._queued and self.left:
            self.left.popleft()
