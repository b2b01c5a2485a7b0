"""Writes training progress to files: rows of JSON, and event files for TensorBoard at the same moments."""

from __future__ import annotations

import json
import math
import operator
import os
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from dps.checkpoint.files import is_path
from dps.checkpoint.storage import Storage
from dps.errors import CheckpointError, ConfigError, travelling
from dps.hooks.hook import Hook
from dps.hooks.scalars import ScalarReader, as_number, check_scalar_name, is_name
from dps.hooks.timer import EXAMPLES, Timer
from dps.messages.replies import Push
from dps.process.telemetry import log
from dps.training.definition import whole_number
from dps.transport.current import runtime

if TYPE_CHECKING:
    from dps.hooks.event_file import Histogram
    from dps.hooks.hook import Loop


STALENESS, GRADIENT_NORM = "pushes/staleness", "pushes/gradient_norm"
"""Names of histograms. They differ from those of scalars: TensorBoard shows one kind under a name."""


MOST = 1 << 1023
"""Whole numbers from here on are written as text: the largest float, as event files have numbers, is below twice it."""


class SummaryFile(Protocol):
    """A file that only grows. Each write adds a whole row or, after an error, nothing."""

    def write(self, wall_time: float, row: Mapping[str, Any], histograms: Mapping[str, Histogram]) -> None:
        """Add a row, and where the format has them, histograms by name. Raises CheckpointError if the disk refuses.
        Blocks."""


class JsonLines:
    """One JSON object per line. Numbers that JSON cannot represent (NaN, infinities) become null."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage, self._path = storage, path

    def write(self, wall_time: float, row: Mapping[str, Any], histograms: Mapping[str, Histogram]) -> None:
        """As SummaryFile.write; without the histograms."""
        strict = {key: None if _not_finite(value) else value for key, value in row.items()}
        if "hparams" in row:
            strict["hparams"] = {key: None if _not_finite(value) else value for key, value in row["hparams"].items()}
        line = json.dumps({"wall_time": wall_time, **strict}, ensure_ascii=False, allow_nan=False)
        self._storage.append(self._path, line.encode() + b"\n")


def _not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def hyperparameters(given: Mapping[str, Any], who: str) -> dict[str, bool | float | str]:
    """Hyperparameters as files have them: text, truth values and numbers as they are, anything else as its text.

    Raises ConfigError, which `who` begins, for something else than a dict with names.
    """
    if not isinstance(given, Mapping) or not all(isinstance(name, str) and name for name in given):
        raise ConfigError(f"{who}: got hparams={given!r:.80}, wanted a dict of values by name, such as vars(args)")
    if bad := [name for name in given if not is_name(name)]:
        raise ConfigError(
            f"{who}: got the name {bad[0]!r:.80} in hparams, wanted text in one line, without control characters"
        )
    return {name: _plain(value) for name, value in given.items()}


def _plain(value: Any) -> bool | float | str:
    """A hyperparameter as JSON and event files have it. What no file can have is written out, such as "\\udc80"."""
    plain = value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
    if isinstance(plain, bool | float) or (isinstance(plain, int) and abs(plain) < MOST):
        return plain
    return travelling(plain if isinstance(plain, str) else str(plain))


def _whole_step(step: Any) -> int:
    """A step as files have it. Raises ConfigError for what is none."""
    try:
        found = operator.index(step)
    except TypeError:
        found = None
    if found is None or isinstance(step, bool) or not -(1 << 63) <= found < 1 << 63:
        raise ConfigError(f"summary: got step={step!r:.40}, wanted a whole number of 64 bits, such as the global step")
    return found


class SummaryWriter:
    """Adds rows of scalars to `DIRECTORY/summaries.jsonl`, such as those that an evaluator computes.

    A row has wall_time (seconds since 1970, UTC), step, worker and the scalars. In a folder below that of a
    `dps.SummarySaver`, TensorBoard shows them beside those of the training. Files only grow. If the disk refuses, dps
    logs one line, and later rows are tried again. Writing blocks on the disk.

    Args:
        directory: The folder, which is made.
        name: Who writes, such as `server.name`.
        tensorboard: Whether to write an event file for TensorBoard, too (needs dps[tensorboard]).

    Raises:
        ConfigError: A directory that is no path, or a name that is no part of a file's name.
        MissingExtra: `tensorboard` without the extra.

    Example:
        ```pycon
        >>> summaries = dps.SummaryWriter("logs/evaluator")
        >>> summaries.write(100, accuracy=0.93)
        >>> import json, pathlib
        >>> row = json.loads(pathlib.Path("logs/evaluator/summaries.jsonl").read_text())
        >>> row["step"], row["worker"], row["accuracy"]
        (100, 'evaluator:0', 0.93)
        ```
    """

    def __init__(self, directory: str | os.PathLike[str], name: str = "evaluator:0", tensorboard: bool = False) -> None:
        if not is_path(directory):
            raise ConfigError(f"SummaryWriter: got directory={directory!r:.80}, wanted the path of a folder")
        if not is_name(name) or "/" in name:
            raise ConfigError(f"SummaryWriter: got name={name!r:.80}, wanted who writes, such as 'evaluator:0'")
        self._name, self._failing = name, False
        folder, storage = os.fspath(directory), runtime().storage
        self._files: list[SummaryFile] = [JsonLines(storage, f"{folder}/summaries.jsonl")]
        if tensorboard:
            from dps.hooks.event_file import EventFile

            file = f"events.out.tfevents.{int(runtime().wall()):010d}.{name.replace(':', '-')}"
            self._files.append(EventFile(storage, f"{folder}/{file}"))

    def write(self, step: int, **scalars: Any) -> None:
        """Add a row.

        Args:
            step: The global step to which the scalars belong, a whole number. Steps may come in any order.
            **scalars: Numbers by name; arrays and tensors of one element are allowed, too. NaN and infinities are null
                in JSON; event files have them.

        Raises:
            ConfigError: A step that is no whole number of 64 bits; a name that is reserved, such as `worker`, is blank
                or has control characters; or a value that is not a number.
        """
        row: dict[str, Any] = {"step": _whole_step(step), "worker": self._name}
        for name, value in scalars.items():
            check_scalar_name(name, own=("loss",))
            try:
                row[name] = as_number(value, name)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"summary: {error}") from None
        self.add(row)

    def add(self, row: dict[str, Any], histograms: Mapping[str, Histogram] | None = None) -> None:
        """Add a row as it is.

        Args:
            row: Plain values by name, with `step`.
            histograms: Those of the event file, by name.
        """
        try:
            for file in self._files:
                file.write(runtime().wall(), row, histograms or {})
        except CheckpointError as error:
            if not self._failing:
                log.error("%s: no summaries from step %d on: %s", self._name, row["step"], error)
            self._failing = True
        else:
            if self._failing:
                log.warning("%s: summaries are written again from step %d on", self._name, row["step"])
            self._failing = False


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
            undid disappear there. Beside the scalars they have two histograms of the pushes of this worker since the
            last row: `pushes/staleness`, and `pushes/gradient_norm`, the Euclidean norm of all gradients of a push.
            Norms take at most 2 % of the loop's time: of large gradients only some pushes have one.
        all_workers: Whether each worker writes, to DIRECTORY/worker-N. Otherwise only the leading session writes.
        hparams: Hyperparameters by name, such as `vars(args)`: numbers, truth values and text; anything else becomes
            text. They are in the row with the start, and TensorBoard shows them under HPARAMS, for this folder.

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
        hparams: Mapping[str, Any] | None = None,
    ) -> None:
        self._timer = Timer(100 if steps is None and seconds is None else steps, seconds, "SummarySaver")
        self.batch = None if batch is None else whole_number("SummarySaver: got batch=", batch, 1, EXAMPLES)
        if directory is not None and not is_path(directory):
            raise ConfigError(
                f"SummarySaver: got {directory=!r:.80}, wanted the path of a folder, or None for the checkpoint_dir"
            )
        self._hparams = {} if hparams is None else hyperparameters(hparams, "SummarySaver")
        if tensorboard:
            from dps.hooks.event_file import EventFile

            EventFile.check_installed()
        self._directory = directory
        self._tensorboard, self._all_workers = tensorboard, all_workers
        self._pushes, self._reader = 0, ScalarReader()
        self._watched: Any = lambda: None
        """Returns the loop whose norms the histograms have, or None."""
        self._histograms: dict[str, Histogram] = {}
        """Those of the pushes since the last row."""
        self._clear_histograms()

    def _clear_histograms(self) -> None:
        if self._tensorboard:
            from dps.hooks.event_file import Histogram

            self._histograms = {name: Histogram() for name in (STALENESS, GRADIENT_NORM)}

    def begin(self) -> None:
        self._timer.reset()
        self._pushes = 0
        self._clear_histograms()

    def after_create_session(self, session: Loop) -> None:
        folder = self._directory or session.checkpoint_dir
        if not folder:
            raise ConfigError("SummarySaver has no directory and the run no checkpoint_dir; give one of them")
        folder = str(folder)
        if self._all_workers:
            folder = f"{folder}/{session.name.replace(':', '-')}"
        self._writer = SummaryWriter(folder, session.name, self._tensorboard)
        self._write_event(session, "started", session.global_step, {"hparams": self._hparams} if self._hparams else {})
        if self._tensorboard and self._watched() is not session:  # `fit` opens a session's hooks each time
            self._watched = weakref.ref(session)
            session.watch_gradient_norms(lambda norm: self._histograms[GRADIENT_NORM].add(norm))

    def after_run(self, session: Loop, push: Push, loss: Any) -> None:
        self._pushes += 1
        if self._tensorboard:
            self._histograms[STALENESS].add(push.staleness)
        if not self._timer.is_due(push.step):
            return
        since = self._timer.record_firing(push.step)
        row = {
            "step": push.step, "worker": session.name, "loss": None if loss is None else as_number(loss, "loss"),
            "staleness": push.staleness, "accepted": push.accepted,
        }  # fmt: skip
        if since is not None and since[1] > 0:
            row["steps_per_s"] = since[0] / since[1]
            if self.batch is not None:
                row["examples_per_s"] = self._pushes * self.batch / since[1]
        row |= self._reader.take_new(session.scalars)
        self._pushes = 0
        self._write_row(session, row, self._histograms)
        self._clear_histograms()

    def rolled_back(self, session: Loop, step: int, lost: int) -> None:
        self._timer.record_firing(step)
        self._pushes = 0
        self._clear_histograms()
        self._write_event(session, "rolled back", step, {"lost": lost})

    def _write_event(self, session: Loop, what: str, step: int, more: dict[str, Any]) -> None:
        self._write_row(session, {"step": step, "worker": session.name, "event": what, **more})

    def _write_row(
        self, session: Loop, row: dict[str, Any], histograms: Mapping[str, Histogram] | None = None
    ) -> None:  # fmt: skip
        if self._all_workers or session.is_chief:
            self._writer.add(row, histograms)
