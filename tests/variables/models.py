"""Random models and plans: nested arrays, their parts and where these lie."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np

from dps import optim
from dps.variables.plan import Plan, VariableSpec, make_plan

SGD, ADAM = optim.SGD(1.0).to_wire(), optim.Adam().to_wire()

keys = st.text("abc", min_size=1, max_size=2)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    shape = draw(shapes)
    dtype = draw(st.sampled_from(["<f4", "<f8", "<i8"]))
    return (np.arange(np.prod(shape, dtype=int)) + draw(st.integers(0, 99))).astype(dtype).reshape(shape)


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Nested dicts, lists and tuples that have at least one leaf."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.dictionaries(keys, inner, min_size=1, max_size=3),
            st.lists(inner, min_size=1, max_size=3),
            st.lists(inner, min_size=1, max_size=3).map(tuple),
        ),
        max_leaves=6,
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Up to five variables of any shape, in parts, on up to three ps."""
    ps = tuple(sorted(draw(st.sets(st.integers(0, 5), min_size=1, max_size=3))))
    kinds: list[tuple[str, dict[str, Any] | None]] = [("<f4", SGD), ("<f4", ADAM), ("<f8", SGD), ("<i8", None)]
    specs = [
        VariableSpec(f"v{i}", draw(shapes), dtype, optimizer, draw(st.booleans()))
        for i, (dtype, optimizer) in enumerate(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=5)))
    ]
    places = draw(st.lists(st.sampled_from(ps), min_size=1, max_size=7))
    turn = [0]

    def place(variable: str, name: str, shape: tuple[int, ...], dtype: str) -> int:
        turn[0] += 1
        return places[turn[0] % len(places)]

    parts = draw(st.integers(1, 4))
    return make_plan(specs, ps, place, lambda name, shape, dtype: min(parts, shape[0]))


def values_of(plan: Plan) -> dict[str, Any]:
    """A value for each variable; no two elements of the model are equal."""
    found, start = {}, 1
    for spec in plan.variables:
        size = int(np.prod(spec.shape, dtype=int))
        found[spec.name] = np.arange(start, start + size).astype(spec.dtype).reshape(spec.shape)
        start += size
    return found


def two_ps() -> Plan:
    """`t` in two parts of two and one rows, on ps 0 and 1; `s` on 0, `n` (not trained) on 1."""
    specs = [
        VariableSpec("t", (3, 2), "<f4", SGD),
        VariableSpec("s", (), "<f8", SGD),
        VariableSpec("n", (2,), "<i8", None),
    ]
    turn = iter([0, 1, 0, 1])
    return make_plan(specs, (0, 1), lambda *_: next(turn), lambda name, *_: 2 if name == "t" else 1)
