"""Compiles every CUDA kernel to PTX with the real compiler, on a machine without a GPU. Run as a program.

numba's simulator runs a kernel as Python, so it accepts wrong types, calls that a GPU does not have, and float64
arithmetic in a float32 kernel. Here each launch compiles the kernel for the types of its arguments instead of
running it; arrays of the GPU are arrays of the host. Takes a compute capability as two numbers, and prints one JSON
object a line for each compiled kernel. With `--launch` after them it compiles nothing, and needs no compiler.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numba import cuda, typeof, types
from numba.cuda import dispatcher

CAPABILITY = (int(sys.argv[1]), int(sys.argv[2]))
COMPILES = sys.argv[3:] != ["--launch"]

OPERATION = re.compile(r"^\s+(?:@!?%p\d+ )?([a-z0-9]+(?:\.[a-z0-9_]+)+)", re.MULTILINE)
"""An instruction of PTX with its types, as fma.rn.f32."""


class HostArray(np.ndarray):
    """An array on the host with the methods that dps uses of an array on a GPU."""

    def copy_to_device(self, source: Any, stream: Any = 0) -> None:
        self[...] = source

    def copy_to_host(self, out: Any, stream: Any = 0) -> None:
        out[...] = self


def host_array(shape: Any, dtype: Any) -> HostArray:
    return np.zeros(shape, dtype).view(HostArray)


def row_numbers(*rows: int) -> HostArray:
    return np.array(rows).view(HostArray)


class Kernel:
    """What `cuda.jit` returns here: `kernel[configured](*arguments)` compiles, and runs nothing."""

    made: ClassVar[list[Kernel]] = []

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function
        self.name = f"{function.__module__}.{function.__qualname__}"
        self.signatures: set[Any] = set()
        Kernel.made.append(self)

    def __getitem__(self, configured: Any) -> Callable[..., None]:
        return self.compile

    def compile(self, *arguments: Any) -> None:
        signature = tuple(
            types.Array(typeof(a).dtype, a.ndim, "C") if isinstance(a, np.ndarray) else typeof(a) for a in arguments
        )
        if signature in self.signatures:
            return
        self.signatures.add(signature)
        report = {"kernel": self.name, "signature": str(signature), "error": "", "operations": []}
        try:
            if COMPILES:
                ptx, _ = cuda.compile_ptx(self.function, types.void(*signature), cc=CAPABILITY)
                report["operations"] = sorted(set(OPERATION.findall(ptx)))
        except Exception as error:  # numba's errors have several classes; each is reported with its kernel
            report["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(report), flush=True)


def jit(function: Callable[..., Any], device: bool = False) -> Any:
    return real_jit(function, device=True) if device else Kernel(function)


class Device:
    """What numba compiles functions for that kernels call; it asks the driver, which is not there."""

    compute_capability = CAPABILITY


real_jit = cuda.jit
dispatcher.get_current_device = Device
cuda.jit, cuda.device_array, cuda.pinned_array = jit, host_array, host_array
cuda.stream, cuda.synchronize = int, lambda: None

from dps.kernels import cuda as kernels  # noqa: E402  after the replacements, which they take up
from dps.kernels import layers_cpu, layers_cuda, layers_product  # noqa: E402
from dps.training.optimizers import KNOWN  # noqa: E402
from tests.kernels import test_twins as twins  # noqa: E402

kernels.shared_flag, kernels.wait = lambda: host_array(1, np.int32), lambda stream: None


def launch_updates(dtype: Any) -> None:
    """All optimizers and averages, of whole arrays and of rows; `twins` has the cases that the tests run in the
    simulator."""
    cuda_twin = twins.TWINS["cuda"]
    rows, table, g = row_numbers(3, 0, 9), host_array((10, 4), dtype), host_array((3, 4), dtype)
    for rule, signs, scalars in twins.CASES.values():
        twins.updated(cuda_twin, rule, signs, scalars, 33, dtype, True)
        slots = [None if sign == "." else host_array((10, 4), dtype) for sign in signs]
        kernels.passes(KNOWN[rule.__name__].rule).rows(table, *slots, rows, g, *twins.cast(scalars, dtype))
    accumulator, scalars = host_array(10, dtype), [dtype(0.5), dtype(1e-10), dtype(4)]
    kernels.adagrad_rowwise(table, table, accumulator, table, *scalars)
    kernels.adagrad_rowwise_rows(table, accumulator, rows, g, *scalars)
    kernels.follow(host_array(33, dtype), host_array(33, dtype), dtype(0.1))
    kernels.follow_rows(table, table, rows, dtype(0.1))


def launch_gradients(dtype: Any) -> None:
    """The look for NaN, and reading rows."""
    kernels.all_finite(host_array(33, dtype))
    table, rows = host_array((20, 3), dtype), row_numbers(19, 0, 7, 7, 3)
    kernels.gather(table, rows, host_array((5, 3), dtype))


def launch_layers(dtype: Any) -> None:
    """Products with all tiles, activations, losses, embeddings, sums and columns."""
    x, w, b, out = (host_array(shape, dtype) for shape in ((8, 6), (6, 4), (4,), (8, 4)))
    for activation in layers_cpu.ACTIVATIONS:
        layers_cuda.dense_forward(out, x, w, b, activation)
        layers_cuda.dense_backward(host_array((8, 6), dtype), w, b, out, out, x, w, activation)
    for layout in ("nn", "nt", "tn"):
        for tile in (layers_product.LARGE, layers_product.SMALL)[dtype != np.float32 :]:  # the large one is for float32
            for bias in (None, b):
                layers_product.tiled(layout, tile, np.dtype(dtype).name)(out, x, w, bias, 0, 0)
    for classes in (10, 100):
        scores = host_array((8, classes), dtype)
        layers_cuda.softmax_cross_entropy(host_array(8, dtype), scores, scores, row_numbers(*range(8)))
    layers_cuda.mean(host_array(1, dtype), b)
    rows, starts = row_numbers(1, 3), row_numbers(0, 1, 2)
    layers_cuda.embedding_gather(host_array((2, 4), dtype), w, rows)
    layers_cuda.embedding_scatter_add(w, rows, rows, starts, host_array((2, 4), dtype))
    layers_cuda.zero(out)
    for combine in (layers_cuda.add, layers_cuda.multiply):
        combine(out, out, out)
    layers_cuda.put_columns(out, host_array((8, 2), dtype), 1)
    layers_cuda.take_columns(host_array((8, 2), dtype), out, 1)


def main() -> None:
    for dtype in (np.float32, np.float64):
        launch_updates(dtype)
        launch_gradients(dtype)
        launch_layers(dtype)
    print(json.dumps({"never launched": sorted({k.name for k in Kernel.made if not k.signatures})}))


if __name__ == "__main__":
    sys.exit(main())
