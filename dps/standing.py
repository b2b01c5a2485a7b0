"""Where a task stands in its run: whether it has joined, has to stop, how it has ended; and what its sessions know."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from dps.errors import DeadlineExceeded, DpsError, NotAuthenticated, TaskLost
from dps.transport.endpoint import Runtime

if TYPE_CHECKING:
    from dps.transport.keys import Credentials


class Home(NamedTuple):
    """The task that a session belongs to, as the session knows it.

    More than 12 attributes: all that a session needs of its task, so that it knows nothing else of the server.
    """

    runtime: Runtime
    name: str
    job: str
    task: int
    address: str
    process: int
    chief: str
    """The address of the chief's node."""
    over: Callable[[], tuple[int, str] | None]
    """Exit code and reason once this node was told to end, else None."""
    joined: Callable[[int], None]
    """Is told each run epoch that a session takes part in."""
    hooks: list[Any]
    """Instances of `dps.Hook` that all sessions of the task have, called before their own."""
    keys: Credentials | None = None
    """What the session connects with."""
    named: int = -1
    """Of a client: the worker whose address it was given; -1: none."""
    ticket: bytes = b""
    """What the process presents to the chief and to the ps."""


class Standing:
    """Of one task. The node's thread and the program's write it; the first end counts."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.exit_code: int | None = None
        self.reason = ""
        self.stop_requested = False
        """Whether the loops of this task must stop after their step."""
        self.ends_with = 0
        """The exit code of a chief whose run ends well."""
        self.session_epoch = 0
        """The highest run epoch that a session of this process took part in."""
        self.named = -1
        """Of a client: the worker whose address it was given; -1: none."""
        self.hooks: list[Any] = []
        """The hooks that all sessions of the task have."""
        self._over = threading.Event()
        self._joined = threading.Event()

    def join(self) -> None:
        """The chief has answered, or the task needs no answer."""
        self._joined.set()

    def end(self, code: int, reason: str) -> bool:
        """The task's part is over; False where it was before."""
        if self.exit_code is not None:
            return False
        self.exit_code, self.reason = code, reason
        self._over.set()
        return True

    def fail(self, name: str, error: Exception) -> None:
        """The node's thread has ended by an error; the task `name` cannot continue."""
        self.end(error.exit_code if isinstance(error, DpsError) else 1, f"{name}: {error}")

    def session_joined(self, epoch: int) -> None:
        """A session of this process takes part in a run epoch. Called on the session's thread."""
        self.session_epoch = max(self.session_epoch, epoch)

    def __str__(self) -> str:
        if self.exit_code is not None:
            return f"ended with exit code {self.exit_code}" + (f" ({self.reason})" if self.reason else "")
        if self.stop_requested:
            return "stopping after this step"
        return "running" if self._joined.is_set() else "joining"

    def how(self) -> tuple[int, str] | None:
        """Exit code and reason; None while the task's part is not over."""
        return None if self.exit_code is None else (self.exit_code, self.reason)

    def wait_over(self, seconds: float | None, every_s: float = 0.02) -> bool:
        """Wait until the task's part is over, None: without limit; whether it is."""
        deadline = None if seconds is None else self._runtime.now() + seconds
        while self.exit_code is None and (deadline is None or self._runtime.now() < deadline):
            self._pause(self._over, every_s, 0.05)
        return self.exit_code is not None

    def wait_joined(self, deadline: float, who: str, chief: str) -> None:
        """Block until the chief has answered; `deadline` is on the runtime's clock.

        Raises TaskLost if the task's part is over, DeadlineExceeded at the deadline."""
        while not self._joined.is_set():
            if self.exit_code is not None:
                raise (NotAuthenticated if self.exit_code == 5 else TaskLost)(self.reason or "the run has ended")
            if self._runtime.now() >= deadline:
                raise DeadlineExceeded(
                    f"{who}: the chief at {chief} did not answer; is it started, and is the address right?"
                )
            self._pause(self._joined, 0.05, 0.01)

    def _pause(self, until: threading.Event, seconds: float, simulated_s: float) -> None:
        if self._runtime.simulated:  # an event is for real threads
            self._runtime.sleep(min(seconds, simulated_s))
        else:
            until.wait(seconds)
