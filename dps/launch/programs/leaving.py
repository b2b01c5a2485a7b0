"""Tells the chief that a worker has ended whose session could not say so, so that nobody waits for it."""

from __future__ import annotations

import contextlib

from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.errors import DpsError
from dps.messages.runs import CHIEF, Leave
from dps.transport.current import keys_for, runtime

TELL_S = 1.0
"""How long the end of a process may wait for a chief that may be away."""


def report_end(chief: str, task: int, reason: str, code: int) -> None:
    """Tell the chief that a worker's program is over. Blocks up to 1 s; gives up if the chief is away.

    `reason` is text that follows the task's name, such as "ended with exit code 7"; `code` is negative for a signal."""
    with contextlib.suppress(DpsError):
        name, keys = f"worker:{task}", keys_for(chief, "worker", "operator")
        with contextlib.closing(Caller(runtime(), name, keys)) as caller:
            caller.ask(Ref(chief, CHIEF), Leave("worker", task, reason, code), TELL_S)
