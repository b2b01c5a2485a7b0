"""The device on which a network computes: its kernels, its memory, and copies to and from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np

from dps.cluster.device import Device, compute_device
from dps.errors import ConfigError

KEPT_STEPS = 64
"""Arrays of a shape that no step has used for this many steps are freed: the last batch of an epoch, a test set."""


class Pool:
    """Arrays by shape and dtype. `make(shape, dtype)` allocates missing ones; `made` counts them."""

    def __init__(self, make: Callable[[tuple[int, ...], Any], Any]) -> None:
        self.made = 0
        self._make = make
        self._free: dict[tuple[tuple[int, ...], str], list[Any]] = {}
        self._taken: list[tuple[tuple[tuple[int, ...], str], Any]] = []
        self._used: dict[tuple[tuple[int, ...], str], int] = {}
        self._step = 0

    def take_array(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array with undefined contents, which the caller owns until `free_arrays`."""
        key = shape, np.dtype(dtype).str
        free = self._free.setdefault(key, [])
        if free:
            array = free.pop()
        else:
            array = self._make(shape, np.dtype(dtype))
            self.made += 1
        self._taken.append((key, array))
        self._used[key] = self._step
        return array

    def free_arrays(self) -> None:
        """End a step: all arrays are free again."""
        for key, array in self._taken:
            self._free[key].append(array)
        self._taken.clear()
        self._step += 1
        for key in [key for key, used in self._used.items() if used + KEPT_STEPS < self._step]:
            del self._free[key], self._used[key]


class ComputePlace(Protocol):
    """Belongs to one network and one thread. `kernels` is `dps.kernels.layers_cpu` or `dps.kernels.layers_cuda`."""

    kernels: Any
    stream: Any

    def step_scope(self) -> AbstractContextManager[None]:
        """A scope for one step: arrays from the other methods are valid in that step only."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array to compute into; contents undefined."""
        ...

    def load_array(self, array: Any, rows: int = 0) -> Any:
        """A copy of a C-contiguous host array for kernels to read. May be padded with undefined rows up to `rows`."""
        ...

    def result(self, out: Any) -> Any:
        """An array to compute into; `wait_for_results` copies it to the C-contiguous host array `out`."""
        ...

    def fetch_array(self, array: Any) -> Any:
        """The contents of an array of this step, as a host array that belongs to the caller. Waits for the kernels."""
        ...

    def wait_for_results(self) -> None:
        """Waits for all kernels and for the results."""
        ...


class CpuPlace:
    """The host: arrays are used without a copy, and gradients are computed directly into their targets."""

    def __init__(self) -> None:
        from dps.kernels import layers_cpu

        self.kernels: Any = layers_cpu
        self.stream: Any = None
        self.pool = Pool(np.empty)

    @contextmanager
    def step_scope(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.pool.free_arrays()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.pool.take_array(shape, dtype)

    def load_array(self, array: Any, rows: int = 0) -> Any:
        return array

    def result(self, out: Any) -> Any:
        return out

    def fetch_array(self, array: Any) -> Any:
        return array.copy()

    def wait_for_results(self) -> None:
        pass


class GpuPlace:
    """One GPU, with a stream of its own. Arrays are copied through pinned memory.
    Only `wait_for_results` and `fetch_array` block.

    Raises ConfigError where there is no such GPU.
    """

    def __init__(self, index: int) -> None:
        from dps.kernels import device

        self._device = device
        self._index = index
        self._results: list[tuple[Any, Any]] = []
        with device.device(index):
            from dps.kernels import layers_cuda

            self.kernels: Any = layers_cuda
            self.stream: Any = device.new_stream()
        self.pool, self.staging = Pool(device.empty), Pool(device.pinned)

    @contextmanager
    def step_scope(self) -> Iterator[None]:
        with self._device.device(self._index):
            try:
                yield
            except BaseException:
                self.stream.synchronize()  # copies may still use memory that is released now
                raise
            finally:
                self._results.clear()
                self.pool.free_arrays()
                self.staging.free_arrays()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.pool.take_array(shape, dtype)

    def load_array(self, array: Any, rows: int = 0) -> Any:
        shape = (max(rows, array.shape[0]), *array.shape[1:])
        staged, target = self.staging.take_array(shape, array.dtype), self.pool.take_array(shape, array.dtype)
        staged[: len(array)] = array
        self._device.to_device(staged, self.stream, target)
        return target

    def result(self, out: Any) -> Any:
        target = self.pool.take_array(out.shape, out.dtype)
        self._results.append((target, out))
        return target

    def fetch_array(self, array: Any) -> Any:
        staged = self.staging.take_array(array.shape, array.dtype)
        self._device.to_host(array, staged, self.stream)
        self.stream.synchronize()
        return np.array(staged)

    def wait_for_results(self) -> None:
        staged = [self.staging.take_array(out.shape, out.dtype) for _, out in self._results]
        for (source, _), target in zip(self._results, staged, strict=True):
            self._device.to_host(source, target, self.stream)
        self.stream.synchronize()
        for (_, out), source in zip(self._results, staged, strict=True):
            out[...] = source


def gpus() -> int:
    """How many GPUs this process may use. Imports numba, which takes about a second.

    Returns:
        The number; 0 if there is none.
    """
    from dps.kernels import device

    return device.gpus()


def place_for(device: str | Device | None) -> ComputePlace:
    """The place that a device string names. None means the device of the enclosing `dps.device` scopes, or the CPU.

    Job and task are ignored, because this process computes. Raises ConfigError if there is no such GPU, ValueError for
    a malformed string.
    """
    where = compute_device() if device is None else Device(device)
    if where.device_type in (None, "CPU"):
        return CpuPlace()
    if where.device_type != "GPU":
        raise ConfigError(f"device {str(where)!r}: layers compute on CPU and GPU, not on {where.device_type}")
    try:
        return GpuPlace(where.device_index or 0)
    except ConfigError as error:
        raise ConfigError(f"device {str(where)!r}: {error}; or device='/cpu:0'") from None
