"""Placements: which ps gets a variable: round robin (default), greedy by load, or random by name.

A policy is a callable (name, shape, dtype) -> task, called once for each variable, or each part of a
partitioned one, in creation order. `.loads[task]` is the load that it has given to each task so far.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from dps.errors import DpsError, PlacementError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

STRING_NBYTES = 16  # what one string item counts


class Policy(Protocol):
    """(name, shape, dtype) -> task, from 0 to the number of ps tasks less one."""

    def __call__(self, name: str, shape: Sequence[int], dtype: DTypeLike, /) -> int: ...


class Load(Protocol):
    """(name, shape, dtype) -> the load of the variable: finite, not negative, in any unit."""

    def __call__(self, name: str, shape: Sequence[int], dtype: DTypeLike, /) -> float: ...


def item_nbytes(dtype: DTypeLike) -> int:
    """Bytes of one element; 16 for strings. Raises TypeError for an invalid dtype."""
    return _named_nbytes(dtype) if isinstance(dtype, str) else _nbytes(dtype)


@functools.lru_cache(maxsize=256)
def _named_nbytes(dtype: str) -> int:
    if dtype in ("string", "bfloat16"):  # numpy alone knows neither name
        return STRING_NBYTES if dtype == "string" else 2
    return _nbytes(dtype)


def _nbytes(dtype: DTypeLike) -> int:
    import numpy as np  # here, so that naming a cluster does not load numpy

    kept = np.dtype(dtype)
    return STRING_NBYTES if kept.kind in "OSTU" else kept.itemsize


def nbytes(name: str, shape: Sequence[int], dtype: DTypeLike) -> int:
    """The load of a variable in bytes: elements times item size.

    Args:
        name: Ignored.
        shape: The variable's shape; () is one element.
        dtype: Its dtype. A string item counts 16 bytes.

    Returns:
        Bytes.
    """
    return math.prod(shape) * item_nbytes(dtype)


class RoundRobin:
    """The tasks 0 to n-1 in turn: one step for each variable. `.loads` is in bytes.

    Args:
        n: How many ps tasks there are.

    Raises:
        ValueError: Not a whole number from 1.

    Example:
        ```pycon
        >>> policy = dps.placement.RoundRobin(2)
        >>> [policy(name, (10,), "float32") for name in "abc"], policy.loads
        ([0, 1, 0], [80, 40])
        ```
    """

    def __init__(self, n: int) -> None:
        self.loads: list[int] = [0] * _positive(n)
        self._next = 0

    def __call__(self, name: str, shape: Sequence[int], dtype: DTypeLike) -> int:
        task = self._next
        self._next = (task + 1) % len(self.loads)
        self.loads[task] += nbytes(name, shape, dtype)
        return task


class Greedy:
    """The task with the least load so far, the lowest index among equals. `.loads` is in the unit of `load`.

    A call raises PlacementError if `load` returns anything but a finite number from 0.

    Args:
        n: How many ps tasks there are.
        load: The load of a variable: a callable (name, shape, dtype) -> number.

    Raises:
        ValueError: Not a whole number from 1.

    Example:
        ```pycon
        >>> policy = dps.placement.Greedy(2)
        >>> [policy(name, (rows,), "float32") for name, rows in zip("abc", (100, 10, 10))]
        [0, 1, 1]
        ```
    """

    def __init__(self, n: int, load: Load = nbytes) -> None:
        self.loads: list[float] = [0] * _positive(n)
        self._load = load

    def __call__(self, name: str, shape: Sequence[int], dtype: DTypeLike) -> int:
        load = self._load(name, shape, dtype)
        try:
            usable = math.isfinite(load) and load >= 0
        except TypeError:
            usable = False
        if not usable:
            raise PlacementError(f"load of {name!r}: got {load!r}, wanted a finite number from 0; see placement.nbytes")
        task = self.loads.index(min(self.loads))
        self.loads[task] += load
        return task


class Random:
    """A task that depends on `seed` and the variable's name only, whatever else is placed. `.loads` is in bytes.

    The first 8 bytes (big-endian) of BLAKE2b over "SEED:NAME", modulo n: the same on every machine and in every
    release.

    Args:
        n: How many ps tasks there are.
        seed: A whole number.

    Raises:
        ValueError: `n` is not a whole number from 1.

    Example:
        ```pycon
        >>> policy = dps.placement.Random(4, seed=7)
        >>> policy("w", (10,), "float32") == policy("w", (10,), "float32")
        True
        ```
    """

    def __init__(self, n: int, seed: int) -> None:
        self.loads: list[int] = [0] * _positive(n)
        self._seed = seed

    def __call__(self, name: str, shape: Sequence[int], dtype: DTypeLike) -> int:
        import hashlib  # OpenSSL comes with it

        digest = hashlib.blake2b(f"{self._seed}:{name}".encode(), digest_size=8).digest()
        task = int.from_bytes(digest, "big") % len(self.loads)
        self.loads[task] += nbytes(name, shape, dtype)
        return task


def checked_task(policy: Policy, n: int, name: str, shape: Sequence[int], dtype: DTypeLike) -> int:
    """The policy's task for this variable. Raises PlacementError if it raises or returns no int from 0 to n-1."""
    try:
        task: object = policy(name, shape, dtype)
    except DpsError:
        raise
    except Exception as error:
        raise PlacementError(
            f"placement of {name!r}: {policy!r} raised {type(error).__name__}: {one_line(error)}"
        ) from error
    index = as_int(task)
    if index is None or not 0 <= index < n:
        raise PlacementError(
            f"placement of {name!r}: got {task!r} from {policy!r}, wanted a ps task from 0 to {n - 1}; "
            f"does the policy know that there are {n} ps tasks?"
        )
    return index


def one_line(error: Exception) -> str:
    """The text of an error of the user's code, on one line."""
    return " ".join(str(error).split())


def as_int(value: object) -> int | None:
    """`value` if it is an integer (also numpy's, but not a bool), else None."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def imbalance(bytes_per_task: Mapping[int, int]) -> float:
    """The largest load over the mean load; 1.0 is even. A plan without bytes has 1.0."""
    total = sum(bytes_per_task.values())
    return max(bytes_per_task.values()) * len(bytes_per_task) / total if total else 1.0


def describe(
    bytes_per_task: Mapping[int, int], moved: Mapping[int, tuple[int, int]] | None = None,
    rows: Mapping[str, int] | None = None,
) -> str:  # fmt: skip
    """The plan as a short table: bytes and share of each ps task, and max over mean.

    Args:
        bytes_per_task: Bytes of the values.
        moved: With several tasks also shown: the bytes that a step of one worker moves to each and from it.
        rows: The bytes of a row of each table whose rows come on top, by its name.
    """
    total, moved = sum(bytes_per_task.values()), {} if moved is None or len(bytes_per_task) == 1 else moved
    lines = [f"{'ps':>4}  {'bytes':>18}  {'share':>6}" + (f"  {'a step: in':>18}  {'out':>18}" if moved else "")]
    for task, size in sorted(bytes_per_task.items()):
        lines.append(f"{task:>4}  {size:>18,}  {size / total if total else 0:>6.1%}")
        if moved:
            lines[-1] += "  {:>18,}  {:>18,}".format(*moved[task])
    if moved and rows:
        named = [f"{nbytes:,} bytes for each of {name}" for name, nbytes in list(rows.items())[:MOST_TABLES]]
        more = f", and {len(rows) - MOST_TABLES} more tables" if len(rows) > MOST_TABLES else ""
        lines.append(f"and the rows that a step names, in and out: {', '.join(named)}{more}")
    lines.append(f"max over mean {imbalance(bytes_per_task):.2f}")
    return "\n".join(lines)


MOST_TABLES = 3
"""How many tables a plan names."""


def _positive(n: object) -> int:
    count = as_int(n)
    if count is None or count < 1:
        raise ValueError(f"number of ps tasks: got {n!r}, wanted a whole number from 1")
    return count
