"""A ps's rows of a keyed table, against a dict of rows."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import dps
from dps.errors import ConfigError
from dps.kernels.first_values import FirstValues
from dps.ps.store.table import KeyedTable
from dps.variables.tables import TableSpec, codes_of, keys_of, parts_of_table

INIT = dps.init.Normal(0.5, seed=4)
KEYS = st.one_of(st.sampled_from([0, -1, (1 << 63) - 1, -(1 << 63)]), st.integers(-200, 200))


def part_of(capacity: int = 60, dim: int = 3, optimizer: Any = None, ps: int = 1, dtype: str = "<f8") -> Any:
    wire = (optimizer or dps.optim.Adagrad(1.0, epsilon=0.0)).to_wire()
    return parts_of_table(TableSpec("t", dim, dtype, capacity, wire, INIT.to_wire(), tuple(range(ps))), 0, 0)[0]


def first_of(keys: list[int], dim: int = 3) -> Any:
    out = np.empty((len(keys), dim))
    FirstValues(INIT, "t", (1, dim), "float64").fill_rows(out, np.arange(len(keys)), np.array(keys, np.int64))
    return out


class AgainstADict(RuleBasedStateMachine):
    """Gradients of distinct keys are applied, rows are read, and the table is written and loaded again."""

    @initialize(capacity=st.integers(1, 60))
    def begin(self, capacity: int) -> None:
        self.part = part_of(capacity)
        self.table = KeyedTable(self.part)
        self.known: dict[int, tuple[Any, Any]] = {}

    @rule(keys=st.lists(KEYS, max_size=25, unique=True), number=st.integers(-3, 3))
    def apply(self, keys: list[int], number: int) -> None:
        codes = np.sort(codes_of(np.array(keys, np.int64)))
        full = self.table.full_text([codes])
        assert bool(full) == (len({*self.known, *keys}) > self.part.rows)
        if full:
            assert f"is full: {len({*self.known, *keys}) - len(self.known)} new keys do not fit" in full
            return
        gradient = np.full((len(keys), 3), float(number))
        self.table.apply(codes, gradient, 0, 1.0)
        for key in keys:
            value, accumulator = self.known.get(key, (first_of([key])[0], np.full(3, 0.1)))
            accumulator = accumulator + float(number) ** 2
            self.known[key] = value - number / np.sqrt(accumulator), accumulator

    @rule(keys=st.lists(KEYS, max_size=40))
    def read(self, keys: list[int]) -> None:
        out = np.full((len(keys), 3), np.nan)
        self.table.gather(codes_of(np.array(keys, np.int64)), out)
        for key, row in zip(keys, out, strict=True):
            wanted = self.known[key][0] if key in self.known else first_of([key])[0]
            assert np.allclose(row, wanted, rtol=0, atol=1e-12)

    @rule()
    def load(self) -> None:
        saved = self.table.copy()
        assert saved.keys.size == len(self.known) == len(saved.values)
        again = KeyedTable(self.part)
        half = saved.keys.size // 2
        for some in (slice(None, half), slice(half, None)):
            slots = {name: rows[some] for name, rows in saved.slots.items()}
            again.load_rows(codes_of(saved.keys[some]), saved.values[some], slots.items())
        again.updates, self.table = saved.updates, again

    @invariant()
    def has_as_many_rows(self) -> None:
        if hasattr(self, "table"):
            assert self.table.count == len(self.known)
            saved = self.table.copy()
            assert set(saved.keys.tolist()) == self.known.keys()
            for key, accumulator in zip(saved.keys.tolist(), saved.slots["accumulator"], strict=True):
                assert np.allclose(accumulator, self.known[key][1])


AgainstADict.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestTable = AgainstADict.TestCase


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<f2"])
@pytest.mark.parametrize(
    "optimizer", [dps.optim.SGD(0.5), dps.optim.Adam(0.1), dps.optim.Adagrad(0.1, rowwise=True), dps.optim.Ftrl(0.1)]
)
def test_a_table_is_updated_as_rows_of_a_fixed_one(optimizer: Any, dtype: str) -> None:
    from dps.ps.store.gradients import Gradient, RowGradient
    from dps.ps.store.store import Store
    from dps.transport.runtime import real_runtime
    from dps.variables.plan import Arena, Part, ShardLayout

    table, draw = KeyedTable(part_of(64, 5, optimizer, dtype=dtype)), np.random.default_rng(1)
    arena = Arena(dtype, optimizer.to_wire(), True, 0, 320, (Part(0, 0, "f", (64, 5), 0, 0),), (0,))
    store = Store(ShardLayout((arena,), 64 * 5 * np.dtype(dtype).itemsize), real_runtime())
    codes = np.sort(codes_of(np.arange(64)))
    first = np.empty((64, 5), dtype)
    table.gather(codes, first)
    store.fill_values(0, first)
    for step in range(1, 6):
        some = np.sort(draw.choice(64, 20, replace=False))
        gradient = draw.normal(size=(20, 5)).astype(dtype)
        store.apply_update(Gradient(None, {0: RowGradient(some, gradient)}), step)
        table.apply(codes[some], gradient, step - 1, 1.0)
    found = np.empty((64, 5), dtype)
    table.gather(codes, found)
    assert found.tobytes() == store.part(arena.parts[0]).tobytes()


def test_memory_beside_values_and_slots_is_at_most_24_bytes_a_row() -> None:
    rows, table = 200_000, KeyedTable(part_of(200_000, 1, dps.optim.SGD(1.0), dtype="<f4"))
    for start in range(0, rows, 10_000):
        table.apply(np.sort(codes_of(np.arange(start, start + 10_000))), np.zeros((10_000, 1), np.float32), 0, 1.0)
    assert table.count == rows and table.nbytes - rows * 4 <= 24 * rows


def test_codes_of_another_ps_and_other_dtypes_are_refused() -> None:
    table = KeyedTable(part_of(ps=2))
    codes = np.sort(codes_of(np.arange(50)))
    own = codes[codes <= table.part.highest]
    kept = table.check_codes(own)
    assert np.array_equal(kept, own) and not np.shares_memory(kept, own)
    for wrong in (codes, own.astype(np.int32), own[None]):
        with pytest.raises(ValueError, match="t/part_0"):
            table.check_codes(wrong)


def test_a_table_that_no_memory_is_reserved_for_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"t: the system reserves no memory for 4,294,967,294 rows of 1048576 float64"
    ):
        KeyedTable(part_of((1 << 32) - 2, 1 << 20))


def test_distinct_keys_of_several_pushes_count_once() -> None:
    table, codes = KeyedTable(part_of(30)), np.sort(codes_of(np.arange(30)))
    assert table.full_text([codes, codes, codes[:5]]) == ""
    assert "31 new keys" in table.full_text([codes, np.sort(codes_of(np.arange(25, 31)))])
    table.apply(codes[:10], np.zeros((10, 3)), 0, 1.0)
    assert table.full_text([codes, codes]) == "" and keys_of(codes).min() == 0
