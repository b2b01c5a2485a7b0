"""CUDA kernels of a ps: optimizers and reads of `dps.kernels.cpu` with the same arguments, on GPU arrays.

Every function starts kernels on `stream` (0: the default one), in order, and does not wait, except `all_finite`. Arrays
are those of `dps.kernels.device`, in the scope of their GPU. No kernel uses atomic operations, so the same arrays give
the same bits in every run. They have the bits of the CPU, except for powers (only `Ftrl` with another power than -0.5):
numba has no option that keeps libNVVM from joining a product and a sum, but products by `mul` are never joined.
In kernels for rows each thread handles one element of a row. Rows are unique, so no two threads write the same element.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, TypeAlias

from dps.kernels.cuda_loops import kernel, names, over_elements, over_rows
from dps.kernels.cuda_rowwise import adagrad_rowwise, adagrad_rowwise_rows
from dps.kernels.device import gpu_kernel, gpu_rule, launch_each, launch_rows, shared_flag, wait
from dps.kernels.passes import PassText, Rule, defined
from dps.training.optimizers import mul

__all__ = [
    "adagrad_rowwise",
    "adagrad_rowwise_rows",
    "all_finite",
    "follow",
    "follow_rows",
    "gather",
    "passes",
]

Array: TypeAlias = Any
Rows: TypeAlias = Any
Scalar: TypeAlias = Any
Stream: TypeAlias = Any


class CudaPasses:
    """The passes of one rule; see `dps.kernels.passes`. Slots and scalars that are None are no arguments of kernels."""

    fused = None

    def __init__(self, rule: Rule) -> None:
        """Raises ConfigError as `PassText`."""
        text = PassText(rule)
        self.slots, self._names, self._n_slots = text.slots, text.slots + text.scalars, len(text.slots)
        self._rule, self._gpu_rule = rule, gpu_rule(rule)
        self._kernels: dict[tuple[str, ...], tuple[Any, Any]] = {}

    def dense(self, out: Array, w: Array, *arguments: Any, stream: Stream = 0) -> None:
        """`arguments`: slots, g, scalars."""
        kernel = self._made(arguments, 1)[0]
        launch_each(kernel, w.size, stream, out, w, *(a for a in arguments if a is not None))

    def rows(self, w: Array, *arguments: Any, stream: Stream = 0) -> None:
        """`arguments`: slots, rows, g, scalars."""
        kernel, g = self._made(arguments, 2)[1], arguments[self._n_slots + 1]
        launch_rows(kernel, g.size, stream, w, *(a for a in arguments if a is not None))

    def _made(self, arguments: tuple[Any, ...], gradients: int) -> tuple[Any, Any]:
        """The kernels for the slots and scalars that are there. `gradients`: how many arguments lie between these."""
        values = arguments[: self._n_slots] + arguments[self._n_slots + gradients :]
        absent = tuple(name for name, value in zip(self._names, values, strict=True) if value is None)
        if absent not in self._kernels:
            text, known = PassText(self._rule, absent), names(rule=self._gpu_rule)
            self._kernels[absent] = (
                gpu_kernel(defined(dense_text(text), "dense", self._rule, known)),
                gpu_kernel(defined(rows_text(text), "rows", self._rule, known)),
            )
        return self._kernels[absent]


@cache
def passes(rule: Rule) -> CudaPasses:
    """The passes of a rule on a GPU."""
    return CudaPasses(rule)


def dense_text(of: PassText) -> str:
    """The text of the kernel of `CudaPasses.dense`."""
    return over_elements(
        f"dense({of.arguments('out', 'w', gradient='g')})", "w.size",
        ["w{k}, g{k} = w[{i}], g[{i}]", of.each("{0}{{k}} = {0}[{{i}}]")],
        [of.update("w{k}", "{}{{k}}", "g{k}"), "out[{i}] = new_w", of.each("{0}[{{i}}] = new_{0}")],
    )  # fmt: skip


def rows_text(of: PassText) -> str:
    """The text of the kernel of `CudaPasses.rows`."""
    return over_rows(
        f"rows({of.arguments('w', gradient='rows, g')})", "rows.size", "w.shape[1]",
        ["r{k} = size(rows[{i}])", "w{k}, g{k} = w[r{k}, {j}], g[{i}, {j}]", of.each("{0}{{k}} = {0}[r{{k}}, {{j}}]")],
        [of.update("w{k}", "{}{{k}}", "g{k}"), "w[r{k}, {j}] = new_w", of.each("{0}[r{{k}}, {{j}}] = new_{0}")],
    )  # fmt: skip


def all_finite(a: Array, stream: Stream = 0) -> bool:
    """Whether no element is inf or nan. True for no elements."""
    if a.size == 0:
        return True
    found = shared_flag()
    found[0] = 0
    launch_each(_not_finite, a.size, stream, found, a)
    wait(stream)
    return not found[0]


_not_finite = kernel(
    over_elements("_not_finite(found, a)", "a.size", ["a{k} = a[{i}]"], ["if not isfinite(a{k}): found[0] = 1"], 8),
    "_not_finite", __name__, isfinite=math.isfinite,
)  # fmt: skip


def follow(average: Array, w: Array, share: Scalar, stream: Stream = 0) -> None:
    """average -= (average - w) * share."""
    launch_each(_follow, w.size, stream, average, w, share)


_follow = kernel(
    over_elements(
        "_follow(average, w, share)", "w.size", ["w{k}, average{k} = w[{i}], average[{i}]"],
        ["average[{i}] = average{k} - mul(average{k} - w{k}, share)"],
    ),
    "_follow", __name__, mul=mul,
)  # fmt: skip


def follow_rows(average: Array, w: Array, rows: Rows, share: Scalar, stream: Stream = 0) -> None:
    """`follow` on the named rows."""
    launch_rows(_follow_rows, rows.size * w.shape[1], stream, average, w, rows, share)


_follow_rows = kernel(
    over_rows(
        "_follow_rows(average, w, rows, share)", "rows.size", "w.shape[1]",
        ["r{k} = size(rows[{i}])", "w{k}, average{k} = w[r{k}, {j}], average[r{k}, {j}]"],
        ["average[r{k}, {j}] = average{k} - mul(average{k} - w{k}, share)"],
    ),
    "_follow_rows", __name__, mul=mul,
)  # fmt: skip


def gather(table: Array, rows: Rows, out: Array, stream: Stream = 0) -> None:
    """out[i] = table[rows[i]]; `out` has shape (len(rows), dim). The row numbers were checked before."""
    launch_rows(_gather, out.size, stream, table, rows, out)


_gather = kernel(
    over_rows(
        "_gather(table, rows, out)", "rows.size", "table.shape[1]",
        ["x{k} = table[size(rows[{i}]), {j}]"], ["out[{i}, {j}] = x{k}"],
    ),
    "_gather", __name__,
)  # fmt: skip
