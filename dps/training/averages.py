"""Moving averages of variables as data: what a ps keeps beside the values, and how fast it follows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dps.errors import ConfigError
from dps.process.record import record
from dps.training.definition import Definition, build

SLOT = "average"
"""The name of the slot that holds averages, on a ps and in checkpoints."""
KEY = "moving_average"
"""Where the wire form of an optimizer has the wire form of the average that is kept beside it."""


@record
class MovingAverage(Definition):
    """`average -= (1 - decay) * (average - w)`, after each update of a variable.

    An average begins at the first value of its variable. `Session(moving_average=...)` keeps one for every variable
    that is trained, on the ps that has the variable, and `session.averages()` returns them. An update of some rows
    moves the averages of these rows; a variable without a gradient keeps its average.
    Source: tf.train.ExponentialMovingAverage.

    Args:
        decay: The share of the average that an update keeps; at least 0 and below 1.
        num_updates: Whether the average is faster at the beginning: `min(decay, (1 + step) / (10 + step))` takes the
            place of `decay`, where `step` is the global step after the update. It is what TensorFlow does with
            `num_updates=global_step`.

    Raises:
        ConfigError: A number out of range; a TypeError as well if it is not a number.

    Example:
        ```pycon
        >>> with dps.Session(server, {"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0),
        ...                  moving_average=dps.optim.MovingAverage(decay=0.75)) as session:
        ...     session.push({"w": -np.ones(2)}).step
        ...     session.averages()["w"]
        1
        array([0.25, 0.25])
        ```
    """

    name: ClassVar[str] = "moving_average"
    decay: float = 0.999
    num_updates: bool = False

    def __post_init__(self) -> None:
        self._fraction("decay", 0.999)
        self._flag("num_updates")

    def at(self, step: int) -> float:
        """The decay of one update.

        Args:
            step: The global step after the update.

        Returns:
            The share of the average that is kept.

        Example:
            ```pycon
            >>> dps.optim.MovingAverage(0.999, num_updates=True).at(8)
            0.5
            ```
        """
        return min(self.decay, (1 + step) / (10 + step)) if self.num_updates else self.decay


def checked(average: object) -> MovingAverage:
    """Return `average` if it is one; else raise ConfigError."""
    if isinstance(average, MovingAverage):
        return average
    raise ConfigError(f"moving_average: got {average!r:.80}, wanted one such as dps.optim.MovingAverage(0.999)")


def average_of(wire: Mapping[str, Any] | None) -> MovingAverage | None:
    """The average that is kept beside an optimizer, in its wire form; None if there is none."""
    found = None if wire is None else wire.get(KEY)
    return None if found is None else build({MovingAverage.name: MovingAverage}, KEY, found)


def slots_of(wire: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Names of the slots of a variable, from the wire form of its optimizer; none if it is not trained."""
    if wire is None:
        return ()
    from dps.training.optimizers import from_wire

    return (*from_wire(wire).slots, *((SLOT,) if KEY in wire else ()))
