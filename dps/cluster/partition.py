"""Partitioners: how many parts a variable has along axis 0, and which rows belong to each part.

A partitioner is a callable (shape, dtype) -> number of parts; 1 means an ordinary variable. `max_shards`
keeps TensorFlow's name and counts parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from dps.cluster.placement import as_int, item_nbytes, one_line
from dps.errors import DpsError, PlacementError
from dps.process.record import record

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


class Partitioner(Protocol):
    """(shape, dtype) -> number of parts, from 1 to the number of rows."""

    def __call__(self, shape: Sequence[int], dtype: DTypeLike, /) -> int: ...


@record
class Fixed:
    """A fixed number of parts, or one for each row if there are fewer rows.

    Args:
        n: The number of parts.

    Raises:
        ValueError: Not a whole number from 1.

    Example:
        ```pycon
        >>> dps.partition.Fixed(4)((1000, 8), "float32")
        4
        ```
    """

    n: int

    def __post_init__(self) -> None:
        _check("n", self.n)

    def __call__(self, shape: Sequence[int], dtype: DTypeLike) -> int:
        return max(1, min(self.n, _rows(shape)))


@record
class MinSize:
    """As many parts as possible with about `min_bytes` each: `max(1, min(rows, max_shards, ceil(bytes / min_bytes)))`.

    Args:
        min_bytes: The least size of a part, in bytes.
        max_shards: The most parts.

    Raises:
        ValueError: Not whole numbers from 1.

    Example:
        ```pycon
        >>> dps.partition.MinSize(min_bytes=10_000, max_shards=8)((1000, 8), "float32")
        4
        ```
    """

    min_bytes: int = 256 << 10
    max_shards: int = 1

    def __post_init__(self) -> None:
        _check("min_bytes", self.min_bytes)
        _check("max_shards", self.max_shards)

    def __call__(self, shape: Sequence[int], dtype: DTypeLike) -> int:
        size = math.prod(shape) * item_nbytes(dtype)
        return max(1, min(_rows(shape), self.max_shards, _ceil_div(size, self.min_bytes)))


@record
class MaxSize:
    """As few parts as possible with at most `max_bytes` each; a part has at least one row.

    Rows of a part: `max(1, floor(max_bytes / row_bytes))`. Parts: the rows divided by that, rounded up.

    Args:
        max_bytes: The largest size of a part, in bytes.
        max_shards: The most parts. None: no limit.

    Raises:
        ValueError: Not whole numbers from 1.

    Example:
        ```pycon
        >>> dps.partition.MaxSize(max_bytes=16_000)((1000, 8), "float32")
        2
        ```
    """

    max_bytes: int
    max_shards: int | None = None

    def __post_init__(self) -> None:
        _check("max_bytes", self.max_bytes)
        if self.max_shards is not None:
            _check("max_shards", self.max_shards)

    def __call__(self, shape: Sequence[int], dtype: DTypeLike) -> int:
        rows = _rows(shape)
        row_nbytes = math.prod(shape[1:]) * item_nbytes(dtype)
        if row_nbytes == 0:
            return 1
        shards = _ceil_div(rows, max(1, self.max_bytes // row_nbytes))
        return max(1, shards if self.max_shards is None else min(shards, self.max_shards))


@record
class RowRange:
    """A piece of a partitioned variable: rows `start` to `start + shape[0]` of axis 0, named `NAME/part_i`."""

    name: str
    start: int
    shape: tuple[int, ...]


def split_rows(rows: int, shards: int) -> list[int]:
    """The number of rows of each part: `rows div shards` each, one more for the first `rows mod shards`.

    Args:
        rows: The rows of the variable.
        shards: The number of parts.

    Returns:
        The rows of each part.

    Raises:
        ValueError: Fewer than 0 rows or 1 part.

    Example:
        ```pycon
        >>> dps.partition.split_rows(13, 5)
        [3, 3, 3, 2, 2]
        ```
    """
    if rows < 0 or shards < 1:
        raise ValueError(f"split_rows: got {rows} rows over {shards} shards, wanted rows from 0 and shards from 1")
    each, more = divmod(rows, shards)
    return [each + 1] * more + [each] * (shards - more)


def num_parts(partitioner: Partitioner | None, name: str, shape: Sequence[int], dtype: DTypeLike) -> int:
    """How many parts `partitioner` gives this variable; without a partitioner, one.

    Raises PlacementError if it raises, or unless it returns an int from 1 to the number of rows (a scalar, or a
    variable without rows, has one part).
    """
    if partitioner is None:
        return 1
    try:
        answer: object = partitioner(tuple(shape), dtype)
    except DpsError:
        raise
    except Exception as error:
        raise PlacementError(
            f"partition of {name!r}: {partitioner!r} raised {type(error).__name__}: {one_line(error)}"
        ) from error
    shards = as_int(answer)
    most = max(1, _rows(shape))
    if shards is None or not 1 <= shards <= most:
        raise PlacementError(
            f"partition of {name!r}, shape {tuple(shape)}: got {answer!r} from {partitioner!r}, wanted a number of "
            f"parts from 1 to {most}; return 1 to leave it whole"
        )
    return shards


def cut(name: str, shape: Sequence[int], dtype: DTypeLike, partitioner: Partitioner | None) -> tuple[RowRange, ...]:
    """The parts of a variable in row order; an unsplit variable is one part with its own name.

    Raises PlacementError if the partitioner returns an invalid number.
    """
    shards = num_parts(partitioner, name, shape, dtype)
    if shards == 1:
        return (RowRange(name, 0, tuple(shape)),)
    parts: list[RowRange] = []
    start = 0
    for number, rows in enumerate(split_rows(shape[0], shards)):
        parts.append(RowRange(f"{name}/part_{number}", start, (rows, *shape[1:])))
        start += rows
    return tuple(parts)


def _rows(shape: Sequence[int]) -> int:
    """Rows of axis 0; a scalar has one."""
    return shape[0] if shape else 1


def _ceil_div(value: int, by: int) -> int:
    return -(-value // by)


def _check(field: str, value: object) -> None:
    number = as_int(value)
    if number is None or number < 1:
        raise ValueError(f"{field}: got {value!r}, wanted a whole number from 1")
