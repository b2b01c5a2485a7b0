"""Chooses the memory of an arena: this process's, or that of a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.cluster.device import Device
from dps.errors import ConfigError
from dps.kernels.halves import bits_in
from dps.ps.store.arena import ArenaMemory
from dps.ps.store.thread_pool import ThreadPool
from dps.training import optimizers as optim
from dps.transport.dtypes import HALVES
from dps.transport.endpoint import Runtime
from dps.transport.tuning import ORDINARY, Tuning
from dps.transport.wire import Array
from dps.variables.plan import Arena


class HalvesMemory(ArenaMemory):
    """`ArenaMemory` for halves. Gradients are halves of the same dtype, or float32 where a mean was taken before."""

    only_fused = True

    def _precision(self) -> np.dtype[Any]:
        """The dtype of the arithmetic, and of the slots."""
        return np.dtype(np.float32)

    def _given(self, array: Array) -> Array:
        return bits_in(array)


def memory_of(
    arena: Arena, shared: Runtime | None, default: str, pool: ThreadPool | None = None, tuning: Tuning = ORDINARY
) -> ArenaMemory:
    """The memory of an arena, filled with zeros. `default`: the device of an arena whose placement names none, such as
    "GPU:0"; "" is the CPU. `shared`: the runtime that shares values with readers on this machine, or None. `pool`: the
    threads that share long passes. numba.cuda is imported only if a GPU is wanted. Raises ConfigError, in one line, for
    a GPU that cannot be used."""
    gpu = gpu_index(arena.device or default)
    optimizer = None if arena.optimizer is None else optim.from_wire(arena.optimizer)
    if gpu is None:
        return (HalvesMemory if arena.dtype in HALVES else ArenaMemory)(arena, optimizer, shared, pool, tuning)
    others = f" and {len(arena.parts) - 1} more" if len(arena.parts) > 1 else ""
    if arena.dtype in HALVES:
        raise ConfigError(
            f"{arena.parts[0].name}{others}: got {np.dtype(arena.dtype).name} variables for a GPU, wanted float32 or "
            f"float64 there; place them on a ps's CPU with dps.device('/cpu:0')"
        )
    from dps.ps.store.device_memory import DeviceMemory

    try:
        return DeviceMemory(arena, optimizer, shared, gpu, tuning)
    except ConfigError as error:
        raise ConfigError(f"{arena.parts[0].name}{others} cannot live where they were placed: {error}") from None


def gpu_index(device: str) -> int | None:
    """The GPU that "gpu:1" or "/device:GPU:1" means; None for "" and for the CPU. ConfigError for anything else."""
    try:
        found = Device(f"/{device}")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if found.device_type not in (None, "CPU", "GPU") or (found.job, found.replica, found.task) != (None, None, None):
        raise ConfigError(f"got the device {device!r} for a ps, wanted the memory that it has: 'cpu' or 'gpu:0'")
    return (found.device_index or 0) if found.device_type == "GPU" else None


def check_device(device: str) -> None:
    """Raise ConfigError, with what to try, if a ps cannot keep variables on `device`. Imports CUDA only for a GPU."""
    gpu = gpu_index(device)
    if gpu is not None:
        from dps.kernels.device import device as scope

        scope(gpu)
