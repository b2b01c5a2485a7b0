"""Stands for the chief's node: what it asks is noted, and the test hands in the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dps.actors.answers import Done
from dps.actors.authorization import Peer
from dps.actors.node import Then
from dps.actors.ref import Ref, Sender
from dps.checkpoint import MemoryStorage
from dps.transport.endpoint import ProcessLocation
from dps.transport.message import Message


class Question:
    """One that was asked and waits."""

    def __init__(
        self, to: Ref, message: Message, timeout_s: float, then: Callable[[Message | Exception], None],
        waits: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.to, self.message, self.timeout_s, self._then, self.wait = to, message, timeout_s, then, waits

    def answer(self, answer: Message | Exception | None = None) -> None:
        self._then(Done() if answer is None else answer)


class Desk:
    """Has what the parts of the chief want of a `Node` and its `Runtime`."""

    silence_s = 5.0

    def __init__(self, storage: Any = None) -> None:
        self.name, self.address, self.incarnation = "chief", "127.0.0.1:1", 7
        self.asker = self.user = ""
        self.place = ProcessLocation("box", "boot", 1)
        self.runtime = self
        self.storage = storage or MemoryStorage()
        self.questions: list[Question] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.recorded: list[str] = []
        self.answers: list[tuple[Any, Message | Exception]] = []
        """Routes of senders, and what they were answered."""
        self.told: list[tuple[Ref, Message]] = []
        self.watched: set[str] = set()
        self.exposed = False
        self.up: dict[str, int] = {}
        self.tickets: Any = self
        self.own = Peer("own")
        self._clock_s = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def admit(self, group: str, entries: Any) -> None:
        pass

    def present(self, address: str, ticket: bytes = b"") -> None:
        pass

    def secret(self) -> bytes:
        return bytes(16)

    def dial_address(self, told: str, named: object = ()) -> str:
        return told

    def expect(self, address: str, user: str) -> None:
        pass

    def now(self) -> float:
        return self._clock_s

    def lives(self, pid: int) -> bool:
        return False

    def wall(self) -> float:
        return 1.7e9 + self._clock_s

    def spawn(self, name: str, target: Callable[[], None]) -> Any:
        target()
        return None

    def post(self, call: Callable[[], None]) -> None:
        call()

    def ask(
        self, to: Ref, message: Message, timeout_s: float, then: Then,
        waits: Callable[[str], None] = lambda reason: None,
    ) -> Callable[[], None]:  # fmt: skip
        self.questions.append(Question(to, message, timeout_s, then, waits))
        return lambda: None

    def tell(self, to: Ref, message: Message) -> None:
        self.told.append((to, message))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append((seconds, call))
        self._due.append((self._clock_s + seconds, len(self.timers), call))

    def pass_time(self, seconds: float) -> None:
        """Let the clock go on, and call what was to be called by then, in order."""
        until = self._clock_s + seconds
        while (due := min(self._due, default=None)) is not None and due[0] <= until:
            self._due.remove(due)
            self._clock_s = due[0]
            due[2]()
        self._clock_s = until

    def answer(self, sender: Sender, message: Message | Exception | None = None) -> None:
        self.answers.append((sender.route, Done() if message is None else message))

    def watch(self, address: str, grace_s: float) -> None:
        self.watched.add(address)

    def unwatch(self, address: str) -> None:
        self.watched.discard(address)

    def record(self, what: str, **detail: Any) -> None:
        self.recorded.append(what)

    def take(self, kind: type[Message] = Message) -> list[Question]:
        """The questions of a kind since the last time."""
        taken = [question for question in self.questions if isinstance(question.message, kind)]
        self.questions = [question for question in self.questions if question not in taken]
        return taken
