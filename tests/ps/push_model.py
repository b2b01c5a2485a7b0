"""What a ps does with whole pushes, written from the semantics: a model to compare with. The learning rate is 1.

Workers 0, 1, ... have incarnations 1, 2, ... A push has one number of its session, from 1 on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dps.messages.sessions import APPLIED, DROPPED, REFUSED

Outcome = tuple[str, int, int]
"""Status, step and staleness of a push."""


@dataclass
class Sent:
    """One message of a push."""

    worker: int
    number: int
    step: int
    """The worker's local step."""
    counter: int
    """The version that the gradient was computed from."""
    gradient: Any

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.gradient).all())


@dataclass
class Model:
    """The values, the step, the version, and the outcomes of pushes by worker and number."""

    values: Any
    step: int = 0
    counter: int = 0
    outcomes: dict[tuple[int, int], Outcome] = field(default_factory=dict)
    next: dict[int, int] = field(default_factory=dict)

    def apply(self, gradient: Any) -> None:
        """One update: the next step and version."""
        self.values = self.values - gradient
        self.step, self.counter = self.step + 1, self.counter + 1


@dataclass
class AsyncModel(Model):
    """A push is applied when all earlier ones of its session have outcomes."""

    early: dict[tuple[int, int], Sent] = field(default_factory=dict)

    def push(self, sent: Sent) -> None:
        if sent.number < self.next[sent.worker]:
            return
        self.early.setdefault((sent.worker, sent.number), sent)
        while (due := self.early.pop((sent.worker, self.next[sent.worker]), None)) is not None:
            staleness = max(0, self.counter - due.counter) if due.counter >= 0 else 0
            if due.is_finite:
                self.apply(due.gradient)
            status = APPLIED if due.is_finite else REFUSED
            self.outcomes[due.worker, due.number] = status, self.step, staleness
            self.next[due.worker] += 1


@dataclass
class SyncModel(Model):
    """A step is the mean of one push of each worker, in the order of the workers. Every worker waits for its token."""

    waiting: list[tuple[int, int, str]] = field(default_factory=list)
    """Worker, number and status of each push that waits for a token, in the order in which they came."""
    held: dict[int, Any] = field(default_factory=dict)
    """The gradients of the step, by worker."""
    excused: int = 0
    """How many gradients of this step were refused: the step goes on without them."""

    def push(self, sent: Sent) -> None:
        if sent.number < self.next[sent.worker]:
            return
        self.next[sent.worker] += 1
        if not sent.is_finite:
            status, self.excused = REFUSED, self.excused + (sent.step >= self.step)
        elif sent.step < self.step:
            status = DROPPED
        else:
            status, self.held[sent.worker] = APPLIED, sent.gradient
        self.waiting.append((sent.worker, sent.number, status))
        self._go_on()

    def _go_on(self) -> None:
        workers = len(self.next)
        if self.held and len(self.held) >= workers - self.excused:
            gradients = [self.held[worker] for worker in sorted(self.held)]
            total = gradients[0]
            for gradient in gradients[1:]:
                total = total + gradient
            self.apply(total / np.float32(len(gradients)) if len(gradients) > 1 else total)
            self.held, self.excused = {}, 0
            self._grant(workers)
        elif len(self.waiting) == workers and not self.held:
            self.excused = 0
            self._grant(workers)
        elif len(self.waiting) == workers:  # a standstill: those whose push does not count push again
            self.waiting.sort(key=lambda waiting: waiting[0] in self.held)
            self._grant(workers - self.excused - len(self.held))

    def _grant(self, tokens: int) -> None:
        granted, self.waiting = self.waiting[:tokens], self.waiting[tokens:]
        for worker, number, status in granted:
            self.outcomes[worker, number] = status, self.step, 0
