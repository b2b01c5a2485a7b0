"""Element-wise CUDA kernels for gradients and running sums, as defined in `dps.kernels.cpu`."""

from __future__ import annotations

from typing import Any, TypeAlias

from dps.kernels.cuda_rules import mul
from dps.kernels.device import cuda, gpu_kernel, launch_each

Array: TypeAlias = Any
Scalar: TypeAlias = Any
Stream: TypeAlias = Any


def add(out: Array, a: Array, b: Array, stream: Stream = 0) -> None:
    """out = a + b."""
    launch_each(_add, a.size, stream, out, a, b)


@gpu_kernel
def _add(out: Array, a: Array, b: Array) -> None:
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        out[i] = a[i] + b[i]


def scale(out: Array, a: Array, s: Scalar, stream: Stream = 0) -> None:
    """out = a * s."""
    launch_each(_scale, a.size, stream, out, a, s)


@gpu_kernel
def _scale(out: Array, a: Array, s: Scalar) -> None:
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        out[i] = a[i] * s


def divide(out: Array, a: Array, n: Scalar, stream: Stream = 0) -> None:
    """out = a / n, correctly rounded."""
    launch_each(_divide, a.size, stream, out, a, n)


@gpu_kernel
def _divide(out: Array, a: Array, n: Scalar) -> None:
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        out[i] = a[i] / n


def add_divide(out: Array, a: Array, b: Array, n: Scalar, stream: Stream = 0) -> None:
    """out = (a + b) / n."""
    launch_each(_add_divide, a.size, stream, out, a, b, n)


@gpu_kernel
def _add_divide(out: Array, a: Array, b: Array, n: Scalar) -> None:
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        out[i] = (a[i] + b[i]) / n


def accumulate(total: Array, a: Array, s: Scalar, stream: Stream = 0) -> None:
    """total += a * s."""
    launch_each(_accumulate, total.size, stream, total, a, s)


@gpu_kernel
def _accumulate(total: Array, a: Array, s: Scalar) -> None:
    for i in range(cuda.grid(1), total.size, cuda.gridsize(1)):
        total[i] = total[i] + mul(a[i], s)


def compensate(out: Array, g: Array, w: Array, backup: Array, lam: Scalar, stream: Stream = 0) -> None:
    """out = g + lam * g * g * (w - backup)."""
    launch_each(_compensate, g.size, stream, out, g, w, backup, lam)


@gpu_kernel
def _compensate(out: Array, g: Array, w: Array, backup: Array, lam: Scalar) -> None:
    for i in range(cuda.grid(1), g.size, cuda.gridsize(1)):
        out[i] = g[i] + mul(mul(mul(lam, g[i]), g[i]), w[i] - backup[i])


def clip_by_value(out: Array, a: Array, low: Scalar, high: Scalar, stream: Stream = 0) -> None:
    """out = a, but `low` where it is below and `high` where it is above. NaN stays NaN."""
    launch_each(_clip_by_value, a.size, stream, out, a, low, high)


@gpu_kernel
def _clip_by_value(out: Array, a: Array, low: Scalar, high: Scalar) -> None:
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        x = a[i]
        x = low if x < low else x
        out[i] = high if x > high else x


def cast(out: Array, a: Array, stream: Stream = 0) -> None:
    """out = a in the dtype of `out`, float32 or float64."""
    launch_each(_cast, a.size, stream, out, a)


@gpu_kernel
def _cast(out: Array, a: Array) -> None:
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        out[i] = a[i]
