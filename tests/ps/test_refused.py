"""A gradient that is checked before it is applied: refused, it leaves no trace; applied, the bits it always left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from dps import optim
from dps.process.config import AUTO
from dps.ps.store import thread_pool as pool
from dps.ps.store.gradients import Gradient, GradientSum
from dps.ps.store.store import Store
from dps.transport.current import runtime
from dps.transport.tuning import ORDINARY
from dps.variables.plan import VariableSpec, make_plan
from tests.tuned import tune

SPECS = [
    VariableSpec("a", (4, 9), "<f4", optim.SGD(0.5).to_wire()),
    VariableSpec("b", (), "<f8", optim.SGD(0.5).to_wire()),
    VariableSpec("c", (5,), "<f4", optim.SGD(0.5).to_wire()),
    VariableSpec("frozen", (2,), "<i8", None),
    VariableSpec("d", (37,), "<f4", optim.Adagrad(0.5).to_wire()),
    VariableSpec("e", (3,), "<f4", optim.Adam(0.5).to_wire()),
    VariableSpec("table", (6, 2), "<f4", optim.SGD(0.1).to_wire(), sparse=True),
]
PLAN = make_plan(SPECS, (0,), lambda *_: 0, None)
LAYOUT = PLAN.layouts[0]
TRAINED = [part for part in PLAN.parts if SPECS[part.variable].optimizer is not None]


@pytest.fixture(autouse=True)
def nothing_is_small() -> Iterator[None]:
    """Updates to free buffers are written past the caches, as those of large arenas are."""
    with pytest.MonkeyPatch.context() as patch:
        tune(patch, store__stream_nbytes=0)
        yield


def run_of(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(a.size).astype(a.dtype) for a in LAYOUT.arenas]


def spoil(run: list[Any], part: Any, element: int, bad: float) -> None:
    number, start = LAYOUT.place[part.index]
    run[number][start + element] = bad


def state(store: Store) -> Any:
    return (
        [m.values.tobytes() for m in store.arenas],
        [slot.tobytes() for m in store.arenas for slot in m.slots.values()],
        [m.applied.counts() for m in store.arenas],
        (store.counter, store.step),
    )


BAD = st.sampled_from([np.nan, np.inf, -np.inf])
EVENT = st.one_of(
    st.tuples(st.just("good"), st.integers(0, 99)),
    st.tuples(st.just("bad"), st.tuples(st.sampled_from(TRAINED), st.integers(0, 36), BAD)),
    st.tuples(st.just("part"), st.sampled_from(TRAINED)),
    st.tuples(st.just("lease"), st.none()),
    st.tuples(st.just("release"), st.integers(0, 5)),
)


@settings(max_examples=100)
@given(events=st.lists(EVENT, max_size=25))
def test_refused_updates_leave_no_trace_and_others_the_bits_of_updates_that_were_checked_before(events: Any) -> None:
    store, plain = Store(LAYOUT, runtime()), Store(LAYOUT, runtime())
    held: list[Any] = []
    for what, detail in events:
        before = state(store)
        if what == "good":
            assert store.apply_update(Gradient(run_of(detail), {}, checked=False), store.step + 1) == ""
            plain.apply_update(Gradient(run_of(detail), {}), plain.step + 1)
        elif what == "bad":
            part, element, bad = detail
            run = run_of(1)
            spoil(run, part, element % part.size, bad)
            wanted = f"the gradient of {part.name} has NaN or infinite values (first at element {element % part.size})"
            assert store.apply_update(Gradient(run, {}, checked=False), 77) == wanted
            assert state(store) == before
        elif what == "part":
            number, start = LAYOUT.place[detail.index]
            gradient = run_of(2)[number][start : start + detail.size].copy()
            for each in (store, plain):
                assert each.apply_update(Gradient(None, {detail.index: gradient}), each.step + 1) == ""
        elif what == "lease":
            lease = store.hold()
            if lease is not None:
                held.append((lease, [array.tobytes() for array in lease.arrays]))
        elif held:
            held.pop(detail % len(held))[0].release()
        assert state(store) == state(plain)
        assert all([array.tobytes() for array in lease.arrays] == then for lease, then in held)


SLOTLESS = make_plan(
    [
        VariableSpec("a", (37,), "<f4", optim.SGD(0.5).to_wire()), VariableSpec("n", (3,), "<i8", None),
        VariableSpec("b", (9,), "<f8", optim.SGD(0.25).to_wire()),
    ],
    (0,), lambda *_: 0, None,
).layouts[0]  # fmt: skip


@settings(max_examples=100)
@given(
    events=st.lists(st.tuples(st.sampled_from(["good", "bad", "lease", "release"]), st.integers(0, 36)), max_size=20),
    threads=st.sampled_from([1, 2]),
)
def test_passes_that_check_while_they_write_do_what_a_check_and_a_pass_do(events: Any, threads: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        tune(patch, store__looking_nbytes=0, store__stream_nbytes=0, store__pool_piece_nbytes=16, store__pool_nbytes=64)
        store = Store(SLOTLESS, runtime(), threads=threads)
    plain, held = Store(SLOTLESS, runtime()), list[Any]()
    assert store._looks_itself and not plain._looks_itself
    for what, number in events:
        run = SLOTLESS.flats(np.zeros(SLOTLESS.nbytes, np.uint8))
        for at, gradient in enumerate(run):
            gradient[:] = np.arange(len(gradient)) + number + at
        before, recorded = state(store), list[int]()
        if what == "good":
            assert store.apply_update(Gradient(run, {}, checked=False), store.step + 1, record=recorded.append) == ""
            plain.apply_update(Gradient(run, {}), plain.step + 1)
            assert recorded == [plain.counter]
        elif what == "bad":
            trained = [gradient for gradient in run if gradient.dtype.kind == "f"]
            spoilt = trained[number % 2]
            spoilt[number % len(spoilt)] = np.nan
            assert "has NaN" in store.apply_update(Gradient(run, {}, checked=False), 77, record=recorded.append)
            assert state(store) == before and not recorded
        elif what == "lease":
            if (lease := store.hold()) is not None:
                held.append((lease, [array.tobytes() for array in lease.arrays]))
        elif held:
            held.pop(number % len(held))[0].release()
        assert state(store) == state(plain)
        assert all([array.tobytes() for array in lease.arrays] == then for lease, then in held)


def test_the_first_variable_in_the_order_of_the_shard_is_named() -> None:
    store, run = Store(LAYOUT, runtime()), run_of(0)
    spoil(run, PLAN.parts[5], 1, np.inf)
    spoil(run, PLAN.parts[2], 4, np.nan)
    wanted = "the gradient of c has NaN or infinite values (first at element 4)"
    assert store.apply_update(Gradient(run, {}, checked=False), 1) == wanted


class Blocks:
    """A runtime whose passes go in blocks of two elements, as those of a simulated process do."""

    tuning = ORDINARY.where(shard_nbytes=1 << 40, block_nbytes=8, store__stream_nbytes=64)

    def preempt(self) -> None:
        """Nobody else is there."""

    def charge_pass(self, work: str, nbytes: int, slots: int = 0) -> None:
        """Takes no time."""


def test_a_pass_in_blocks_finds_what_one_pass_would(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, store__stream_nbytes=64)
    blocks: Any = Blocks()
    store, plain = Store(LAYOUT, blocks), Store(LAYOUT, runtime())
    for step in (1, 2):
        bad = run_of(step)
        spoil(bad, PLAN.parts[0], 20, np.nan)
        before = state(store)
        assert store.apply_update(Gradient(bad, {}, checked=False), step) == (
            "the gradient of a has NaN or infinite values (first at element 20)"
        )
        assert state(store) == before
        assert store.apply_update(Gradient(run_of(step), {}, checked=False), step) == ""
        plain.apply_update(Gradient(run_of(step), {}), step)
        assert state(store) == state(plain)


def test_what_is_not_trained_may_be_anything() -> None:
    store, run = Store(LAYOUT, runtime()), run_of(0)
    run[LAYOUT.place[3][0]][:] = np.iinfo(np.int64).max
    assert store.apply_update(Gradient(run, {}, checked=False), 1) == ""


@pytest.mark.parametrize("divides", [True, False])
@pytest.mark.parametrize("pushes", [1, 2, 3, 4, 5, 7])
def test_a_mean_and_a_sum_are_applied_with_the_bits_of_one_that_was_made_before(pushes: int, divides: bool) -> None:
    runs, divisor = [run_of(seed) for seed in range(pushes)], pushes if divides else 1
    made = []
    for arrays in zip(*runs, strict=True):
        total = arrays[0]
        for array in arrays[1:]:
            total = total + array
        made.append((total / total.dtype.type(divisor)).astype(total.dtype))
    for leased in (False, True):
        one, other = Store(LAYOUT, runtime()), Store(LAYOUT, runtime())
        for step in (1, 2):
            held = one.hold() if leased else None
            one.apply_update(Gradient([GradientSum(arrays, divisor) for arrays in zip(*runs, strict=True)], {}), step)
            other.apply_update(Gradient(made, {}), step)
            assert state(one) == state(other)
            assert held is None or held.counter == step - 1


@pytest.mark.parametrize("free", [None, lambda: 0, lambda: 1, lambda: -1])
@pytest.mark.parametrize("threads", [2, 3, AUTO])
def test_a_shared_pass_has_the_bits_of_one_that_is_not(
    monkeypatch: pytest.MonkeyPatch, threads: int, free: Callable[[], int] | None
) -> None:
    tune(monkeypatch, store__pool_piece_nbytes=16, store__pool_nbytes=64)
    tune(monkeypatch, store__pool_grain=1, store__pool_alone=2)
    monkeypatch.setattr(pool, "cores", lambda: 2)
    monkeypatch.setattr(pool, "free_cores", lambda: free)
    alone, together = Store(LAYOUT, runtime()), Store(LAYOUT, runtime(), threads=threads)
    for seed in range(6):
        for store in (alone, together):
            pushes = [run_of(seed), run_of(seed + 1)]
            update = pushes[0] if seed % 2 else [GradientSum(arrays, 2) for arrays in zip(*pushes, strict=True)]
            assert store.apply_update(Gradient(update, {}, checked=False), seed + 1) == ""
        assert state(alone) == state(together)
    run = run_of(0)
    spoil(run, PLAN.parts[0], 35, np.nan)
    before = state(together)
    assert "of a has NaN" in together.apply_update(Gradient(run, {}, checked=False), 9) and state(together) == before
    together.close()
