"""Prepares kernels before the first push needs them: loads them from numba's cache, or compiles them.

Numba loads each kernel at its first call (some ms from its cache, half a second to compile), and itself at the very
first one (some hundredths of a second; a quarter if it compiles). Here a small shard of the same dtypes and optimizers
is updated once in each way that a push may take.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from dps.kernels.first_values import FirstValues
from dps.process.record import replace
from dps.ps.intake.parts import checked, row_gradient
from dps.ps.modes.combine import combined
from dps.ps.store.ahead import can_prefault
from dps.ps.store.gradients import Gradient, RowGradient, is_finite
from dps.ps.store.index import FIRST, KeyIndex
from dps.ps.store.key_counts import pushes_of
from dps.ps.store.store import Store
from dps.ps.store.table import KeyedTable
from dps.training import optimizers as optim
from dps.training.initializers import Normal
from dps.transport.runtime import real_runtime
from dps.transport.tuning import ORDINARY
from dps.variables.plan import Arena, Part, ShardLayout
from dps.variables.tables import TablePart, TableSpec, parts_of_table

DIM = 4
TRAINED = ("float32", "float64", "float16", "bfloat16")
"""The dtypes for which there are optimizers."""
LARGE_NBYTES = ORDINARY.store.stream_nbytes
_ready: set[tuple[Any, ...]] = set()
_warming = threading.Lock()


def start() -> None:
    """Load numba itself, once in a process, before a session comes. Blocks for 0.03 s."""
    is_finite(np.zeros(DIM, np.float32))


def warm(arenas: Iterable[Arena], together: int = 1) -> None:
    """Load the kernels that the trained arenas among these need, each kind once in a process. Blocks until that is
    done. `together`: so many pushes make an update; each number has a kernel of its own.
    """
    for arena in arenas:
        dtype = np.dtype(arena.dtype).name
        if arena.optimizer is not None and dtype in TRAINED:
            averaged = "moving_average" in arena.optimizer
            kind = (dtype, *_passes(arena.optimizer), averaged, arena.sparse, together, _is_large(arena))
            with _warming:
                if kind not in _ready:
                    for nbytes in (1, LARGE_NBYTES) if _is_large(arena) else (1,):  # some pushes have small parts only
                        _update_once(_like(arena.dtype, arena.optimizer, arena.sparse, nbytes), together)
                    _ready.add(kind)


def warm_tables(tables: Iterable[TablePart]) -> None:
    """Load the kernels that keyed tables need, each kind once in a process. Blocks until that is done."""
    can_prefault()
    for table in tables:
        spec = table.spec
        kind = (
            "table",
            spec.dtype,
            *_passes(spec.optimizer),
            str(spec.init["kind"]),
            spec.admit > 1,
            spec.expire_steps > 0,
        )
        with _warming:
            if kind not in _ready:
                small = KeyedTable(replace(table, spec=replace(spec, capacity=2 * DIM)))
                codes = np.arange(DIM, dtype=np.int64) + table.lowest
                for rows in (codes, codes[::-1].copy(), codes.repeat(2)):
                    gradient = row_gradient(rows, np.zeros((rows.size, spec.dim), small.dtype))
                    if small.key_counts is not None:  # whichever number of pushes admits a key
                        small.key_counts.would_admit(gradient.rows, pushes_of(gradient))
                        gradient = RowGradient(gradient.rows, gradient.values, pushes_of(gradient) * spec.admit)
                    small.apply(gradient, 1, 1.0, 0)
                if spec.expire_steps:  # a push to rows that have expired
                    small.apply(gradient, 1 + spec.expire_steps, 1.0, 1 + spec.expire_steps)
                small.gather(codes + DIM, np.empty((DIM, spec.dim), small.dtype), 0)
                small.copy(0)
                warm_index()
                _ready.add(kind)


def warm_index() -> None:
    """Load the kernel by which an index grows."""
    index = KeyIndex(4 * FIRST)
    for keys in np.arange(4 * FIRST).reshape(-1, 8):
        index.insert(keys, keys)


def warm_all(progress: Callable[[str, int, int], None]) -> None:
    """Load all kernels of a ps. `progress` gets the name of the next step, its number from 1, and how many there
    are."""
    optimizers = [cls.usual() for cls in optim.KNOWN.values()]
    kinds = [(optimizer, dtype) for optimizer in optimizers for dtype in ("float32", "float64")]
    for number, (optimizer, dtype) in enumerate(kinds, 1):
        progress(f"{optimizer.name} {dtype}", number, len(kinds) + 1)
        for together in (1, 2, 3, 4):
            warm([_like(dtype, optimizer.to_wire(), sparse, LARGE_NBYTES) for sparse in (False, True)], together)
        spec = TableSpec("warm", DIM, dtype, DIM, optimizer.to_wire(), Normal(1.0).to_wire(), (0,))
        warm_tables(parts_of_table(spec, 0, 0))
    warm_tables(parts_of_table(replace(spec, admit=2, expire_steps=1), 0, 0))
    progress("first values", len(kinds) + 1, len(kinds) + 1)
    for dtype in ("float32", "float64"):
        FirstValues(Normal(1.0), "warm", (DIM,), dtype).fill(np.empty(DIM, dtype), 0)


def _passes(wire: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the passes of an optimizer are compiled for: its rule, the slots that it uses, the scalars that are None."""
    optimizer = optim.from_wire(wire)
    return optimizer.name, optimizer.slots, tuple(scalar is None for scalar in optimizer.scalars(1.0, 1))


def _is_large(arena: Arena) -> bool:
    """Whether its passes are those of large arenas, which have kernels of their own."""
    return arena.nbytes >= LARGE_NBYTES


def _like(dtype: str, optimizer: dict[str, Any], sparse: bool, nbytes: int) -> Arena:
    """An arena with one variable of so many bytes, and 2 rows at least."""
    rows = max(2, nbytes // (DIM * np.dtype(dtype).itemsize))
    return Arena(dtype, optimizer, sparse, 0, rows * DIM, (Part(0, 0, "warm", (rows, DIM), 0, 0),), (0,))


def _update_once(arena: Arena, together: int) -> None:
    """Update a shard of one small variable: by one push, by the mean of some, and by rows where it is sparse."""
    layout = ShardLayout((arena,), arena.nbytes)
    store = Store(layout, real_runtime())  # also in the simulator: nothing else runs in between
    gradients = [Gradient(layout.flats(np.zeros(layout.nbytes, np.uint8)), {}, checked=False) for _ in range(together)]
    store.apply_update(gradients[0], 1)
    hold = store.hold()
    assert hold is not None, "there is a free buffer"
    store.apply_update(gradients[0], 2)  # to that buffer
    hold.release()
    store.apply_update(combined(gradients, layout), 2)
    if arena.sparse:
        part = arena.parts[0]
        for rows in ([0, 1], [1, 0, 1]):  # in order, and with one twice
            gradient = row_gradient(checked(part, np.array(rows)), np.zeros((len(rows), DIM), arena.dtype))
            store.apply_update(Gradient(None, {0: gradient}), 3)
        store.gather(part, np.array([1]))
