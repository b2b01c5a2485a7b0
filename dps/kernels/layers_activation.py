"""Activations for CUDA kernels: the function, and its derivative computed from the function's value."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from dps.kernels.device import gpu_function
from dps.kernels.layers_cpu import ACTIVATIONS

CODES = {name: code for code, name in enumerate(ACTIVATIONS)}
"""The number of each activation for kernels. It is the same for a whole launch, so the branch costs nothing."""
_RELU, _TANH, _SIGMOID = CODES["relu"], CODES["tanh"], CODES["sigmoid"]


@cache
def activations(dtype: str) -> tuple[Any, Any]:
    """`activated(z, code)` and `derived(dout, out, code)` = dout * activation'(z), where out = activation(z).

    NaN gives NaN. The constants exist because a Python number would turn float32 work into float64.
    """
    zero, one = np.dtype(dtype).type(0), np.dtype(dtype).type(1)

    @gpu_function
    def activated(z: Any, code: int) -> Any:
        if code == _RELU:
            return zero if z < zero else z
        if code == _TANH:
            return math.tanh(z)
        if code == _SIGMOID:
            shrunk = math.exp(-abs(z))  # at most 1, so nothing overflows
            return shrunk / (one + shrunk) if z < zero else one / (one + shrunk)
        return z

    @gpu_function
    def derived(dout: Any, out: Any, code: int) -> Any:
        if code == _RELU:
            return dout if out > zero else zero
        if code == _TANH:
            return dout * (one - out * out)
        if code == _SIGMOID:
            return dout * (out * (one - out))
        return dout

    return activated, derived
