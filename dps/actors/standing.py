"""The standing of a task: whether it has joined, must stop or has ended, and why; and what its sessions know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any

from dps.errors import CANCELLED, Cancelled, ConfigError, DeadlineExceeded, DpsError, NotAuthenticated, TaskLost
from dps.process.record import record
from dps.transport.endpoint import Runtime

if TYPE_CHECKING:
    from dps.transport.keys.keyring import Credentials


ERRORS: dict[int, type[DpsError]] = {
    ConfigError.exit_code: ConfigError, TaskLost.exit_code: TaskLost, NotAuthenticated.exit_code: NotAuthenticated,
    CANCELLED: Cancelled,
}  # fmt: skip


def error_of(code: int, reason: str) -> DpsError:
    """The error for who still works, or waits, in a task that was told to end with this exit code."""
    return TaskLost(reason or "the run has ended") if code == 0 else ERRORS.get(code, DpsError)(reason)


OUTSIDE = ("client", "evaluator")
"""The jobs of nodes outside of the training cluster, which may join by the address of any task."""


Sent = Callable[[], tuple[int, Mapping[int, int], int]]
"""Returns a session's incarnation and the number of its last push to each ps, which are set before a message of that
push leaves; and how many pushes have no result yet. Any thread may call it."""


@record
class Home:
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
    exit_state: Callable[[], tuple[int, str] | None]
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
    pushed: Callable[[int, float | None, float], None] = lambda step, loss, at: None
    """Is told step, loss and time of each push that has its result."""
    track: Callable[[int, Sent | None], None] = lambda session, sent: None
    """Is told, by a session's number, how to find which pushes it has begun to send; None: the session is closed."""
    pushes_in_flight: Callable[[], int] = lambda: 0
    """Returns how many pushes of all sessions of the task have no result yet."""


class TrainingProgress:
    """How far a task's training has come, for people. Its program writes it, the node's thread reads it."""

    def __init__(self) -> None:
        self.step, self.pushes, self.at = 0, 0, 0.0
        """The step and the time of the last push, and how many there were."""
        self.loss: float | None = None
        self._told = 0, 0.0
        """The number and the time of the last push that was told."""
        self._rate = 0.0

    def record_push(self, step: int, loss: float | None, at: float) -> None:
        """A push has its result."""
        if not self.pushes:
            self._told = 1, at
        self.step, self.pushes, self.at = step, self.pushes + 1, at
        if loss is not None:
            self.loss = loss

    def report_progress(self, at: float) -> list[Any]:
        """Step, pushes per second since the last call, and loss; [] before the first push."""
        pushes, pushed_at = self.pushes, self.at
        before, before_at = self._told
        if pushes > before and pushed_at > before_at:
            self._rate, self._told = (pushes - before) / (pushed_at - before_at), (pushes, pushed_at)
        elif at > pushed_at:
            self._rate = min(self._rate, 1 / (at - pushed_at))
        return [self.step, self._rate, self.loss] if pushes else []


class Standing:
    """The standing of one task. The node's thread and the program's write it; the first end counts."""

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
        self.progress = TrainingProgress()
        self._sent: dict[int, Sent] = {}
        self._joined = False
        self._changed = runtime.condition()

    def mark_joined(self) -> None:
        """The chief has answered, or the task needs no answer."""
        self._joined = True
        self._changed.notify()

    def end_task(self, code: int, reason: str) -> bool:
        """The task's part is over; False where it was before."""
        if self.exit_code is not None:
            return False
        self.exit_code, self.reason = code, reason
        self._changed.notify()
        return True

    def end_failed(self, name: str, error: Exception) -> None:
        """The node's thread has ended by an error; the task `name` cannot continue."""
        self.end_task(error.exit_code if isinstance(error, DpsError) else 1, f"{name}: {error}")

    def session_joined(self, epoch: int) -> None:
        """A session of this process takes part in a run epoch. Called on the session's thread."""
        self.session_epoch = max(self.session_epoch, epoch)

    def track(self, session: int, sent: Sent | None) -> None:
        """As of `Home`. Called on the session's thread."""
        if sent is None:
            self._sent.pop(session, None)
        else:
            self._sent[session] = sent

    def sent(self) -> list[list[Any]]:
        """Which pushes the sessions of this process have begun to send, as of NumbersAre."""
        found = []
        for session, sent in list(self._sent.items()):
            incarnation, numbers, _ = sent()
            found.append([session, incarnation, [[ps, number] for ps, number in numbers.items()]])
        return found

    def pushes_in_flight(self) -> int:
        """As of `Home`."""
        return sum(sent()[2] for sent in list(self._sent.values()))

    def __str__(self) -> str:
        if self.exit_code is not None:
            return f"ended with exit code {self.exit_code}" + (f" ({self.reason})" if self.reason else "")
        if self.stop_requested:
            return "stopping after this step"
        return "running" if self._joined else "joining"

    def exit_state(self) -> tuple[int, str] | None:
        """Exit code and reason; None while the task's part is not over."""
        return None if self.exit_code is None else (self.exit_code, self.reason)

    def wait_over(self, seconds: float | None) -> bool:
        """Wait until the task's part is over, None: without limit; returns whether it is. Blocks."""
        return self._changed.wait(lambda: self.exit_code is not None, inf if seconds is None else seconds)

    def wait_joined(self, deadline: float, who: str, chief: str) -> None:
        """Block until the chief has answered; `deadline` is on the runtime's clock.

        Raises what `error_of` says if the task's part is over, DeadlineExceeded at the deadline."""
        while not self._joined:
            if self.exit_code is not None:
                raise error_of(self.exit_code, self.reason)
            if self._runtime.now() >= deadline:
                raise DeadlineExceeded(
                    f"{who}: the chief at {chief} did not answer; is it started, and is the address right?"
                )
            self._changed.wait(lambda: self._joined or self.exit_code is not None, deadline - self._runtime.now())
