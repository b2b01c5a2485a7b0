"""Saves checkpoints while the loop runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dps.checkpoint.files import parse_folder_name
from dps.errors import CheckpointError, ConfigError, DeadlineExceeded
from dps.hooks.hook import Hook
from dps.hooks.timer import Timer
from dps.messages.replies import Push
from dps.process.telemetry import log

if TYPE_CHECKING:
    from dps.hooks.hook import Loop


class CheckpointSaver(Hook):
    """Save checkpoints when the session opens, then at intervals, and at the end if the last values are not saved yet.

    Only the leading session (`session.is_chief`) saves. A session with a checkpoint_dir and without this hook gets
    one automatically. If the disk refuses, dps logs one line and training goes on.

    Args:
        steps: Save every so many global steps.
        seconds: Save every so many seconds; 600 when neither is given.
        listeners: Instances of `dps.CheckpointSaverListener`, called in this order before and after each checkpoint.

    Raises:
        ConfigError: Both are given, a number that is not above 0, or a listener that is none.

    Example:
        ```pycon
        >>> with dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(0.1),
        ...                  checkpoint_dir="run",
        ...                  hooks=[dps.CheckpointSaver(steps=100)]) as session:
        ...     session.push({"w": np.ones(3)}).step
        1
        ```
    """

    def __init__(
        self, steps: int | None = None, seconds: float | None = None, listeners: Sequence[CheckpointSaverListener] = ()
    ) -> None:
        self._timer = Timer(steps, seconds if steps is not None or seconds is not None else 600.0, "CheckpointSaver")
        self._listeners = _checked(listeners) if listeners else []
        self._saved: int | None = None
        """The step of the last checkpoint that this hook asked for."""

    def begin(self) -> None:
        self._saved = None
        for listener in self._listeners:
            listener.begin()

    def after_create_session(self, session: Loop) -> None:
        self._timer.record_firing(session.global_step)
        self._save(session)

    def after_run(self, session: Loop, push: Push, loss: Any) -> None:
        if self._timer.is_due(push.step):
            self._timer.record_firing(push.step)
            self._save(session)

    def rolled_back(self, session: Loop, step: int, lost: int) -> None:
        self._timer.record_firing(step)
        self._saved = step

    def end(self, session: Loop) -> None:
        self._save(session)
        for listener in self._listeners:
            listener.end(session, session.global_step)

    def _save(self, session: Loop) -> None:
        """Save, unless these values are saved already. If the last save fails, the chief tries it again."""
        if not session.is_chief:
            return
        listeners = self._listeners if session.global_step != self._saved else []
        for listener in listeners:
            listener.before_save(session, session.global_step)
        try:
            name = self._write(session)
        except DeadlineExceeded as error:
            log.warning("%s: step %d is not saved yet: %s", session.name, session.global_step, error)
            return
        except (CheckpointError, OSError) as error:
            log.error("%s: step %d could not be saved: %s", session.name, session.global_step, error)
            return
        found = parse_folder_name(name)
        self._saved = session.global_step if found is None else found[1]
        for listener in listeners:
            if listener.after_save(session, self._saved):
                session.request_stop()

    def _write(self, session: Loop) -> str:
        """Have the checkpoint written; its name."""
        return session.save()


def _checked(listeners: object) -> list[CheckpointSaverListener]:
    """The listeners. Raises ConfigError for what is none."""

    found: list[Any] = list(listeners) if isinstance(listeners, Iterable) else [listeners]
    for listener in found:
        if not isinstance(listener, CheckpointSaverListener):
            what = f"the class {listener.__name__}" if isinstance(listener, type) else f"{listener!r:.80}"
            raise ConfigError(
                f"CheckpointSaver: got {what} in listeners, wanted an instance of a subclass of "
                "dps.CheckpointSaverListener"
            )
    return found


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
