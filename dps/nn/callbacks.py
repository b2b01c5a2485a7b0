"""Callbacks of `fit`, which it calls before and after epochs and batches: history, early stopping, saved weights."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dps.errors import ConfigError
from dps.transport.current import runtime

if TYPE_CHECKING:
    from dps.nn.model import Model


class Callback:
    """Base class of callbacks. Override the methods that you need; `self.model` is the model.

    Example:
        ```pycon
        >>> class Rate(dps.nn.Callback):
        ...     def on_epoch_end(self, epoch, logs):
        ...         print(epoch, sorted(logs))
        >>> model = dps.nn.Sequential([dps.nn.Dense(1)])
        >>> model.compile(optimizer="sgd", loss="mse")
        >>> x = np.ones((4, 2))
        >>> history = model.fit(x, x[:, :1], callbacks=[Rate()], verbose=0)
        0 ['loss']
        ```
    """

    model: Model

    def set_model(self, model: Model) -> None:
        """Called first.

        Args:
            model: The model that is trained.
        """
        self.model = model

    def on_train_begin(self, logs: dict[str, float]) -> None:
        """Called before the first epoch.

        Args:
            logs: Empty.
        """

    def on_train_end(self, logs: dict[str, float]) -> None:
        """Called after the last epoch.

        Args:
            logs: The numbers of the last epoch.
        """

    def on_epoch_begin(self, epoch: int, logs: dict[str, float]) -> None:
        """Called before an epoch.

        Args:
            epoch: Its number, from 0.
            logs: Empty.
        """

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Called after an epoch, and after its validation.

        Args:
            epoch: Its number, from 0.
            logs: Loss and metrics over the epoch, and those of the validation as "val_loss" and so on.
        """

    def on_train_batch_begin(self, batch: int, logs: dict[str, float]) -> None:
        """Called before a batch.

        Args:
            batch: Its number in the epoch, from 0.
            logs: Empty.
        """

    def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:
        """Called after a batch.

        Args:
            batch: Its number in the epoch, from 0.
            logs: Loss and metrics of this epoch so far, of this process's examples.
        """


class History(Callback):
    """The numbers of each epoch. `fit` returns it.

    Example:
        ```pycon
        >>> model = dps.nn.Sequential([dps.nn.Dense(1)])
        >>> model.compile(optimizer="sgd", loss="mse")
        >>> x = np.ones((4, 2))
        >>> history = model.fit(x, x[:, :1], epochs=3, verbose=0)
        >>> history.epoch, len(history.history["loss"])
        ([0, 1, 2], 3)
        ```
    """

    def __init__(self) -> None:
        self.epoch: list[int] = []
        self.history: dict[str, list[float]] = {}

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """As Callback.on_epoch_end."""
        self.epoch.append(epoch)
        for name, value in logs.items():
            self.history.setdefault(name, []).append(value)


class LambdaCallback(Callback):
    """A callback of functions.

    Args:
        functions: By the names of `Callback`'s methods, such as `on_epoch_end`.

    Raises:
        ConfigError: A name that no method has.

    Example:
        ```pycon
        >>> said = dps.nn.LambdaCallback(on_epoch_end=lambda epoch, logs: print("epoch", epoch))
        >>> said.on_epoch_end(3, {})
        epoch 3
        ```
    """

    def __init__(self, **functions: Callable[..., None]) -> None:
        for name, function in functions.items():
            if not name.startswith("on_") or not hasattr(Callback, name):
                known = ", ".join(known for known in dir(Callback) if known.startswith("on_"))
                raise ConfigError(f"LambdaCallback: got {name!r}, wanted {known}")
            setattr(self, name, function)


class EarlyStopping(Callback):
    """End the training when a number has not become better for some epochs.

    Args:
        monitor: The number's name in the logs, such as "val_loss".
        patience: For so many epochs more without a better one.
        min_delta: A smaller change is none.
        mode: "min", "max", or "auto": "max" for accuracies.
        restore_best_weights: Whether the weights of the best epoch are set at the end.

    Raises:
        ConfigError: An unknown mode; or at the end of an epoch, a number that is not there.

    Example:
        ```pycon
        >>> stop = dps.nn.EarlyStopping(monitor="loss", patience=1, min_delta=100.0)
        >>> model = dps.nn.Sequential([dps.nn.Dense(1)])
        >>> model.compile(optimizer="sgd", loss="mse")
        >>> x = np.ones((4, 2))
        >>> history = model.fit(x, x[:, :1], epochs=9, callbacks=[stop], verbose=0)
        >>> history.epoch
        [0, 1]
        ```
    """

    def __init__(
        self, monitor: str = "val_loss", patience: int = 0, min_delta: float = 0.0, mode: str = "auto",
        restore_best_weights: bool = False,
    ) -> None:  # fmt: skip
        self._best = Best(monitor, mode, min_delta, "EarlyStopping")
        self._patience, self._restores = patience, restore_best_weights
        self._since = 0
        self._weights: list[Any] | None = None

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """As Callback.on_epoch_end."""
        self._since += 1
        if self._best.is_better(logs):
            self._since = 0
            self._weights = self.model.get_weights() if self._restores else None
        elif self._since >= max(1, self._patience):
            self.model.stop_training = True

    def on_train_end(self, logs: dict[str, float]) -> None:
        """As Callback.on_train_end."""
        if self._weights is not None and self._since:
            self.model.set_weights(self._weights)


class ModelCheckpoint(Callback):
    """Save the weights after each epoch, with `model.save_weights`; under several workers the first one saves.

    Args:
        filepath: The file. `{epoch}` in it becomes the epoch's number from 1, and `{val_loss:.2f}` and so on the
            numbers of the logs.
        monitor: Which number tells the best epoch.
        save_best_only: Whether only better epochs are saved.
        mode: As of `EarlyStopping`.

    Raises:
        ConfigError: An unknown mode; or at the end of an epoch, a number that is not there.

    Example:
        ```pycon
        >>> model = dps.nn.Sequential([dps.nn.Dense(1)])
        >>> model.compile(optimizer="sgd", loss="mse")
        >>> x, saver = np.ones((4, 2)), dps.nn.ModelCheckpoint("epoch-{epoch}.safetensors")
        >>> history = model.fit(x, x[:, :1], callbacks=[saver], verbose=0)
        >>> model.load_weights("epoch-1.safetensors")
        ```
    """

    def __init__(
        self, filepath: str, monitor: str = "val_loss", save_best_only: bool = False, mode: str = "auto"
    ) -> None:  # fmt: skip
        self._path, self._only_best = str(filepath), save_best_only
        self._best = Best(monitor, mode, 0.0, "ModelCheckpoint")

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """As Callback.on_epoch_end."""
        if self._only_best and not self._best.is_better(logs):
            return
        try:
            path = self._path.format(epoch=epoch + 1, **logs)
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"ModelCheckpoint: {self._path!r} names {error}, which is not among {list(logs)}"
            ) from None
        if self.model.leads:
            self.model.save_weights(path)


class Best:
    """The best value of a number so far."""

    def __init__(self, monitor: str, mode: str, min_delta: float, what: str) -> None:
        """Raises ConfigError for an unknown mode."""
        if mode not in ("auto", "min", "max"):
            raise ConfigError(f"{what}: got mode={mode!r}, wanted 'auto', 'min' or 'max'")
        self._monitor, self._what, self._delta = monitor, what, abs(min_delta)
        self._sign = -1.0 if mode == "max" or (mode == "auto" and "acc" in monitor) else 1.0
        self._value = math.inf

    def is_better(self, logs: Mapping[str, float]) -> bool:
        """Whether this epoch is better than all before. ConfigError if the number is not there."""
        if self._monitor not in logs:
            more = "; give fit validation_data" if self._monitor.startswith("val_") else ""
            raise ConfigError(f"{self._what}: there is no {self._monitor!r} among {list(logs)}{more}")
        value = self._sign * logs[self._monitor]
        if not value < self._value - self._delta:
            return False
        self._value = value
        return True


WIDTH = 30
EVERY_S = 0.1


class EpochProgress(Callback):
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
