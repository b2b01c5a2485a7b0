"""One thread at a time uses a session: a second one that comes while a call goes on is told so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial, wraps
from threading import get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec, Protocol, TypeVar

    class Used(Protocol):
        """Has turns of its own."""

        _turns: Turns

    P = ParamSpec("P")
    T = TypeVar("T")
    U = TypeVar("U", bound=Used)


class Turns:
    """Whose turn it is to use a session. A thread may hand it over to another one between two calls."""

    __slots__ = ("_name", "call", "lock", "thread")

    def __init__(self, name: Callable[[], str]) -> None:
        self._name = name
        self.lock = threading.RLock()  # a hook calls its session again, in the same thread
        self.call, self.thread = "", 0
        """The call that goes on, or the last one, and the thread that it is in."""

    def take(self, call: str, wait_s: float) -> None:
        """A call begins; `lock.release()` ends it. RuntimeError while another thread is in one for longer than
        `wait_s`."""
        if not self.lock.acquire(timeout=wait_s):
            raise self.taken(call)
        self.call, self.thread = call, get_ident()

    def taken(self, call: str) -> RuntimeError:
        """What a call is told that comes while another thread is in one."""
        return RuntimeError(
            f"{self._name()}: {threading.current_thread().name} called {call}() while {self._other()} is in "
            f"{self.call}(); a session serves one thread at a time: give each thread a session of its own, or have "
            "them take turns with a lock"
        )

    def _other(self) -> str:
        names = [thread.name for thread in threading.enumerate() if thread.ident == self.thread]
        return names[0] if names else f"thread {self.thread}"

    def run(self, call: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in a turn of its own."""
        if not self.lock.acquire(False):
            raise self.taken(call)
        self.call, self.thread = call, get_ident()
        try:
            return function(*args, **kwargs)
        finally:
            self.lock.release()

    def of(self, call: str, function: Callable[P, T]) -> Callable[P, T]:
        """The function as a call of its own, of what a session hands out, such as a reply."""
        return partial(self.run, call, function)

    def each(self, call: str, values: Iterator[T]) -> Iterator[T]:
        """The same values, each `next` a call of its own."""
        end = object()
        following = self.of(call, lambda: next(values, end))
        while (value := following()) is not end:
            yield value  # type: ignore[misc]


def one_at_a_time(method: Callable[Concatenate[U, P], T]) -> Callable[Concatenate[U, P], T]:
    """A method that one thread at a time may be in, of all methods of one object that are marked so."""
    call = method.__name__

    @wraps(method)
    def taking_turns(self: U, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._turns.run(call, method, self, *args, **kwargs)

    return taking_turns
