"""From an initializer's definition to the kernel call that makes a variable's first values.

Nothing here holds state, and any thread may call. A value depends on the seed, the variable's name and the number of
its element in the whole variable alone, so any cut into parts and ranges gives the same bits.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dps.kernels import philox, philox_rows
from dps.training.initializers import Constant, Initializer, Normal, TruncatedNormal, Uniform, Zeros

Array: TypeAlias = npt.NDArray[Any]

SCRATCH = 1 << 16
"""Elements of float16 and bfloat16 that are made as float32 at a time."""


def key_of(seed: int, name: str) -> tuple[np.uint64, np.uint64]:
    """The key of a variable's numbers: two words of the hash of seed and name."""
    digest = hashlib.sha256(b"dps.init\0%d\0" % seed + name.encode("utf-8", "surrogatepass")).digest()
    return np.uint64(int.from_bytes(digest[:4], "little")), np.uint64(int.from_bytes(digest[4:8], "little"))


class FirstValues:
    """The first values of one variable, as an initializer other than `FromFile` makes them."""

    def __init__(self, init: Initializer, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        """`name`, `shape`: of the whole variable. Raises TypeError for an initializer that computes nothing."""
        drawn, self._dtype = init.drawn(shape), np.dtype(dtype)
        self._number: Any = np.float64 if self._dtype == np.float64 else np.float32
        self._value: Any = None
        self._numbers: tuple[Any, ...] = ()
        if isinstance(drawn, Zeros | Constant):
            self._value = np.asarray(0 if isinstance(drawn, Zeros) else drawn.value).astype(self._dtype)
        elif isinstance(drawn, Uniform):
            self._numbers = self._bound(philox.UNIFORM, name, drawn.seed, drawn.low, drawn.high - drawn.low)
            below = np.nextafter(self._number(drawn.high), self._number(-math.inf))
            self._numbers = (*self._numbers[:-1], max(self._numbers[3], below))
        elif isinstance(drawn, Normal):
            self._numbers = self._bound(philox.NORMAL, name, drawn.seed, drawn.mean, drawn.stddev)
        elif isinstance(drawn, TruncatedNormal):
            self._numbers = self._bound(philox.TRUNCATED, name, drawn.seed, drawn.mean, drawn.stddev)
        else:
            raise TypeError(f"{name}: {init!r} computes no values")

    def _bound(self, kind: int, name: str, seed: int, base: float, factor: float) -> tuple[Any, ...]:
        number = self._number
        return *key_of(seed, name), kind, number(base), number(factor), number(math.inf)

    @property
    def are_zeros(self) -> bool:
        """Whether all values are 0, as new memory is."""
        return self._value is not None and not self._value and not np.signbit(self._value.astype(np.float64))

    def fill(self, out: Array, first: int) -> None:
        """Fill `out`, (n,) of the variable's dtype and contiguous, with the elements from number `first` on."""
        if self._value is not None:
            out[...] = self._value
        elif out.dtype == np.float64:
            philox.fill64(out, first, *self._numbers)
        elif out.dtype == np.float32:
            philox.fill32(out, first, *self._numbers)
        else:
            scratch = np.empty(min(out.size, SCRATCH), np.float32)
            for start in range(0, out.size, SCRATCH):
                some = out[start : start + SCRATCH]
                philox.fill32(scratch[: some.size], first + start, *self._numbers)
                some[...] = scratch[: some.size].astype(out.dtype)

    def fill_rows(self, out: Array, rows: Array, keys: Array) -> None:
        """Fill row `rows[i]` of `out`, (n, dim) of the variable's dtype and contiguous, with the first values of the
        key `keys[i]`, int64 (m,). They depend on the seed, the variable's name and the key alone."""
        if self._value is not None:
            out[rows] = self._value
        elif out.dtype == np.float64:
            philox_rows.fill_rows64(out, rows, keys, *self._numbers)
        elif out.dtype == np.float32:
            philox_rows.fill_rows32(out, rows, keys, *self._numbers)
        else:
            step = max(1, SCRATCH // out.shape[1])
            for start in range(0, keys.size, step):
                some = slice(start, start + step)
                scratch = np.empty((keys[some].size, out.shape[1]), np.float32)
                philox_rows.fill_rows32(scratch, np.arange(len(scratch)), keys[some], *self._numbers)
                out[rows[some]] = scratch.astype(out.dtype)


def made(init: Initializer, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """All first values of a variable in this process, as a new array. Raises TypeError for `FromFile`."""
    values = FirstValues(init, name, shape, dtype)
    if values.are_zeros:
        return np.zeros(shape, dtype)
    out = np.empty(math.prod(shape), dtype)
    values.fill(out, 0)
    return out.reshape(shape)
