"""The sessions that another chief admitted and that closed at this one."""

from __future__ import annotations

from dps.checkpoint.storage import Storage
from dps.chief.run import newest_name, step_of


class Elsewhere:
    """The highest step of these sessions, and the checkpoint_dir that they named."""

    def __init__(self) -> None:
        self._checkpoint_dir, self._step = "", 0

    def closed(self, checkpoint_dir: str, step: int) -> None:
        """One has closed, at this step."""
        self._checkpoint_dir, self._step = checkpoint_dir or self._checkpoint_dir, max(step, self._step)

    def unsaved(self, storage: Storage) -> str:
        """The checkpoint after which steps of theirs are lost; "" if none are."""
        if not self._checkpoint_dir:
            return ""
        newest = newest_name(storage, self._checkpoint_dir)
        return "" if step_of(newest) >= self._step else newest or "the start"
