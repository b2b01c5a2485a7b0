"""The text of CUDA kernels that loop over elements: of an array, or of the rows of a table that a list names.

Each thread strides over the whole grid, and loads several elements before it computes with the first: a load takes
hundreds of cycles, and a compiler may not move one in front of a store to memory that may be the same. Indices are
unsigned, because a negative one would count from the end, which numba looks for at each access; the position in a table
advances without a division, which costs more than all else that a kernel does with an element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dps.kernels.device import cuda, gpu_function, gpu_kernel
from dps.kernels.jit import define

AT_ONCE = 4
"""How many elements a thread loads before it computes."""

size: Any = np.uint64
"""The type of indices."""
ONE = np.uint64(1)


@gpu_function
def advanced(i: Any, j: Any, down: Any, right: Any, columns: Any) -> Any:
    """The position `down` rows and `right` columns after row i, column j; `right` is less than `columns`."""
    i, j = i + down, j + right
    if j >= columns:
        i, j = i + ONE, j - columns
    return i, j


def over_elements(header: str, count: str, loads: Sequence[str], uses: Sequence[str], at_once: int = AT_ONCE) -> str:
    """The text of a kernel over `count` elements.

    `loads` and `uses` are statements about one element; {i} stands for its index, {k} for its number among those that a
    thread loads together, which names of local variables end with."""
    last = at_once - 1
    start = [f"n, step = size({count}), size(cuda.gridsize(1))", "i0 = size(cuda.grid(1))"]
    ahead = [f"i{k} = i{k - 1} + step" for k in range(1, at_once)]
    return _text(header, start, ahead, [f"i0 = i{last} + step"], ["i0 += step"], loads, uses, at_once)


def over_rows(
    header: str, rows: str, columns: str, loads: Sequence[str], uses: Sequence[str], at_once: int = AT_ONCE
) -> str:
    """The text of a kernel over the elements of so many rows, with so many columns each; as `over_elements`, where {j}
    stands for the column of an element and {i} for its row."""
    last = at_once - 1
    start = [
        f"n, columns, step = size({rows}), size({columns}), size(cuda.gridsize(1))",
        "down, right, begin = step // columns, step % columns, size(cuda.grid(1))",
        "i0, j0 = begin // columns, begin % columns",
    ]
    ahead = [f"i{k}, j{k} = advanced(i{k - 1}, j{k - 1}, down, right, columns)" for k in range(1, at_once)]
    return _text(
        header, start, ahead, [f"i0, j0 = advanced(i{last}, j{last}, down, right, columns)"],
        ["i0, j0 = advanced(i0, j0, down, right, columns)"], loads, uses, at_once,
    )  # fmt: skip


def _text(
    header: str, start: Sequence[str], ahead: Sequence[str], after: Sequence[str], after_one: Sequence[str],
    loads: Sequence[str], uses: Sequence[str], at_once: int,
) -> str:  # fmt: skip
    def of(statements: Sequence[str], k: int) -> list[str]:
        return [statement.format(i=f"i{k}", j=f"j{k}", k=k) for statement in statements]

    together = [line for part in (loads, uses) for k in range(at_once) for line in of(part, k)]
    lines = [
        *start, *ahead,
        f"while i{at_once - 1} < n:", *indented([*together, *after, *ahead]),
        "while i0 < n:", *indented([*of(loads, 0), *of(uses, 0), *after_one]),
    ]  # fmt: skip
    return "\n".join([f"def {header}:", *indented(lines), ""])


def indented(lines: Sequence[str]) -> list[str]:
    """One block of Python."""
    return ["    " + line for line in lines]


def names(**more: Any) -> Mapping[str, Any]:
    """What such texts use, and more."""
    return {"advanced": advanced, "cuda": cuda, "size": size, **more}


def kernel(text: str, name: str, module: str, **more: Any) -> Any:
    """The kernel `name` that a text defines, as one of a module. `more`: what the text takes from elsewhere."""
    space = {**names(**more), "__name__": module}
    define(text, __file__, space)
    return gpu_kernel(space[name])
