"""Saves checkpoints while the loop runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from dps.errors import CheckpointError
from dps.hooks.hook import Hook
from dps.hooks.timer import Timer
from dps.reply import Push

if TYPE_CHECKING:
    from dps.hooks.loop import Loop

log = logging.getLogger("dps")


class CheckpointSaver(Hook):
    """Save checkpoints when the session opens, then at intervals, and at the end if the last step is not saved yet.

    Only the leading session (`session.is_chief`) saves. A session with a checkpoint_dir and without this hook gets
    one automatically. If the disk refuses, dps logs one line and training goes on.

    Args:
        steps: Save every so many global steps.
        seconds: Save every so many seconds; 600 when neither is given.

    Raises:
        ConfigError: Both are given, or a number that is not above 0.

    Example:
        ```pycon
        >>> with dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(0.1),
        ...                  checkpoint_dir="run",
        ...                  hooks=[dps.CheckpointSaver(steps=100)]) as session:
        ...     session.push({"w": np.ones(3)}).step
        1
        ```
    """

    def __init__(self, steps: int | None = None, seconds: float | None = None) -> None:
        self._timer = Timer(steps, seconds if steps is not None or seconds is not None else 600.0)

    def after_create_session(self, session: Loop) -> None:
        self._timer.fired(session.global_step)
        self._save(session)

    def after_run(self, session: Loop, push: Push, loss: Any) -> None:
        if self._timer.due(push.step):
            self._timer.fired(push.step)
            self._save(session)

    def rolled_back(self, session: Loop, step: int, lost: int) -> None:
        self._timer.fired(step)

    def end(self, session: Loop) -> None:
        self._save(session)

    def _save(self, session: Loop) -> None:
        """Save, unless this step is saved already. If the last save fails, the chief tries it again."""
        if session.is_chief:
            try:
                session.save()
            except CheckpointError as error:
                log.error("%s: step %d could not be saved: %s", session.name, session.global_step, error)
