"""A GPU of this machine: whether it is usable, arrays in its memory, copies to and from them, kernel launches.

Importing this imports numba.cuda; a ps or a worker without a GPU never does. With NUMBA_ENABLE_CUDASIM=1 in the
environment numba's simulator replaces the GPU: the same code, thousands of times slower, with bounds checks.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from dps.errors import ConfigError
from dps.training.optimizers import above, mul, power, sqrt

ADVICE = "try pip install 'dps[gpu]' and an NVIDIA driver, or NUMBA_ENABLE_CUDASIM=1 in the environment to simulate one"

try:
    import numba.cuda
except Exception as failure:  # its search for CUDA's libraries raises errors of several kinds
    raise ConfigError(f"numba.cuda cannot be imported: {' '.join(str(failure).split())}; {ADVICE}") from failure

cuda: Any = numba.cuda
"""numba.cuda, which has no type annotations. The simulator requires this name in files with kernels."""
HAND_OVER_S = 1e-5
"""How long a thread of the simulator keeps the GIL while others wait; with Python's 5 ms a barrier takes 10 ms."""
THREADS = 256
MOST_BLOCKS = 32768
"""Enough to fill the largest GPU many times. For larger arrays each thread handles several elements."""
MOST_BLOCKS_OF_ROWS = 4096
"""Fewer, because a thread that handles elements of rows begins with two divisions."""
SIMULATED_THREADS = 4
"""Few, because a thread of the simulator is a Python thread, and each launch makes new ones."""

_one_launch = threading.Lock()
_flags: dict[tuple[int, int], Any] = {}
"""By thread and GPU. They are kept: a thread that no GPU belongs to must not free such memory."""

cuda.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # small arrays have few blocks, and need no more


def simulated() -> bool:
    """Whether the GPU is numba's simulator."""
    return bool(cuda.config.ENABLE_CUDASIM)


def is_available() -> str:
    """ "" if this process can use a GPU, else the reason in one line. Does not raise."""
    if simulated():
        return ""
    try:
        if cuda.is_available():
            return "" if len(cuda.gpus) else "the driver shows no GPU"
        error = cuda.cuda_error()
    except Exception as failure:  # numba raises errors of several kinds while it looks for CUDA's libraries
        error = failure
    said = " ".join(str(error).split()) if error else "libNVVM, which compiles kernels, was not found"
    return f"CUDA cannot be used: {said.partition('. ')[0].rstrip(' :.')}"


def gpus() -> int:
    """How many GPUs this process may use; 0 if there is none."""
    return 0 if is_available() else len(cuda.gpus)


def device(index: int) -> AbstractContextManager[Any]:
    """A scope in which this thread uses GPU `index` for arrays and kernels.

    Raises ConfigError, which says what to try, if there is no such GPU.
    """
    problem = is_available()
    if problem:
        raise ConfigError(f"got GPU:{index}, but {problem}; {ADVICE}")
    if not 0 <= index < len(cuda.gpus):
        raise ConfigError(f"got GPU:{index}, wanted 0 to {len(cuda.gpus) - 1}, which is what there is; try GPU:0")
    scope: AbstractContextManager[Any] = cuda.gpus[index]
    return scope


def describe(index: int) -> str:
    """Name, memory and driver of a GPU, in one line. Makes a CUDA context on it; ConfigError as `device`."""
    with device(index):
        if simulated():
            return "numba's simulator (NUMBA_ENABLE_CUDASIM is set)"
        name = cuda.gpus[index].name
        free, total = cuda.current_context().get_memory_info()
        major, minor = cuda.cudadrv.driver.get_version()
    name = name.decode() if isinstance(name, bytes) else name
    return f"{name}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free, driver of CUDA {major}.{minor}"


# ---- memory; all in the scope of a `device`, or on GPU 0 ----


def empty(shape: int | tuple[int, ...], dtype: Any) -> Any:
    """An array on the GPU with undefined contents. Raises ConfigError if the GPU has not enough memory."""
    try:
        return cuda.device_array(shape, dtype)
    except Exception as error:  # the class of CUDA's errors depends on the binding that numba uses
        if "OUT_OF_MEMORY" not in str(error):
            raise
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    free, total = cuda.current_context().get_memory_info()
    raise ConfigError(
        f"an array of {nbytes / 1e9:.2f} GB does not fit into GPU memory: {free / 1e9:.2f} of {total / 1e9:.2f} GB are "
        "free; spread the variables over more GPUs or ps, or leave some of them on the CPU"
    )


def pinned(shape: int | tuple[int, ...], dtype: Any) -> Any:
    """A host array in pinned memory, which a GPU can access directly, so copies are asynchronous; slow to make."""
    return cuda.pinned_array(shape, dtype)


def new_stream() -> Any:
    """A queue of copies and kernels on the active GPU; they run in order and asynchronously."""
    return cuda.stream()


def to_device(array: Any, stream: Any = 0, out: Any = None) -> Any:
    """Copy a host array to the GPU: to `out`, or to new memory. Asynchronous from pinned memory."""
    out = empty(array.shape, array.dtype) if out is None else out
    if array.size:
        out.copy_to_device(np.ascontiguousarray(array).reshape(array.shape), stream=stream)
    return out


def to_host(array: Any, out: Any = None, stream: Any = 0) -> Any:
    """Copy an array from the GPU to the host: to `out`, of its shape and dtype, or to new memory.

    Blocks until all earlier work on `stream` is done; it does not block into pinned memory on a separate stream.
    """
    out = np.empty(array.shape, array.dtype) if out is None else out
    if array.size:
        array.copy_to_host(out, stream=stream)
    return out


def wait(stream: Any = None) -> None:
    """Block until the active GPU has finished all its work, or that of one stream (0: the default one). Raises the
    error of a failed kernel."""
    if stream is None or simulated():
        cuda.synchronize()
    else:
        (stream or cuda.default_stream()).synchronize()


def shared_flag() -> Any:
    """A number in pinned memory of the host that kernels write to without a copy; one for each thread and GPU."""
    key = threading.get_ident(), 0 if simulated() else int(cuda.current_context().device.id)
    if key not in _flags:
        _flags[key] = cuda.mapped_array(1, np.int32)
    return _flags[key]


# ---- kernels ----


def gpu_kernel(function: Callable[..., None]) -> Any:
    """Make `function` a kernel for `launch`, compiled at its first launch with each combination of dtypes."""
    return cuda.jit(function)


def gpu_function(function: Callable[..., Any]) -> Any:
    """Make `function` callable from kernels and other such functions."""
    return cuda.jit(function, device=True)


def gpu_rule(rule: Callable[..., Any]) -> Any:
    """Make an optimizer's rule callable from kernels.

    In the simulator it is the rule itself, without numpy's warnings: `above` computes both of its values, and a GPU
    does not warn."""
    return np.errstate(divide="ignore", over="ignore", invalid="ignore")(rule) if simulated() else gpu_function(rule)


if not simulated():  # there the functions of `dps.training.optimizers` run as they are

    @overload(mul, target="cuda")
    def _mul(a, b):  # type: ignore[no-untyped-def]  # numba wants the signature of the lambdas, to the letter
        if (a, b) == (types.float32, types.float32):
            return lambda a, b: cuda.libdevice.fmul_rn(a, b)  # mul.rn in PTX: with explicit rounding it is never fused
        if (a, b) == (types.float64, types.float64):
            return lambda a, b: cuda.libdevice.dmul_rn(a, b)
        return None

    @overload(sqrt, target="cuda")
    def _sqrt(a):  # type: ignore[no-untyped-def]
        return lambda a: math.sqrt(a)

    @overload(power, target="cuda")
    def _power(a, exponent):  # type: ignore[no-untyped-def]
        return lambda a, exponent: a**exponent

    @overload(above, target="cuda")
    def _above(x, limit, then, other):  # type: ignore[no-untyped-def]
        return lambda x, limit, then, other: then if x > limit else other


def launch_each(kernel: Any, n: int, stream: Any, *arguments: Any, most_blocks: int = MOST_BLOCKS) -> None:
    """Start a kernel whose threads share `n` elements in a grid-stride loop; does nothing if `n` is 0."""
    threads, most = (SIMULATED_THREADS, 2) if simulated() else (THREADS, most_blocks)
    if n:
        launch(kernel, min(-(-n // threads), most), threads, stream, *arguments)


def launch_rows(kernel: Any, n: int, stream: Any, *arguments: Any) -> None:
    """`launch_each` for a kernel over the elements of rows."""
    launch_each(kernel, n, stream, *arguments, most_blocks=MOST_BLOCKS_OF_ROWS)


def launch(kernel: Any, blocks: Any, threads: int, stream: Any, *arguments: Any, nbytes: int = 0) -> None:
    """Start a kernel with `nbytes` of dynamic shared memory on `stream` (0 or None: the default one). Does not wait.

    The simulator runs it at once, one launch at a time in the process, because two launches would mix up their blocks.
    """
    configured = blocks, threads, 0 if stream is None else stream, nbytes
    if simulated():
        with _one_launch, _quick_hand_over():
            kernel[configured](*arguments)
    else:
        kernel[configured](*arguments)


@contextmanager
def _quick_hand_over() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(HAND_OVER_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
