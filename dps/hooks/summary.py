"""Writes training progress to files: JSON lines, and event files for TensorBoard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dps.errors import ConfigError
from dps.hooks.files import EventFile
from dps.hooks.hook import Hook
from dps.hooks.scalars import as_number
from dps.hooks.timer import Timer
from dps.hooks.writer import SummaryWriter
from dps.reply import Push

if TYPE_CHECKING:
    from dps.hooks.loop import Loop


class SummarySaver(Hook):
    """Add a row to `DIRECTORY/summaries.jsonl` at intervals, the first one after the first push.

    A row has wall_time (seconds since 1970, UTC), step, worker, loss, staleness, accepted, from the second row on
    steps_per_s, and the scalars given to `session.summary` since the last row. Starts and rollbacks are rows with
    `event`. A number that is not finite is null. Files only grow, also in a run that is started again. If the disk
    refuses, dps logs one line, training goes on, and later rows are tried again. In the simulator they are on its disk,
    from which `SimulatedRun.save` writes them to a real folder.

    Args:
        directory: The folder. None: the run's checkpoint_dir.
        steps: A row every so many global steps; 100 when neither is given.
        seconds: A row every so many seconds.
        batch: Examples in one push of this worker. When given, rows have examples_per_s.
        tensorboard: Whether to write event files for TensorBoard, too (needs dps[tensorboard]). Steps that a rollback
            undid disappear there.
        all_workers: Whether each worker writes, to DIRECTORY/worker-N. Otherwise only the leading session writes.

    Raises:
        ConfigError: Bad arguments; or, when the session opens, neither `directory` nor a checkpoint_dir is given.

    Example:
        ```pycon
        >>> with dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(0.1),
        ...                  hooks=[dps.SummarySaver("logs")]) as session:
        ...     push = session.push({"w": np.ones(3)}, loss=0.5)
        >>> import json, pathlib
        >>> rows = pathlib.Path("logs/summaries.jsonl").read_text().splitlines()
        >>> [json.loads(row).get("loss") for row in rows]
        [None, 0.5]
        ```
    """

    def __init__(
        self,
        directory: str | None = None,
        steps: int | None = None,
        seconds: float | None = None,
        batch: int | None = None,
        tensorboard: bool = False,
        all_workers: bool = False,
    ) -> None:
        self._timer = Timer(100 if steps is None and seconds is None else steps, seconds, "SummarySaver")
        if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
            raise ConfigError(f"SummarySaver: got {batch=}, wanted the examples in one push, a whole number from 1")
        if tensorboard:
            EventFile.check_installed()
        self._directory = directory
        self.batch, self._tensorboard, self._all_workers = batch, tensorboard, all_workers
        self._pushes, self._seen = 0, 0

    def after_create_session(self, session: Loop) -> None:
        folder = self._directory or session.checkpoint_dir
        if not folder:
            raise ConfigError("SummarySaver has no directory and the run no checkpoint_dir; give one of them")
        folder = str(folder)
        if self._all_workers:
            folder = f"{folder}/{session.name.replace(':', '-')}"
        self._writer = SummaryWriter(folder, session.name, self._tensorboard)
        self._event(session, "started", session.global_step, {})

    def after_run(self, session: Loop, push: Push, loss: Any) -> None:
        self._pushes += 1
        if not self._timer.due(push.step):
            return
        since = self._timer.fired(push.step)
        row = {
            "step": push.step, "worker": session.name, "loss": None if loss is None else as_number(loss, "loss"),
            "staleness": push.staleness, "accepted": push.accepted,
        }  # fmt: skip
        if since is not None and since[1] > 0:
            row["steps_per_s"] = since[0] / since[1]
            if self.batch is not None:
                row["examples_per_s"] = self._pushes * self.batch / since[1]
        row |= session.scalars.since(self._seen)
        self._pushes, self._seen = 0, session.scalars.count
        self._write(session, row)

    def rolled_back(self, session: Loop, step: int, lost: int) -> None:
        self._timer.fired(step)
        self._pushes = 0
        self._event(session, "rolled back", step, {"lost": lost})

    def _event(self, session: Loop, what: str, step: int, more: dict[str, Any]) -> None:
        self._write(session, {"step": step, "worker": session.name, "event": what, **more})

    def _write(self, session: Loop, row: dict[str, Any]) -> None:
        if self._all_workers or session.is_chief:
            self._writer.add(row)
