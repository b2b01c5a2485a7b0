"""What a session hands back: versions, results of pushes, and replies that are still on their way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from dps.record import record

T = TypeVar("T")


@record
class Version:
    """The versions of all shards at a pull: run epoch and a counter per ps. Compare with == only."""

    epoch: int
    counters: tuple[tuple[int, int], ...]


@record
class Push:
    """The result of a push. `step`: the global step after it, in sync the session's new local step.
    `accepted`: false when it was dropped as too old or undone by a rollback. `staleness`: versions applied between
    its pull and its push, the largest over the shards."""

    step: int
    accepted: bool
    staleness: int = 0


class Reply(Generic[T]):
    """A request that goes on by itself during the session's next calls."""

    def __init__(
        self, finish: Callable[[float | None], T], done: Callable[[], bool], accepted: Callable[[], bool | None]
    ) -> None:
        self._finish, self._done, self._accepted = finish, done, accepted
        self._result: list[Any] = []

    def done(self) -> bool:
        """Whether the result is there. Takes what has arrived; does not block."""
        return bool(self._result) or self._done()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result; DeadlineExceeded after `timeout` seconds (None: the session's), the request goes on."""
        if not self._result:
            self._result.append(self._finish(timeout))
        result: T = self._result[0]
        return result

    @property
    def accepted(self) -> bool | None:
        """Of a push: whether it is in its step's set; None while that is not known. Does not block."""
        return self._accepted()
