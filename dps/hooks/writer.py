"""Writes scalars to summary files: JSON lines, and event files for TensorBoard."""

from __future__ import annotations

import os
from typing import Any

from dps.errors import CheckpointError, ConfigError
from dps.hooks.files import EventFile, JsonLines, SummaryFile
from dps.hooks.scalars import RESERVED, as_number
from dps.telemetry import log
from dps.transport.current import runtime


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
        self._name, self._failing = name, False
        folder, storage = os.fspath(directory), runtime().storage
        self._files: list[SummaryFile] = [JsonLines(storage, f"{folder}/summaries.jsonl")]
        if tensorboard:
            file = f"events.out.tfevents.{int(runtime().wall()):010d}.{name.replace(':', '-')}"
            self._files.append(EventFile(storage, f"{folder}/{file}"))

    def write(self, step: int, **scalars: Any) -> None:
        """Add a row.

        Args:
            step: The global step to which the scalars belong.
            **scalars: Numbers by name; arrays and tensors of one element are allowed, too.

        Raises:
            ConfigError: A reserved name, such as `worker` or `event`, or a value that is not a number.
        """
        row: dict[str, Any] = {"step": step, "worker": self._name}
        for name, value in scalars.items():
            if name in RESERVED and name != "loss":
                raise ConfigError(f"summary: got the name {name!r}, wanted none of {', '.join(RESERVED)}")
            try:
                row[name] = as_number(value, name)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"summary: {error}") from None
        self.add(row)

    def add(self, row: dict[str, Any]) -> None:
        """Add a row as it is.

        Args:
            row: Plain values by name, with `step`.
        """
        try:
            for file in self._files:
                file.write(runtime().wall(), row)
        except CheckpointError as error:
            if not self._failing:
                log.error("%s: no summaries from step %d on: %s", self._name, row["step"], error)
            self._failing = True
        else:
            if self._failing:
                log.warning("%s: summaries are written again from step %d on", self._name, row["step"])
            self._failing = False
