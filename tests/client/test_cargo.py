"""A dense push out of the user's own arrays: all its bytes in their places, none of the large ones copied."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from dps.client.cargo import About, ArraysCargo
from dps.messages.sessions import Push
from dps.ps.intake.intake import Gathering, IntakeState, PushOf
from dps.transport.tuning import ORDINARY
from dps.variables.layout import split
from dps.variables.plan import Plan, ShardLayout, VariableSpec, make_plan
from tests.client.peers import Memory, Wire, peer
from tests.variables.models import SGD, plans, values_of

ABOUT = About(1, 4, 2, 7, 3)


def own_pieces(
    plan: Plan, layout: ShardLayout, gradients: Any, size: int, rate: float = float("inf")
) -> list[Push] | None:
    """The messages; None where they do not pay."""
    if not ArraysCargo.pays(layout, ORDINARY.where(piece_nbytes=size)):
        return None
    lane = Memory(on=False)
    lane.rate = rate
    return ArraysCargo(peer(Wire(size), layout, lane), ABOUT, plan, gradients).messages()


def plan_of(*sizes: int) -> Plan:
    specs = [VariableSpec(f"v{i}", (size,), "<f4", SGD) for i, size in enumerate(sizes)]
    return make_plan(specs, (0,), lambda *_: 0, None)


def gradients_of(plan: Plan) -> dict[int, Any]:
    values = values_of(plan)
    return {i: values[spec.name] for i, spec in enumerate(plan.variables) if spec.optimizer is not None}


@settings(max_examples=100)
@given(plans(), st.integers(8, 3000), st.sampled_from([1.0, 15_000.0, float("inf")]))
def test_the_pieces_make_the_run_and_none_is_longer_than_it_may_be(plan: Plan, size: int, rate: float) -> None:
    gradients, longest = gradients_of(plan), max(min(size, rate * ORDINARY.piece_s), size // 16, 64)
    for layout in plan.layouts.values():
        pieces = own_pieces(plan, layout, gradients, size, rate)
        if pieces is None:
            continue
        intake = Gathering(PushOf(0, 1, 4, 2, 7), layout, True)
        for piece in pieces:
            assert (piece.epoch, piece.number, piece.step, piece.counter, piece.clock) == ABOUT[:5]
            assert 0 < sum(array.nbytes for array in piece.arrays) <= longest
            assert intake.state is IntakeState.ARRIVING
            intake.take_pieces(piece)
        assert intake.state is IntakeState.COMPLETE
        for arena, got in zip(layout.arenas, intake.staged().sound().flats(), strict=True):
            for part, start in zip(arena.parts, arena.starts, strict=True):
                if arena.optimizer is not None:
                    wanted = split(gradients[part.variable], part, len(plan.parts_of[part.variable]))
                    np.testing.assert_array_equal(got[start : start + part.size], wanted.reshape(-1), part.name)


def test_large_gradients_are_sent_from_where_they_lie_and_small_neighbours_together() -> None:
    plan = plan_of(1000, 2, 3, 500, 4)  # 4000, 8, 12, 2000 and 16 bytes; small is below 1024 / 4
    gradients = gradients_of(plan)
    pieces = own_pieces(plan, plan.layouts[0], gradients, 1024)
    assert pieces is not None
    frames = [(o, a) for piece in pieces for o, a in zip(piece.offsets, piece.arrays, strict=True)]
    assert [(o, a.nbytes) for o, a in frames] == [
        (0, 1024), (1024, 1024), (2048, 1024), (3072, 928), (4000, 20), (4020, 1024), (5044, 976), (6020, 16),
    ]  # fmt: skip
    assert [len(piece.arrays) for piece in pieces] == [1, 1, 1, 2, 1, 2]
    own = [any(np.shares_memory(array, g) for g in gradients.values()) for _, array in frames]
    assert own == [True, True, True, True, False, True, True, False]


@pytest.mark.parametrize("sizes", [(10,) * 50, (100, *(10,) * 50)])
def test_where_most_bytes_are_in_small_variables_there_are_no_such_pieces(sizes: tuple[int, ...]) -> None:
    plan = plan_of(*sizes)
    assert own_pieces(plan, plan.layouts[0], gradients_of(plan), 1024) is None


def test_a_scalar_and_a_gradient_that_is_not_contiguous_are_taken_as_they_are() -> None:
    specs = [VariableSpec("a", (20, 30), "<f4", SGD), VariableSpec("s", (), "<f4", SGD)]
    plan = make_plan(specs, (0,), lambda *_: 0, None)
    a = np.arange(600, dtype=np.float32).reshape(30, 20).T
    pieces = own_pieces(plan, plan.layouts[0], {0: a, 1: np.array(5, np.float32)}, 1024)
    assert pieces is not None
    got = np.concatenate([array for piece in pieces for array in piece.arrays]).view(np.float32)
    np.testing.assert_array_equal(got, [*np.ascontiguousarray(a).reshape(-1), 5.0])
