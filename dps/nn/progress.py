"""The progress of an epoch on the screen, as Keras users know it."""

from __future__ import annotations

import sys
from typing import Any

from dps.nn.callbacks import Callback
from dps.transport.current import runtime

WIDTH = 30
EVERY_S = 0.1


class Progress(Callback):
    """`verbose` 1: a bar for each epoch, drawn anew where the output is a terminal; 2: a line for each epoch."""

    def __init__(self, verbose: int, epochs: int, steps: int | None) -> None:
        self._verbose, self._epochs, self._steps = verbose, epochs, steps
        self._done, self._since, self._drawn = 0, 0.0, 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, float]) -> None:
        print(f"Epoch {epoch + 1}/{self._epochs}", flush=True)
        self._done, self._since = 0, runtime().now()

    def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:
        self._done = batch + 1
        now = runtime().now()
        if self._verbose == 1 and sys.stdout.isatty() and now - self._drawn > EVERY_S:
            self._drawn = now
            print(f"\r{self._line(logs)}", end="", flush=True)

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        back = "\r" if self._verbose == 1 and sys.stdout.isatty() else ""
        print(f"{back}{self._line(logs)}", flush=True)

    def _line(self, logs: dict[str, float]) -> str:
        return line(self._done, self._steps, runtime().now() - self._since, logs, self._verbose == 1)


def line(done: int, steps: int | None, seconds: float, logs: dict[str, Any], bar: bool = True) -> str:
    """`10/10 [=====] - 0s 2ms/step - loss: 2.0391`; without a number of steps the bar is left out."""
    steps = done if steps is None or done > steps else steps
    filled = WIDTH * done // max(1, steps)
    drawn = "=" * filled if done == steps else "=" * max(0, filled - 1) + ">" + "." * (WIDTH - max(1, filled))
    count = f"{done}/{steps} [{drawn}]" if bar else f"{done}/{steps}"
    numbers = "".join(f" - {name}: {value:.4f}" for name, value in logs.items())
    return f"{count} - {seconds:.0f}s {1000 * seconds / max(1, done):.0f}ms/step{numbers}"
