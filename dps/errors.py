"""All exception classes of dps, in one tree.

    DpsError
    ├── DeadlineExceeded   a wait passed its deadline (also a TimeoutError); names who did not answer
    ├── TaskLost           a ps or the chief is gone for good; names it and says how long it was silent
    ├── Unavailable        nobody answers at an address, or the run there has ended
    ├── Aborted            a request belongs to a run epoch or incarnation that has ended
    ├── Cancelled          the caller, or Ctrl-C, stopped the wait
    ├── ProtocolError      bytes or messages that do not fit: version, sizes, unknown kinds
    ├── NotAuthenticated   keys are missing, wrong, or needed and not given
    │   └── PermissionDenied   the role of a key may not ask for this
    ├── CheckpointError    a checkpoint that cannot be written, or none that can be read
    ├── PlacementError     a placement or a partitioner that gives nonsense (also a ValueError)
    ├── ConfigError        flags, files or environment that do not fit together (also a ValueError)
    │   ├── MissingExtra   a package of an extra is not installed (also an ImportError)
    │   └── OutOfDescriptors   the process may open no more files and sockets
    ├── QueueClosed        nothing more may be put into a queue, or it is closed and empty
    ├── DataError          a dataset's function raised, or its examples do not fit together (also a ValueError)
    ├── HookError          a hook raised; names hook and method, the hook's own error is its `__cause__`
    ├── NotFinite          a loss is NaN or infinite (also a ValueError); raised by NanGuard
    └── RemoteError        a handler or a function on another task failed; carries its task and its traceback

Bad arguments of a call raise plain ValueError and TypeError. Every message says what was got, what was wanted and what
to try.
"""

from __future__ import annotations

import math
from typing import Any

CANCELLED = 130
"""The exit code of a task that was stopped from outside: by a second Ctrl-C, or at the end of a grace period."""

NOT_FINITE = "has NaN or infinite values"
"""What a gradient or a value is refused for; `advised` says what to try."""


class DpsError(Exception):
    """Root of all error classes of dps. `exit_code` is the exit code of a `dps` command that ends by this error.

    Example:
        ```python
        try:
            dps.Session("127.0.0.1:1", timeout=0.1)
        except dps.DpsError as error:
            assert "127.0.0.1:1" in str(error)
        ```
    """

    exit_code = 1


class DeadlineExceeded(DpsError, TimeoutError):
    """A wait passed its deadline (also a TimeoutError). The message names who did not answer.

    Args:
        text: The message.
        reply: The request that goes on, if there is one.
    """

    exit_code = 4

    def __init__(self, text: str, reply: object | None = None) -> None:
        super().__init__(text)
        self.reply = reply


class TaskLost(DpsError):
    """A task that the run needs is gone for good."""

    exit_code = 3


class Unavailable(DpsError):
    """Nobody answers there, or the run has ended."""

    exit_code = 3


class Aborted(DpsError):
    """The request's run epoch or incarnation has ended; it was not and will not be applied."""


class Cancelled(DpsError):
    """The wait was stopped from this side."""


class ProtocolError(DpsError):
    """A message that does not fit: protocol version, sizes, dtypes, unknown kinds."""


class NotAuthenticated(DpsError):
    """Keys are missing, wrong, or needed and not given."""

    exit_code = 5


class PermissionDenied(NotAuthenticated):
    """The role of this side's key may not send such a message, as a reader may not push."""


class CheckpointError(DpsError):
    """A checkpoint cannot be written, or none can be read; most often the directory is not the intended one."""

    exit_code = 2


class PlacementError(DpsError, ValueError):
    """A placement policy or a partitioner returned something that cannot be used."""

    exit_code = 2


class ConfigError(DpsError, ValueError):
    """Arguments, files or environment variables that do not fit together."""

    exit_code = 2


class MissingExtra(ConfigError, ImportError):
    """A package that only some uses of dps need is not installed; the message names the extra that installs it."""


class OutOfDescriptors(ConfigError):
    """The process has as many files, sockets and pipes open as the system lets it have."""


class QueueClosed(DpsError):
    """Somebody has closed the queue: nothing more may be put, or nothing is left to get."""


class DataError(DpsError, ValueError):
    """A dataset cannot go on: a function of it raised (its `__cause__`), or its examples do not fit together."""


class HookError(DpsError):
    """A hook of the session raised an error, which is the `__cause__`. The session is closed."""


class NotFinite(DpsError, ValueError):
    """A loss is NaN or infinite."""


class RemoteError(DpsError):
    """A handler, or a function that was sent there, raised on another task.

    The error of a function is of its own class, too, where that is one of dps or a usual one of Python.

    Args:
        text: The message.
        task: The task's name.
        remote_traceback: The traceback there.
    """

    def __init__(self, text: str, task: str = "", remote_traceback: str = "") -> None:
        super().__init__(text)
        self.task = task
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # a KeyError would quote it


_BY_NAME: dict[str, type[Exception]] = {
    cls.__name__: cls
    for cls in (
        DpsError, DeadlineExceeded, TaskLost, Unavailable, Aborted, Cancelled, ProtocolError,
        NotAuthenticated, PermissionDenied, CheckpointError, PlacementError, ConfigError, DataError, QueueClosed,
        ValueError, TypeError,
    )
}  # fmt: skip


def from_wire(name: str, text: str, task: str, traceback: str) -> Exception:
    """The exception for an error that another task sent; unknown names become RemoteError."""
    cls = _BY_NAME.get(name)
    if cls is None:
        return RemoteError(f"{name}: {text} (on {task})", task, traceback)
    error = cls(text)
    error.add_note(f"answered by {task}")
    return error


def message_of(error: BaseException) -> str:
    """The message of an error as text that can travel: with escapes for what is no UTF-8, as in the names of some
    files; "" if the error's own `__str__` raises."""
    try:
        text = str(error)
    except Exception:
        return ""
    return travelling(text)


def told(error: BaseException) -> str:
    """An error as text that can travel: its class, and its message if it has one."""
    message = message_of(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def travelling(text: str) -> str:
    """A text with escapes for what is no UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def wire_name(error: BaseException) -> str:
    """The name of the nearest class that `from_wire` knows."""
    for cls in type(error).__mro__:
        if _BY_NAME.get(cls.__name__) is cls:
            return cls.__name__
    return type(error).__name__


_USUAL: dict[str, type[Exception]] = _BY_NAME | {
    cls.__name__: cls
    for cls in (
        ArithmeticError, AssertionError, AttributeError, FileNotFoundError, FloatingPointError, ImportError, IndexError,
        KeyError, LookupError, MemoryError, NameError, NotImplementedError, OSError, OverflowError, PermissionError,
        RuntimeError, TimeoutError, ZeroDivisionError,
    )
}  # fmt: skip
"""The classes that an error of a function on another task keeps."""
_remote: dict[str, Any] = {}


def usual_name(error: BaseException) -> str:
    """The name of the nearest class that `remote_error` knows; "" if it knows none."""
    return next((cls.__name__ for cls in type(error).__mro__ if _USUAL.get(cls.__name__) is cls), "")


def remote_error(name: str, text: str, task: str, traceback: str) -> RemoteError:
    """The error of a function on another task: a RemoteError that is also of the class `name`, of `usual_name`."""
    cls = _USUAL.get(name)
    if cls is not None and not issubclass(RemoteError, cls) and name not in _remote:
        _remote[name] = type(f"Remote{name}", (RemoteError, cls), {"__doc__": cls.__doc__})
    error: RemoteError = _remote.get(name, RemoteError)(text, task, traceback)
    if traceback:
        error.add_note(f"the traceback on {task}:\n{traceback}")
    return error


def as_seconds(value: object) -> float:
    """A number of seconds as a float; NaN for what is none, such as text or a truth value."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):  # an array of several, say
        return math.nan


def checked_seconds(timeout: object, usual: float) -> float:
    """The seconds of a call's own `timeout`; of None the usual ones. ConfigError for what is no number of seconds,
    such as NaN, at which no wait would end."""
    if timeout is None:
        return usual
    given = as_seconds(timeout)
    if math.isnan(given):
        raise ConfigError(f"timeout: got {timeout!r:.40}, wanted seconds, dps.FOREVER, or None for the usual ones")
    return given


def positive_seconds(got: str, timeout: object, usual: float) -> float:
    """As `checked_seconds`, of a timeout that has to be above 0. `got` begins the message, as "queue: got timeout "."""
    seconds = checked_seconds(timeout, usual)
    if not seconds > 0:
        raise ConfigError(f"{got}{timeout!r}, wanted seconds above 0, or dps.FOREVER")
    return seconds


def advised(refusal: str) -> str:
    """Why a push was refused, with what to try where a gradient is not finite."""
    advice = "nothing was applied; lower the learning rate, clip gradients, or look for a 0/0 or log(0) in the loss"
    return f"{refusal}: {advice}" if NOT_FINITE in refusal else refusal
