"""Stands for the chief's node: what it asks is noted, and the test hands in the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dps.actors.messages import Done
from dps.actors.ref import Ref
from dps.actors.system import Then
from dps.checkpoint import MemoryStorage
from dps.transport.wire import Message


class Question:
    """One that was asked and waits."""

    def __init__(
        self, to: Ref, message: Message, timeout_s: float, then: Callable[[Message | Exception], None]
    ) -> None:
        self.to, self.message, self.timeout_s, self._then = to, message, timeout_s, then

    def answer(self, answer: Message | Exception | None = None) -> None:
        self._then(Done() if answer is None else answer)


class Desk:
    """Has what the parts of the chief want of a `Node` and its `Runtime`."""

    def __init__(self, storage: Any = None) -> None:
        self.name, self.address = "chief", "127.0.0.1:1"
        self.runtime = self
        self.storage = storage or MemoryStorage()
        self.questions: list[Question] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.recorded: list[str] = []

    def ask(self, to: Ref, message: Message, timeout_s: float, then: Then) -> Callable[[], None]:
        self.questions.append(Question(to, message, timeout_s, then))
        return lambda: None

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append((seconds, call))

    def record(self, what: str, **detail: Any) -> None:
        self.recorded.append(what)

    def take(self) -> list[Question]:
        """The questions since the last time."""
        taken, self.questions = self.questions, []
        return taken
