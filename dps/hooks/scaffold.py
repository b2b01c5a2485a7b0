"""Calls `local_init_fn` and `ready_fn` when a session opens, before its hooks and its loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dps.errors import ConfigError
from dps.hooks.hook import Hook
from dps.hooks.waiting import wait_until

if TYPE_CHECKING:
    from dps.hooks.loop import Loop


class Scaffold(Hook):
    """Calls `local_init_fn` when the session is open, and again after a rollback; then waits until it is ready.

    Sessions make one, as the first of their hooks. `timeout`: the longest wait, in seconds.
    """

    def __init__(
        self, local_init_fn: Callable[[Any], Any] | None, ready_fn: Callable[[Any], Any] | None, timeout: float
    ) -> None:
        self._local_init, self._ready, self._timeout = local_init_fn, ready_fn, timeout

    def after_create_session(self, session: Loop) -> None:
        if self._local_init is not None:
            self._local_init(session)
        if self._ready is not None:
            wait_until(session, lambda: self._missing(session), self._timeout)

    def rolled_back(self, session: Loop, step: int, lost: int) -> None:
        if self._local_init is not None:
            self._local_init(session)

    def _missing(self, session: Loop) -> str:
        assert self._ready is not None
        found = self._ready(session)
        if found is True or (isinstance(found, str | list | tuple) and not found):
            return ""
        if found is False:
            return "ready_fn says that the session is not ready"
        if isinstance(found, str):
            return f"ready_fn: {found}"
        if isinstance(found, list | tuple):
            return f"ready_fn says that these are not ready: {', '.join(map(str, found))}"
        raise ConfigError(f"ready_fn returned {found!r:.80}, wanted True, or what is missing: False, a text or a list")
