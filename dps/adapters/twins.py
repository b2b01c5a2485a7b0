"""Notices a second model of one task: both have the variables of the run, and so the same values."""

from __future__ import annotations

import weakref

from dps.client.session import Session, client_of, is_open
from dps.process.telemetry import log
from dps.task.server import Server

_training: weakref.WeakKeyDictionary[Server, weakref.ref[Session]] = weakref.WeakKeyDictionary()
"""For each task of this process the session of the adapter that was opened last."""


def note_opened(session: Session, both: str) -> None:
    """The session of an adapter is open. Warns if the task has another one. `both`: how two models are given to one."""
    task = client_of(session)
    other = _training.get(task)
    if other is not None and is_open(other()):
        log.warning(
            "%s: two models of this task train on the ps at once; both have the variables of the run, and thus the "
            "same values from now on; give one optimizer both, as %s, or close() the other one first",
            session.name, both,
        )  # fmt: skip
    _training[task] = weakref.ref(session)
