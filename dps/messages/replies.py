"""The results of a session's calls: versions, results of pushes, and replies that may still be pending."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from dps.process.record import record

T = TypeVar("T")


@record
class Version:
    """The versions of all shards at one pull. Compare versions with `==` only.

    Args:
        epoch: The run epoch: one more after each rollback.
        counters: Pairs of a ps's index and its counter of versions.

    Example:
        ```pycon
        >>> before = session.version
        >>> session.push({"w": np.ones(3, np.float32)}).accepted
        True
        >>> values = session.pull()
        >>> session.version == before
        False
        ```
    """

    epoch: int
    counters: tuple[tuple[int, int], ...]


@record
class Push:
    """The result of a push.

    Args:
        step: The global step after the push; in sync mode the session's new local step. In async with several ps it is
            what is known where the push is counted ("Steps on several ps" in docs/guide/update-modes.md).
        accepted: False: the push was dropped as too old, or undone by a rollback.
        staleness: How many versions were applied between the push's pull and the push; the largest over the shards.
        applied_by: Of a push that was not accepted: the ps that have applied their part of it all the same, such as
            ("ps:1",). Only in async and bounded mode with several ps.

    Example:
        ```pycon
        >>> push = session.push({"w": np.ones(3, np.float32)})
        >>> push.step, push.accepted, push.staleness
        (1, True, 0)
        ```
    """

    step: int
    accepted: bool
    staleness: int = 0
    applied_by: tuple[str, ...] = ()

    def __repr__(self) -> str:
        applied = f", applied_by={self.applied_by}" if self.applied_by else ""
        return f"Push(step={self.step}, accepted={self.accepted}, staleness={self.staleness}{applied})"


@record
class Published:
    """A published version: one cut of all shards.

    Args:
        run: The name of the run, a random one.
        number: Rises with each version that the run publishes, over rollbacks and restarts, and is never used again.
        label: As it was given to `Session.publish`.
        step: The global step of the values.
        lag_s: What `dps.Follower.swap` returns has the seconds from the publication to the swap; else 0.0. Versions
            that differ only in it are equal.

    Example:
        ```pycon
        >>> published = session.publish("first")
        >>> published.number, published.label, published.step
        (1, 'first', 0)
        >>> session.pull(published=published)["w"]
        array([0., 0., 0.], dtype=float32)
        ```
    """

    run: str
    number: int
    label: str
    step: int
    lag_s: float = 0.0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Published) and self._version == other._version

    def __hash__(self) -> int:
        return hash(self._version)

    @property
    def _version(self) -> tuple[str, int, str, int]:
        return self.run, self.number, self.label, self.step


class Reply(Generic[T]):
    """A pending request, which proceeds during the session's next calls. `*_async` methods of a session return it.

    Example:
        ```pycon
        >>> reply = session.pull_async()
        >>> reply.result(timeout=10)["w"].shape
        (3,)
        >>> reply.done()
        True
        ```
    """

    def __init__(
        self, finish: Callable[[float | None], T], done: Callable[[], bool], accepted: Callable[[], bool | None]
    ) -> None:
        self._finish, self._done, self._accepted = finish, done, accepted
        self._result: list[Any] = []

    def done(self) -> bool:
        """Whether the result is there. Handles messages that have arrived; does not block.

        Returns:
            True when `result` would return at once, or after a rollback would join the run again.
        """
        return bool(self._result) or self._done()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result. Blocks. A second call returns the same object.

        Args:
            timeout: Seconds; None: the session's timeout.

        Returns:
            What the blocking method would have returned.

        Raises:
            DeadlineExceeded: No result in time; the request goes on, and `result` may be called again.
            TaskLost: The run has ended.
        """
        if not self._result:
            self._result.append(self._finish(timeout))
        result: T = self._result[0]
        return result

    @property
    def accepted(self) -> bool | None:
        """For a push: whether it is part of its step; None while that is not known. Does not block."""
        return self._accepted()
