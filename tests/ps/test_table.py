"""A ps's rows of a keyed table, against a dict of rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import dps
from dps.errors import ConfigError
from dps.kernels.first_values import FirstValues
from dps.kernels.key_counts import WIDTH
from dps.messages.sessions import PARTS, ROWS, Push
from dps.process.record import replace
from dps.ps.intake.parts import Parts
from dps.ps.store import expiry
from dps.ps.store.gradients import RowGradient
from dps.ps.store.key_counts import KeyCounts
from dps.ps.store.table import KeyedTable
from dps.variables.tables import SLICE_BITS, SLICES, TableSpec, codes_of, keys_of, parts_of_table, positions_of_part

INIT = dps.init.Normal(0.5, seed=4)
CROWD = keys_of((np.int64(77) << SLICE_BITS) + (np.arange(11) << 44)).tolist()
"""Keys of one slice: more than a bucket counts."""
KEYS = st.one_of(st.sampled_from([0, -1, (1 << 63) - 1, -(1 << 63)]), st.sampled_from(CROWD), st.integers(-200, 200))


def part_of(
    capacity: int = 60,
    dim: int = 3,
    optimizer: Any = None,
    ps: int = 1,
    dtype: str = "<f8",
    admit: int = 1,
    expire_steps: int = 0,
) -> Any:
    wire = (optimizer or dps.optim.Adagrad(1.0, epsilon=0.0)).to_wire()
    spec = TableSpec("t", dim, dtype, capacity, wire, INIT.to_wire(), tuple(range(ps)), admit, expire_steps)
    return parts_of_table(spec, 0, 0)[0]


def first_of(keys: list[int], dim: int = 3) -> Any:
    out = np.empty((len(keys), dim))
    FirstValues(INIT, "t", (1, dim), "float64").fill_rows(out, np.arange(len(keys)), np.array(keys, np.int64))
    return out


def slice_of(key: int) -> int:
    return int(codes_of(np.array([key]))[0]) >> SLICE_BITS


def of(codes: Any) -> RowGradient:
    """A gradient of zeros."""
    return RowGradient(codes, np.zeros((codes.size, 3)))


class AgainstADict(RuleBasedStateMachine):
    """Gradients of distinct keys are applied, rows are read, steps pass, and the table is written and loaded again."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = expiry.LEAST_LOOKED, expiry.LOOKED, expiry.LEAST_SWEPT

    @initialize(
        capacity=st.integers(1, 60), admit=st.integers(1, 4), expire=st.sampled_from([0, 1, 2, 5]),
        sweeps=st.sampled_from([(0, 0, 1), (3, 1, 1), (1000, 4, 1000)]),
    )  # fmt: skip
    def begin(self, capacity: int, admit: int, expire: int, sweeps: tuple[int, int, int]) -> None:
        expiry.LEAST_LOOKED, expiry.LOOKED, expiry.LEAST_SWEPT = sweeps
        self.part = part_of(capacity, admit=admit, expire_steps=expire)
        self.table, self.admit, self.expire = KeyedTable(self.part), admit, expire
        self.now = 0
        self.stamps: dict[int, int] = {}
        self.known: dict[int, tuple[Any, Any]] = {}
        self.counted: dict[int, dict[int, int]] = {}
        """The counts of keys without a row by their bucket, which is a slice here: of each the oldest first."""

    @rule(keys=st.lists(KEYS, max_size=25, unique=True), number=st.integers(-3, 3), pushes=st.integers(1, 3))
    def apply(self, keys: list[int], number: int, pushes: int) -> None:
        codes = np.sort(codes_of(np.array(keys, np.int64)))
        keys, counts = keys_of(codes).tolist(), np.full(codes.size, pushes)
        counts[::3] = 1
        update = RowGradient(codes, np.full((len(keys), 3), float(number)), None if pushes == 1 else counts)
        totals = [self.count_of(key) + n for key, n in zip(keys, counts.tolist(), strict=True)]
        new = [key for key, n in zip(keys, totals, strict=True) if key not in self.known and n >= self.admit]
        full = self.table.full_text([update], self.now)
        assert bool(full) == (len(self.known) + len(new) > self.part.rows)
        if full:
            assert f"is full: {len(new)} new keys do not fit" in full
            return
        self.table.apply(update, self.now + 1, 1.0, self.now)
        for key, n in zip(keys, counts.tolist(), strict=True):
            if key in self.known or self.admits(key, n):
                value, accumulator = self.known.get(key, (first_of([key])[0], np.full(3, 0.1)))
                accumulator = accumulator + float(number) ** 2
                self.known[key] = value - number / np.sqrt(accumulator), accumulator
                self.stamps[key] = self.now + 1
        self.pass_steps(1)

    @rule(steps=st.integers(1, 6))
    def pass_steps(self, steps: int) -> None:
        """Steps that have no keys here."""
        self.now += steps
        for key in [key for key, stamp in self.stamps.items() if self.expire and stamp + self.expire <= self.now]:
            del self.known[key], self.stamps[key]

    def teardown(self) -> None:
        expiry.LEAST_LOOKED, expiry.LOOKED, expiry.LEAST_SWEPT = self.kept

    def count_of(self, key: int) -> int:
        return self.counted.get(slice_of(key), {}).get(key, 0)

    def admits(self, key: int, pushes: int) -> bool:
        bucket = self.counted.setdefault(slice_of(key), {})
        total = bucket.pop(key, 0) + pushes
        if total >= self.admit:
            return True
        bucket[key] = total
        if len(bucket) > WIDTH:
            del bucket[next(iter(bucket))]
        return False

    @rule(keys=st.lists(KEYS, max_size=40))
    def read(self, keys: list[int]) -> None:
        out = np.full((len(keys), 3), np.nan)
        self.table.gather(codes_of(np.array(keys, np.int64)), out, self.now)
        for key, row in zip(keys, out, strict=True):
            wanted = self.known[key][0] if key in self.known else first_of([key])[0]
            assert np.allclose(row, wanted, rtol=0, atol=1e-12)

    @rule()
    def load(self) -> None:
        saved = self.table.copy(self.now)
        assert saved.keys.size == len(self.known) == len(saved.values)
        again = KeyedTable(self.part)
        half = saved.keys.size // 2
        for some in (slice(None, half), slice(half, None)):
            slots = {name: rows[some] for name, rows in saved.slots.items()}
            stamps = self.now if saved.stamps is None else saved.stamps[some]
            again.load_rows(codes_of(saved.keys[some]), saved.values[some], slots.items(), stamps)
        again.updates, self.table = saved.updates, again
        if self.admit > 1:
            assert saved.counted is not None and again.key_counts is not None
            keys, counts = saved.counted
            again.key_counts.load(codes_of(keys[: half + 1]), counts[: half + 1])
            again.key_counts.load(codes_of(keys[half + 1 :]), counts[half + 1 :])

    @invariant()
    def has_as_many_rows(self) -> None:
        if hasattr(self, "table"):
            assert self.table.count >= len(self.known) and (self.expire or self.table.count == len(self.known))
            saved = self.table.copy(self.now)
            assert (saved.stamps is None) == (self.expire == 0)
            if saved.stamps is not None:
                assert dict(zip(saved.keys.tolist(), saved.stamps.tolist(), strict=True)) == self.stamps
            assert set(saved.keys.tolist()) == self.known.keys()
            for key, accumulator in zip(saved.keys.tolist(), saved.slots["accumulator"], strict=True):
                assert np.allclose(accumulator, self.known[key][1])
            assert (saved.counted is None) == (self.admit == 1)
            keys, counts = ([], []) if saved.counted is None else [array.tolist() for array in saved.counted]
            wanted = [entry for number in sorted(self.counted) for entry in self.counted[number].items()]
            assert [*zip(keys, counts, strict=True)] == wanted


AgainstADict.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestTable = AgainstADict.TestCase


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<f2"])
@pytest.mark.parametrize(
    "optimizer", [dps.optim.SGD(0.5), dps.optim.Adam(0.1), dps.optim.Adagrad(0.1, rowwise=True), dps.optim.Ftrl(0.1)]
)
def test_a_table_is_updated_as_rows_of_a_fixed_one(optimizer: Any, dtype: str) -> None:
    from dps.ps.store.gradients import Gradient
    from dps.ps.store.store import Store
    from dps.transport.runtime import real_runtime
    from dps.variables.plan import Arena, Part, ShardLayout

    table, draw = KeyedTable(part_of(64, 5, optimizer, dtype=dtype)), np.random.default_rng(1)
    arena = Arena(dtype, optimizer.to_wire(), True, 0, 320, (Part(0, 0, "f", (64, 5), 0, 0),), (0,))
    store = Store(ShardLayout((arena,), 64 * 5 * np.dtype(dtype).itemsize), real_runtime())
    codes = np.sort(codes_of(np.arange(64)))
    first = np.empty((64, 5), dtype)
    table.gather(codes, first, 0)
    store.fill_values(0, first)
    for step in range(1, 6):
        some = np.sort(draw.choice(64, 20, replace=False))
        gradient = draw.normal(size=(20, 5)).astype(dtype)
        store.apply_update(Gradient(None, {0: RowGradient(some, gradient)}), step)
        table.apply(RowGradient(codes[some], gradient), step, 1.0, step - 1)
    found = np.empty((64, 5), dtype)
    table.gather(codes, found, 5)
    assert found.tobytes() == store.part(arena.parts[0]).tobytes()


def test_memory_beside_values_and_slots_is_at_most_24_bytes_a_row() -> None:
    rows, table = 200_000, KeyedTable(part_of(200_000, 1, dps.optim.SGD(1.0), dtype="<f4"))
    for start in range(0, rows, 10_000):
        codes = np.sort(codes_of(np.arange(start, start + 10_000)))
        table.apply(RowGradient(codes, np.zeros((10_000, 1), np.float32)), 1, 1.0, 0)
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


def test_a_push_with_codes_of_another_ps_is_refused_and_not_taken_for_a_malformed_message() -> None:
    table = KeyedTable(part_of(ps=2))
    codes = np.sort(codes_of(np.arange(50)))
    arrays = codes, np.zeros((50, table.dim), table.dtype)
    push = Push(1, 1, 0, 0, PARTS, 0, [], parts=[[table.part.index, ROWS, []]], arrays=arrays)
    found = Parts(push, SimpleNamespace(place={}), {table.part.index: table}, None, True)  # type: ignore[arg-type]
    assert "got codes of others" in found.problem and not found.gradients


@pytest.mark.parametrize(("rated_at", "wanted"), [(None, -1.0), (2, -1.0), (3, -0.125)])
def test_a_rate_is_that_of_the_step_before_or_of_the_one_that_is_named(rated_at: int | None, wanted: float) -> None:
    table = KeyedTable(part_of(4, 2, dps.optim.SGD(dps.optim.Piecewise([2], [1.0, 0.125]))))
    codes = codes_of(np.arange(1))
    before, after = np.empty((1, 2), np.float64), np.empty((1, 2), np.float64)
    table.gather(codes, before, 0)
    table.apply(RowGradient(codes, np.ones((1, 2), np.float64)), 1, 1.0, 0, rated_at)
    table.gather(codes, after, 1)
    np.testing.assert_allclose(after - before, wanted)


def test_a_table_that_no_memory_is_reserved_for_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"t: the system reserves no memory for 4,294,967,294 rows of 1048576 float64"
    ):
        KeyedTable(part_of((1 << 32) - 2, 1 << 20))


def test_distinct_keys_of_several_pushes_count_once() -> None:
    table, codes = KeyedTable(part_of(30)), np.sort(codes_of(np.arange(30)))
    assert table.full_text([of(codes), of(codes), of(codes[:5])], 0) == ""
    assert "31 new keys" in table.full_text([of(codes), of(np.sort(codes_of(np.arange(25, 31))))], 0)
    table.apply(of(codes[:10]), 1, 1.0, 0)
    assert table.full_text([of(codes), of(codes)], 1) == "" and keys_of(codes).min() == 0


def test_counts_of_a_key_are_those_of_its_slice_on_any_number_of_ps() -> None:
    """Buckets overflow, in tables whose slices have one bucket and several; parts are loaded by others."""
    draw = np.random.default_rng(3)
    for capacity in (50, 100_000):
        spec = part_of(capacity, admit=4).spec
        whole, thirds = parts_of_table(spec, 0, 0)[0], parts_of_table(replace(spec, ps=(0, 1, 2)), 0, 0)
        one, several = KeyCounts(whole), [KeyCounts(part) for part in thirds]
        slices, below = draw.choice(SLICES, 40, replace=False) - SLICES // 2, draw.integers(0, 1 << SLICE_BITS, 1600)
        pool = np.sort((draw.choice(slices, 1600) << SLICE_BITS) + below)
        seen = set[int]()
        for _ in range(40):
            codes = np.unique(draw.choice(pool, 400))
            pushes = draw.integers(1, 3, codes.size)
            expected = one.would_admit(codes, pushes)
            admitted = one.count(codes, pushes)
            seen |= {*codes[admitted].tolist()}
            assert (admitted <= expected).all()  # a key may make another one forgotten in the same push
            for part, own in zip(thirds, several, strict=True):
                here = positions_of_part(part, codes)
                assert np.array_equal(own.count(codes[here], pushes[here]), admitted[here])
        assert 0 < len(seen) < pool.size
        codes, counts = (np.concatenate(arrays) for arrays in zip(*[own.copy() for own in several], strict=True))
        assert one.keys == sum(own.keys for own in several) == codes.size
        assert np.array_equal(codes, one.copy()[0]) and np.array_equal(counts, one.copy()[1])
        assert (one._counts.all(axis=1)).any()
        for part in parts_of_table(replace(spec, ps=(0, 1)), 0, 0):
            again, here = KeyCounts(part), positions_of_part(part, codes)
            again.load(codes[here], counts[here])
            assert again.keys == here.size
            per = len(one._counts) // SLICES
            own_counts = one._counts[part.first * per : part.end * per]
            assert np.array_equal(again._counts, own_counts)
            own_codes = one._codes[part.first * per : part.end * per]
            assert np.array_equal(again._codes[own_counts > 0], own_codes[own_counts > 0])


def test_memory_of_counts_is_bounded_by_the_capacity() -> None:
    for capacity in (1000, 1_000_000):
        counts = KeyCounts(part_of(capacity, admit=2))
        assert capacity <= counts._counts.size <= max(8 * SLICES, 1.1 * capacity)
        for start in range(0, 200_000, 50_000):
            codes = np.sort(codes_of(np.arange(start, start + 50_000)))
            assert not counts.count(codes, np.ones(50_000, np.int64)).any()
            there = np.count_nonzero(counts._counts)
            assert counts.keys == there <= start + 50_000 and counts.nbytes == 9 * there
        assert there > 199_000 if capacity > 200_000 else there <= 8 * SLICES


def fill(table: KeyedTable, keys: Any, step: int) -> None:
    """Push gradients of zeros for keys at a step."""
    codes = np.sort(codes_of(np.asarray(keys)))
    assert table.full_text([of(codes)], step - 1) == ""
    table.apply(of(codes), step, 1.0, step - 1)


def test_a_sweep_looks_at_a_piece_of_the_table_and_frees_as_much_as_comes() -> None:
    table = KeyedTable(part_of(100_000, expire_steps=3))
    fill(table, np.arange(50_000), 1)
    for step in range(2, 60):
        before = table.counts["expired"]
        fill(table, 10**6 + 100 * step + np.arange(100), step)
        assert table.counts["expired"] - before <= expiry.LEAST_SWEPT + 200 and (step > 3 or table.count >= 50_000)
    assert table.count < 50_000  # more rows go than come
    for step in range(60, 500):
        fill(table, 10**6 + 100 * step + np.arange(100), step)
    assert 300 <= table.count < 4500 and table.copy(499).keys.size == 300
    assert table._index.count == table.count and table._expiry is not None
    assert table._expiry._used <= 51_000  # freed rows are used again


def test_a_full_table_frees_all_expired_rows_before_it_refuses() -> None:
    table = KeyedTable(part_of(20_000, expire_steps=5))
    fill(table, np.arange(20_000), 1)
    fill(table, np.arange(100), 3)
    new = of(np.sort(codes_of(np.arange(20_000, 30_000))))
    assert "10,000 new keys do not fit beside 20,000 rows" in table.full_text([new], 5)
    assert table.full_text([new], 6) == "" and table.count == 100 and table.counts["refused"] == 1
    fill(table, np.arange(20_000, 39_900), 7)
    assert "is full" in table.full_text([of(np.sort(codes_of(np.arange(39_900, 39_901))))], 7)
    assert table.full_text([of(np.sort(codes_of(np.arange(39_900, 40_000))))], 8) == ""  # those of step 3


def test_a_push_of_expired_keys_finds_room_in_a_full_table() -> None:
    """As one that was staged before they expired, whether they are swept meanwhile or not."""
    for swept in (False, True):
        table = KeyedTable(part_of(30, expire_steps=2))
        fill(table, np.arange(30), 1)
        again = of(np.sort(codes_of(np.arange(30))))
        assert table.full_text([again], 2) == ""
        if swept:
            fill(table, [3], 9)
            assert table.count == 1
        table.apply(again, 10, 1.0, 9)
        assert table.count == 30 and table.copy(10).keys.size == 30


def test_lists_of_rows_that_were_found_before_are_not_used_for_other_keys() -> None:
    table, out = KeyedTable(part_of(60, expire_steps=2, optimizer=dps.optim.SGD(1.0))), np.empty((20, 3))
    old, new = np.sort(codes_of(np.arange(20))), np.sort(codes_of(np.arange(100, 120)))
    table.apply(RowGradient(old, np.ones((20, 3))), 1, 1.0, 0)
    table.gather(old, out, 1)
    table.apply(RowGradient(new, np.full((20, 3), 2.0)), 4, 1.0, 3)
    table.apply(RowGradient(codes_of(np.array([500])), np.full((1, 3), 5.0)), 5, 1.0, 4)
    table.gather(old, out, 5)
    assert np.array_equal(out, first_of(keys_of(old).tolist()))
