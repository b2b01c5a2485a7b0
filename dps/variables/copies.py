"""One device's copy of a variable: its values, the slots of its optimizer, and the updates of both."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from dps.errors import ConfigError
from dps.kernels.halves import bits_in, is_half, widened
from dps.kernels.optimizers import BoundOptimizer, initial_slots
from dps.kernels.rows import sum_duplicate_rows
from dps.training.optimizers import Optimizer
from dps.transport.wire import Array
from dps.variables.tree import Rows

Gradient = Array | Rows
"""A gradient of one variable: dense, in its shape and dtype, or of distinct rows in rising order."""


class Copy(Protocol):
    """The copy on one device. Values are never changed where somebody may read them, but for rows of a table."""

    def host(self) -> Array:
        """The values on the host, read-only."""
        ...

    def here(self) -> Any:
        """The values in the device's own memory."""
        ...

    def assign(self, values: Array) -> None:
        """Replace the values."""
        ...

    def update(self, gradient: Gradient, t: int, step: int) -> None:
        """One update by the optimizer; `t` counts this variable's, from 1."""
        ...

    def slots(self) -> dict[str, Array]:
        """The optimizer's slots, on the host."""
        ...

    def load(self, slot: str, values: Array) -> None:
        """Replace a slot."""
        ...


class HostCopy:
    """In this process's memory. A dense update goes to new memory, so that what was read before keeps its values."""

    def __init__(self, value: Array, optimizer: Optimizer | None) -> None:
        self._values = value.copy()
        self._half = is_half(value.dtype)
        self._by_name: dict[str, Array] = {}
        if optimizer is None:
            return
        precision = np.dtype(np.float32) if self._half else value.dtype
        self._bound = BoundOptimizer(optimizer, precision)
        self._rows, self._dim = rows_of(value)
        self._by_name = initial_slots(optimizer, value.size, precision, self._rows)
        self._slots = self._bound.ordered(self._by_name)

    def host(self) -> Array:
        """As Copy.host."""
        view = self._values.view()
        view.flags.writeable = False
        return view

    here = host

    def assign(self, values: Array) -> None:
        """As Copy.assign."""
        self._values = values.copy()

    def update(self, gradient: Gradient, t: int, step: int) -> None:
        """As Copy.update."""
        if isinstance(gradient, Rows):
            table = bits_in(self._values.reshape(self._rows, self._dim))
            slots = [s if s is None or self._bound.by_rows else s.reshape(table.shape) for s in self._slots]
            values = bits_in(gradient.values.reshape(-1, self._dim))
            self._bound.apply_rows(table, slots, gradient.indices, values, t, step, 1.0)
            return
        out = np.empty_like(self._values)
        shape = (self._rows, self._dim) if self._bound.by_rows else (-1,)
        new, w, g = (bits_in(array.reshape(shape)) for array in (out, self._values, gradient))
        self._bound.apply(new, w, self._slots, (g,), 1 if self._half else 0, t, step, 1.0)
        self._values = out

    def slots(self) -> dict[str, Array]:
        """As Copy.slots."""
        return dict(self._by_name)

    def load(self, slot: str, values: Array) -> None:
        """As Copy.load."""
        self._by_name[slot][...] = values.reshape(-1)


class GpuCopy:
    """In the memory of a GPU, updated in place there. What is read on the host is a copy of one version."""

    def __init__(self, value: Array, optimizer: Optimizer | None, index: int) -> None:
        from dps.kernels import cuda, device

        if is_half(value.dtype) and optimizer is not None:
            raise ConfigError(
                f"got a trained variable of {value.dtype.name} for /gpu:{index}, wanted float32 or float64"
            )
        self._device, self._gpu = device, device.device(index)
        self._host: Array | None = None
        self._by_name: dict[str, Any] = {}
        self._shape = value.shape
        with self._gpu:
            self._values = device.to_device(value.reshape(-1))
            if optimizer is None:
                return
            self._bound = BoundOptimizer(optimizer, value.dtype, cuda)
            self._rows, self._dim = rows_of(value)
            slots = initial_slots(optimizer, value.size, value.dtype, self._rows)
            self._by_name = {name: device.to_device(slot) for name, slot in slots.items()}
            self._slots = self._bound.ordered(self._by_name)

    def host(self) -> Array:
        """As Copy.host."""
        if self._host is None:
            with self._gpu:
                self._host = np.asarray(self._device.to_host(self._values)).reshape(self._shape)
            self._host.flags.writeable = False
        return self._host

    def here(self) -> Any:
        """As Copy.here. The array changes with the next update."""
        return self._values.reshape(*self._shape) if self._shape else self._values

    def assign(self, values: Array) -> None:
        """As Copy.assign."""
        with self._gpu:
            self._device.to_device(np.ascontiguousarray(values).reshape(-1), out=self._values)
        self._host = None

    def update(self, gradient: Gradient, t: int, step: int) -> None:
        """As Copy.update."""
        bound, device = self._bound, self._device
        with self._gpu:
            if isinstance(gradient, Rows):
                table = self._values.reshape(self._rows, self._dim)
                slots = [s if s is None or bound.by_rows else s.reshape(*table.shape) for s in self._slots]
                rows, g = device.to_device(gradient.indices), device.to_device(gradient.values.reshape(-1, self._dim))
                bound.apply_rows(table, slots, rows, g, t, step, 1.0)
            else:
                shape = (self._rows, self._dim) if bound.by_rows else (self._values.size,)
                w, g = self._values.reshape(*shape), device.to_device(gradient.reshape(shape))
                bound.apply(w, w, self._slots, (g,), 0, t, step, 1.0)
            device.wait()
        self._host = None

    def slots(self) -> dict[str, Array]:
        """As Copy.slots."""
        with self._gpu:
            return {name: np.asarray(self._device.to_host(slot)) for name, slot in self._by_name.items()}

    def load(self, slot: str, values: Array) -> None:
        """As Copy.load."""
        with self._gpu:
            self._device.to_device(np.ascontiguousarray(values).reshape(-1), out=self._by_name[slot])


def ready(gradient: Gradient) -> Gradient:
    """A gradient as `update` takes it: contiguous, and each row once. Rows of halves become float32."""
    if not isinstance(gradient, Rows):
        return np.require(gradient, None, ["C", "A"])
    values = np.require(widened(gradient.values), None, ["C", "A", "W"])
    rows, sums, _ = sum_duplicate_rows(gradient.indices, values.reshape(len(gradient.indices), -1))
    return Rows(rows, sums)


def rows_of(value: Array) -> tuple[int, int]:
    """How many rows a variable has, and how many elements a row; a scalar is one row."""
    rows = value.shape[0] if value.ndim else 1
    return rows, value.size // rows if rows else 0
