"""The look for NaN and infinity in gradients: by one thread, or by two that meet.

Gradients are 1-D and C-contiguous, float32, float64 or halves as `dps.kernels.widening` has them. A look reads and does
no more, so a second thread cannot harm it: it begins at the other end, and what it has not finished when the first one
comes there the first one looks at, too. Where no core is free the second thread does not get far, and nobody waits.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numba import types

from dps.kernels.elements import number
from dps.kernels.jit import compiled
from dps.kernels.vectors import AHEAD, any_nan, ask, intrinsic, lanes_of, load, zeros

Array: TypeAlias = npt.NDArray[Any]

BLOCK = 1 << 16
"""Elements that are looked at between two looks at where the other thread is: some 20 µs."""
FRONT, BACK, BAD = 0, 8, 16
"""Where they say so: the first block that is not looked at from the front, the last one that is from the back, and
whether that thread found something. One cache line each."""


@compiled
def all_finite(a: Array) -> bool:
    """Whether no element is inf or nan. True for no elements.

    x - x is 0 for a finite x and nan for the others, and a sum with nan in it is nan. Four sums at once, for each waits
    for its own last one, and each over a quarter of the array: the processor fetches ahead within a page, so four pages
    at a time are a sixth faster than one. Stopping at the first one found would cost more than it saves.
    """
    lanes = lanes_of(a)
    each = a.size // (4 * lanes) * lanes
    ahead = AHEAD * lanes
    s0, s1, s2, s3 = zeros(a), zeros(a), zeros(a), zeros(a)
    for i in range(0, each, lanes):
        for k in range(0, 4 * each, each):
            ask(a, i + k + ahead)
        x0, x1, x2, x3 = load(a, i), load(a, i + each), load(a, i + 2 * each), load(a, i + 3 * each)
        s0, s1, s2, s3 = s0 + (x0 - x0), s1 + (x1 - x1), s2 + (x2 - x2), s3 + (x3 - x3)
    found = False
    for i in range(4 * each, a.size):
        x = number(a, i)
        found |= x - x != 0
    return not (found or any_nan((s0 + s1) + (s2 + s3)))


def meeting(a: Array) -> Array:
    """What two threads that look at `a` have in common."""
    made = np.zeros(24, np.int64)
    made[BACK] = -(-a.size // BLOCK)
    return made


@compiled
def finite_from_front(a: Array, shared: Array) -> bool:
    """Whether all elements are finite: looked at here, or by `finite_from_back` in another thread. Returns when all
    have been, whatever the other thread does."""
    good, block = True, 0
    while block < _seen(shared, BACK):
        good &= all_finite(a[block * BLOCK : (block + 1) * BLOCK])
        block += 1
        _tell(shared, FRONT, block)
    return good and _seen(shared, BAD) == 0


@compiled
def finite_from_back(a: Array, shared: Array) -> None:
    """The other end of `finite_from_front`."""
    block = _seen(shared, BACK) - 1
    while block >= _seen(shared, FRONT):
        if not all_finite(a[block * BLOCK : (block + 1) * BLOCK]):
            _tell(shared, BAD, 1)
        _tell(shared, BACK, block)
        block -= 1


@intrinsic
def _seen(typing: Any, array: Any, index: Any) -> Any:
    """array[index] as another thread has written it by now, and with it all that it had written before."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        memory = context.make_array(array)(context, builder, args[0])
        return builder.load_atomic(builder.gep(memory.data, [args[1]]), "acquire", 8)

    return types.int64(array, types.intp), generate


@intrinsic
def _tell(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index] = value, for other threads to see once they can see all that was written before."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        memory = context.make_array(array)(context, builder, args[0])
        builder.store_atomic(args[2], builder.gep(memory.data, [args[1]]), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), generate
