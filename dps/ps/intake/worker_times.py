"""What the time of a worker's loop goes to, as the worker tells the step ps: sums, and those of its last steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from dps.errors import ProtocolError

LEAST_STEPS, LEAST_S = 10, 2.0
"""The last steps are at least so many, and of at least so many seconds."""
PIECE_S = 0.25
"""They come in pieces, each at least so long."""
MOST_S = 1e9


class LoopSums(NamedTuple):
    """Steps, and seconds for which the loop has read data, has computed, has moved values and gradients, and has waited
    for other workers."""

    steps: int = 0
    read_s: float = 0.0
    computed_s: float = 0.0
    moved_s: float = 0.0
    waited_s: float = 0.0

    @property
    def total_s(self) -> float:
        return sum(self[1:])

    def since(self, before: LoopSums) -> LoopSums:
        """What was added since then."""
        seconds = [now - then for now, then in zip(self[1:], before[1:], strict=True)]
        return LoopSums(self.steps - before.steps, *seconds)


class WorkerTimes:
    """The times of one session in one incarnation. No clock.

    After every report: no sum is negative or lower than before, and together they are the time that the session has
    told, read, computed and in its calls. How much of its calls was waiting the ps has measured.
    """

    def __init__(self) -> None:
        self.sums = LoopSums()
        self.patience_s = 0.0
        """The session's timeout; 0: none."""
        self._told = 0.0, 0.0, 0.0
        self._waited_s = 0.0
        self._marks: deque[LoopSums] = deque()
        """The sums at the ends of the last pieces, the oldest first. They begin after the first step, in which programs
        and ps load and compile."""

    def record_report(self, told: Sequence[Any], steps: int, waited_s: float) -> None:
        """Take what came with a push. `steps`: how many earlier pushes have results, unless the session tells that
        itself; `waited_s`: how long they and the pulls have waited for other workers.

        Lower sums than before came with a push that was sent again, and change nothing. Raises ProtocolError for
        anything but four numbers from 0 to 1e9, or five.
        """
        read_s, computed_s, calls_s, self.patience_s, *own = _checked(told)
        steps = int(own[0]) if own else steps
        before, sums = self._told, self.sums
        if read_s < before[0] or computed_s < before[1] or calls_s < before[2]:
            return
        in_calls = calls_s - before[2]
        waited = min(in_calls, max(0.0, waited_s - self._waited_s))  # a push may also wait while its loop computes
        self._told, self._waited_s = (read_s, computed_s, calls_s), max(self._waited_s, waited_s)
        self.sums = LoopSums(
            max(steps, sums.steps), read_s, computed_s, sums.moved_s + (in_calls - waited), sums.waited_s + waited
        )
        self._mark()

    def _mark(self) -> None:
        """End a piece here, or make the last one longer."""
        marks, sums = self._marks, self.sums
        if sums.steps == (marks[-1].steps if marks else 0):
            return
        if len(marks) > 1 and marks[-1].since(marks[-2]).total_s < PIECE_S:
            marks.pop()
        marks.append(sums)
        while len(marks) > 2 and _is_enough(sums.since(marks[1])):
            marks.popleft()

    def as_dict(self) -> dict[str, Any]:
        """The sums, and the last pieces as lists, for people."""
        pieces = [list(after.since(before)) for before, after in pairwise(self._marks)]
        return {**self.sums._asdict(), "recent": pieces}


def _is_enough(piece: LoopSums) -> bool:
    return piece.steps >= LEAST_STEPS and piece.total_s >= LEAST_S


def _checked(told: Sequence[Any]) -> list[float]:
    good = [type(value) in (int, float) and math.isfinite(value) and 0 <= value <= MOST_S for value in told]
    if len(good) not in (4, 5) or not all(good):
        raise ProtocolError(f"times of a push: got {told!r:.80}, wanted four numbers of seconds from 0 to 1e9, or five")
    return list(map(float, told))
