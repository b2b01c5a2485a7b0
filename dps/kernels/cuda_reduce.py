"""The CUDA kernel that looks for NaN and infinity. It blocks."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from dps.kernels.device import cuda, gpu_kernel, launch_each, to_device, to_host

Array: TypeAlias = Any
Stream: TypeAlias = Any


def all_finite(a: Array, stream: Stream = 0) -> bool:
    """Whether no element is inf or nan. True for no elements."""
    if a.size == 0:
        return True
    found = to_device(np.zeros(1, np.int32), stream)
    launch_each(_not_finite, a.size, stream, found, a)
    return not to_host(found, stream=stream)[0]


@gpu_kernel
def _not_finite(found: Array, a: Array) -> None:
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        if not math.isfinite(a[i]):
            found[0] = 1  # all threads write the same value
