"""A hook of all sessions of a task: it reports a batch as finished once its push is accepted."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from weakref import WeakMethod

from dps.hooks.hook import Hook
from dps.reply import Push

_last: ContextVar[Finishing | None] = ContextVar("dps_last_taken", default=None)
"""The hook of the pass from which the running thread has taken its last batch."""


class Finishing(Hook):
    """The hook of one pass. It acts only if the push is certainly one of the batch in use: the thread that pushes took
    the batch, and the push began after that, with no other one in flight."""

    def __init__(self, confirm: Callable[[], None]) -> None:
        """`confirm`: a method of the pass; a pass that is dropped ends."""
        self._confirm = WeakMethod(confirm)
        self._in_flight, self._certain = 0, False

    def taken(self) -> None:
        """The loop has got another batch."""
        self._certain = self._in_flight == 0
        _last.set(self)

    def before_run(self, session: Any) -> None:
        self._in_flight += 1

    def after_run(self, session: Any, push: Push, loss: Any) -> None:
        self._in_flight -= 1
        confirm = self._confirm()
        if push.accepted and self._certain and not self._in_flight and _last.get() is self and confirm is not None:
            confirm()
