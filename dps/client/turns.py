"""Lets one thread at a time use a session; a second one gets an error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial, wraps
from threading import get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec, Protocol, TypeVar

    class Used(Protocol):
        """An object with turns."""

        _turns: Turns

    P = ParamSpec("P")
    T = TypeVar("T")
    U = TypeVar("U", bound=Used)


class Turns:
    """The lock of a session. Different threads may use the session, one call at a time."""

    __slots__ = ("_name", "call", "lock", "thread")

    def __init__(self, name: Callable[[], str]) -> None:
        self._name = name
        self.lock = threading.RLock()  # a hook calls its session again, in the same thread
        self.call, self.thread = "", 0
        """The current or the last call, and its thread."""

    def take(self, call: str, wait_s: float) -> None:
        """Begin a call; `lock.release()` ends it. Raises RuntimeError if another thread is in a call for longer than
        `wait_s`."""
        if not self.lock.acquire(timeout=wait_s):
            raise self.taken(call)
        self.call, self.thread = call, get_ident()

    def taken(self, call: str) -> RuntimeError:
        """The error for a call while another thread is in one."""
        return RuntimeError(
            f"{self._name()}: {threading.current_thread().name} called {call}() while {self._other()} is in "
            f"{self.call}(); a session serves one thread at a time: give each thread a session of its own, or have "
            "them take turns with a lock"
        )

    def _other(self) -> str:
        names = [thread.name for thread in threading.enumerate() if thread.ident == self.thread]
        return names[0] if names else f"thread {self.thread}"

    def run(self, call: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function under the lock. Raises RuntimeError if another thread is in a call."""
        if not self.lock.acquire(False):
            raise self.taken(call)
        self.call, self.thread = call, get_ident()
        try:
            return function(*args, **kwargs)
        finally:
            self.lock.release()

    def of(self, call: str, function: Callable[P, T]) -> Callable[P, T]:
        """The function as a call of the session, for what a session hands out, such as a reply."""
        return partial(self.run, call, function)

    def each(self, call: str, values: Iterator[T]) -> Iterator[T]:
        """The same values; each `next` is a call of the session."""
        end = object()
        following = self.of(call, lambda: next(values, end))
        while (value := following()) is not end:
            yield value  # type: ignore[misc]


def one_at_a_time(method: Callable[Concatenate[U, P], T]) -> Callable[Concatenate[U, P], T]:
    """Mark a method: one thread at a time may be in the marked methods of one object."""
    call = method.__name__

    @wraps(method)
    def taking_turns(self: U, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._turns.run(call, method, self, *args, **kwargs)

    return taking_turns
