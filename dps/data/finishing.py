"""A hook of all sessions of a task: a batch is finished, and given to nobody else, once a push of it is accepted."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import ref

from dps.hooks.hook import Hook
from dps.reply import Push

if TYPE_CHECKING:
    from dps.data.remote_pass import RemotePass

_last: ContextVar[Finishing | None] = ContextVar("dps_last_taken", default=None)
"""The hook of the pass from which the running thread has taken its last batch."""


class Finishing(Hook):
    """Of one pass. It acts only where the push is certainly one of the batch in use: the thread that pushes took the
    batch, and the push began after that, with no other one in flight."""

    def __init__(self, batches: RemotePass) -> None:
        self._pass = ref(batches)  # a pass that is dropped ends
        self._in_flight, self._certain = 0, False

    def taken(self) -> None:
        """The loop has got another batch."""
        self._certain = self._in_flight == 0
        _last.set(self)

    def before_run(self, session: Any) -> None:
        self._in_flight += 1

    def after_run(self, session: Any, push: Push, loss: Any) -> None:
        self._in_flight -= 1
        batches = self._pass()
        if push.accepted and self._certain and not self._in_flight and _last.get() is self and batches is not None:
            batches.confirm()
