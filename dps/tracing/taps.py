"""Taps: methods of objects that go through a trace while it is taken, and are as before when it is over.

A tap is an attribute of the object itself, before the method of its class. So a task of which no trace is taken runs
not one instruction more. Taps of several traces lie on each other, and may end in any order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_lock = threading.RLock()
"""Taps are set on one thread, and ended on another."""


class Tap:
    """A method of one object, on its way through a trace."""

    def __init__(self, taps: Taps, under: Callable[..., Any], through: Callable[..., Any]) -> None:
        """`under`: what the object had before; `through`: what calls it, and notes the call."""
        self.taps, self.under, self._through = taps, under, through

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.taps.over:
            return self.under(*arguments, **named)
        return self._through(*arguments, **named)


class Taps:
    """All taps of one trace on one task."""

    def __init__(self) -> None:
        self.over = False
        """Whether the trace is over: its taps let all calls through."""
        self._tapped: list[tuple[Any, str]] = []

    def tap(
        self, owner: Any, name: str, through: Callable[[Callable[..., Any]], Callable[..., Any]], brief: bool = False
    ) -> None:
        """Have calls of a method of an object go through `through(method)`; none any more if the trace is over.
        `brief`: the object is gone soon, and is not kept for its method's sake."""
        with _lock:
            if not self.over:
                under = getattr(owner, name)
                vars(owner)[name] = Tap(self, under, through(under))
                if not brief:
                    self._tapped.append((owner, name))

    def end(self) -> None:
        """End the trace: methods are those of their objects again. Any thread may call it."""
        with _lock:
            self.over = True
            for owner, name in self._tapped:
                _restore(owner, name)
            self._tapped = []


def _restore(owner: Any, name: str) -> None:
    """Take the taps off that are over and have no tap of another trace on them."""
    found = vars(owner).get(name)
    while isinstance(found, Tap) and found.taps.over:
        found = found.under
    if isinstance(found, Tap):
        vars(owner)[name] = found
    else:
        vars(owner).pop(name, None)
