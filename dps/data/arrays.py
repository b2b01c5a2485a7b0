"""Nested arrays as rows: one row or several out of arrays, and examples stacked into the arrays of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.errors import ConfigError, DataError
from dps.variables.tree import Nesting, leaves, to_array

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


class Arrays:
    """Nested arrays with the same number of rows. They are not copied, and must not change while they are read."""

    def __init__(self, tree: Any, call: str = "from_arrays") -> None:
        """`call`: what the program called. "from_tensors": the arrays are one row.

        Raises ConfigError for no arrays and for different numbers of rows, TypeError for what is no array."""
        self._nesting = Nesting(tree)
        found = list(leaves(tree))
        if not found:
            raise ConfigError(f"{call}: got no arrays, wanted at least one")
        self._leaves = [to_array(leaf, name) for name, leaf in found]
        if call == "from_tensors":
            self._leaves = [leaf[None] for leaf in self._leaves]
        for (name, _), leaf in zip(found, self._leaves, strict=True):
            if leaf.ndim == 0 or len(leaf) != len(self._leaves[0]):
                rows = f"{len(leaf)} rows" if leaf.ndim else "shape ()"
                wanted = f"{len(self._leaves[0])} rows as {found[0][0]!r}" if self._leaves[0].ndim else "rows"
                if not leaf.ndim and isinstance(tree, list | tuple):
                    wanted += "; lists and tuples are nestings of arrays, np.array(...) makes one array of a list"
                raise ConfigError(f"{call}: {name!r} has {rows}, wanted {wanted}")
        self.rows = len(self._leaves[0])

    def row(self, number: int) -> Any:
        """One row in the nesting of the arrays; a copy."""
        return self._nesting.build([np.array(leaf[number]) for leaf in self._leaves])

    def gather_rows(self, numbers: Sequence[int] | Array) -> Any:
        """Rows in the nesting of the arrays, each array of shape (rows, ...); a copy."""
        first, count, rows = int(numbers[0]), len(numbers), np.asarray(numbers)
        if rows[-1] - first == count - 1 and bool((rows[1:] - rows[:-1] == 1).all()):
            return self._nesting.build([leaf[first : first + count].copy() for leaf in self._leaves])
        return self._nesting.build([leaf.take(rows, axis=0) for leaf in self._leaves])


def stack_examples(examples: Sequence[Any]) -> Any:
    """Examples of the same nesting, shapes and dtypes as one nesting of arrays of shape (examples, ...).

    Raises DataError that names the first example, counted from 0 in this batch, that differs from the first one.
    """
    nesting = Nesting(examples[0])
    columns: list[list[Any]] = [[] for _ in nesting.paths]
    for number, example in enumerate(examples):
        found = nesting.leaves(example)
        if found is None or len(found) != len(columns):
            raise DataError(
                f"batch: example {number} of a batch has {_nested(example)}, example 0 has {_nested(examples[0])}; "
                "wanted the same nesting in all examples"
            )
        for column, leaf in zip(columns, found, strict=True):
            column.append(leaf)
    return nesting.build([_stack_column(path, column) for path, column in zip(nesting.paths, columns, strict=True)])


def _stack_column(path: str, column: list[Any]) -> Array:
    try:
        arrays = [to_array(leaf, path) for leaf in column]
    except (TypeError, ValueError) as error:
        raise DataError(f"batch: {error}") from error
    first = arrays[0]
    for number, array in enumerate(arrays):
        if array.shape != first.shape or array.dtype != first.dtype:
            raise DataError(
                f"batch: {path!r} of example {number} of a batch has shape {array.shape} and dtype {array.dtype}, "
                f"example 0 has {first.shape} and {first.dtype}; wanted the same in all (pad or convert them with .map)"
            )
    return np.stack(arrays)


def _nested(example: Any) -> str:
    """What an example is made of, for a message."""
    try:
        names = [name for name, _ in leaves(example)]
    except (TypeError, ValueError) as error:
        return f"a nesting that cannot be batched ({error})"
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "") if names else "nothing"
