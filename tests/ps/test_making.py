"""A ps makes first values in blocks, in every memory that an arena may have, also by several threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps import optim
from dps.checkpoint import MemoryStorage
from dps.kernels.first_values import made
from dps.ps.store.making import Making
from dps.ps.store.store import Store
from dps.training.averages import KEY
from dps.transport.current import runtime
from dps.transport.endpoint import Runtime
from dps.transport.tuning import Tuning
from dps.variables.plan import Plan, VariableSpec, make_plan

NORMAL, UNIFORM = dps.init.Normal(0.1, seed=5), dps.init.GlorotUniform()
SGD = optim.SGD(0.1).to_wire()
AVERAGED = {**SGD, KEY: optim.MovingAverage(0.9).to_wire()}
SPECS = [
    VariableSpec("a", (5000, 3), "<f4", SGD, False, NORMAL.to_wire()),
    VariableSpec("given", (7,), "<f4", SGD),
    VariableSpec("b", (), "<f8", SGD, False, dps.init.Ones().to_wire()),
    VariableSpec("counts", (20,), "<i8", None, False, dps.init.Constant(3).to_wire()),
    VariableSpec("table", (600, 2), "<f4", SGD, True, UNIFORM.to_wire()),
    VariableSpec("zeros", (40,), "<f4", SGD, False, dps.init.Zeros().to_wire()),
    VariableSpec("none", (0, 3), "<f4", SGD, False, NORMAL.to_wire()),
    VariableSpec("averaged", (100,), "<f4", AVERAGED, False, NORMAL.to_wire()),
]
WANTED = {
    "a": made(NORMAL, "a", (5000, 3), "float32"), "given": np.zeros(7, np.float32), "b": np.ones(()),
    "counts": np.full(20, 3), "table": made(UNIFORM, "table", (600, 2), "float32"), "zeros": np.zeros(40, np.float32),
    "none": np.zeros((0, 3), np.float32), "averaged": made(NORMAL, "averaged", (100,), "float32"),
}  # fmt: skip


class Tuned:
    """This process's runtime with another tuning."""

    def __init__(self, **changes: Any) -> None:
        self.tuning = Tuning().where(**changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(runtime(), name)


def plan(where: str, parts: int) -> Plan:
    place = dps.Device(f"/job:ps/task:0{where}")
    split = (lambda name, shape, dtype: min(parts, shape[0])) if parts > 1 else None
    return make_plan(SPECS, (0,), lambda *_: place, split)


def filled(parts: int, where: str = "", threads: int = 1, **changes: Any) -> tuple[Store, list[str]]:
    chosen: Any = Tuned(**changes)
    own: Runtime = chosen
    made_plan = plan(where, parts)
    store = Store(made_plan.layouts[0], own, threads=threads)
    making, told = Making(store, made_plan, MemoryStorage()), list[str]()
    told.append(making.text)
    while making.make_block():
        told.append(making.text)
    told.append(making.text)
    for spec, owned in zip(made_plan.variables, made_plan.parts_of, strict=True):
        pieces = []
        for part in owned:
            memory = store.arenas[store.layout.place[part.index][0]]
            start = memory.places[part.index][1]
            pieces.append(memory.read(None, start, start + part.size))
        assert np.concatenate(pieces).tobytes() == WANTED[spec.name].tobytes(), spec.name
    return store, told


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("nbytes", [1, 64, 4096, 16 << 20])
def test_blocks_of_any_size_have_the_same_values(parts: int, nbytes: int) -> None:
    _, told = filled(parts, store__made_nbytes=max(nbytes, 8) if parts == 1 else nbytes)
    assert told[0] == "makes first values, 0 % of 0.1 MB" and told[-1] == "makes first values, 100 % of 0.1 MB"
    assert len(told) > 60_000 // max(nbytes, 8)


def test_threads_that_share_a_block_have_the_same_values() -> None:
    filled(2, threads=3, store__pool_nbytes=1 << 10, store__pool_piece_nbytes=1 << 10, store__pool_grain=64)


def test_moving_averages_begin_at_the_values() -> None:
    store, _ = filled(1)
    averaged = [memory for memory in store.arenas if memory.averages is not None]
    assert len(averaged) == 1 and np.array_equal(averaged[0].averaged(), WANTED["averaged"])


def test_values_are_made_for_a_gpu() -> None:
    filled(2, where="/gpu:0", store__made_nbytes=4096)
