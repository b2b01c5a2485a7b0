"""Listeners: code of a program that runs around each checkpoint of a `dps.CheckpointSaver`."""

from __future__ import annotations

from typing import Any


class CheckpointSaverListener:
    """Code to run before and after each checkpoint. Subclass it and give instances to `dps.CheckpointSaver`.

    Listeners are called in list order, on the session's thread, before all and after all. Only the leading session
    saves, so only its listeners hear of checkpoints; `begin` and `end` are called in every session. An exception ends
    the session, as one of a hook does.

    Example:
        ```python
        class Notes(dps.CheckpointSaverListener):
            def after_save(self, session, global_step_value):
                print("saved step", global_step_value)

        saver = dps.CheckpointSaver(steps=100, listeners=[Notes()])
        with dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(0.1),
                         checkpoint_dir="run", hooks=[saver]) as session:
            session.push({"w": np.ones(3)})
        ```
    """

    def begin(self) -> None:
        """Called before the session opens."""

    def before_save(self, session: Any, global_step_value: int) -> None:
        """Called before a checkpoint is written.

        Args:
            session: The session.
            global_step_value: The global step that the session knows of.
        """

    def after_save(self, session: Any, global_step_value: int) -> bool | None:
        """Called when the checkpoint is on disk; not where the disk refused it.

        Args:
            session: The session.
            global_step_value: The global step of the checkpoint. Where other workers push meanwhile it may be higher
                than before.

        Returns:
            True to end the loop: `should_stop` is true from then on.
        """
        return None

    def end(self, session: Any, global_step_value: int) -> None:
        """Called when the loop ended well, after the last checkpoint.

        Args:
            session: The session.
            global_step_value: The global step.
        """
