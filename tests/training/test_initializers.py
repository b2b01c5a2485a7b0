"""Initializers as data: what they take, what they become for a shape, and what comes from the network."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import dps
from dps.errors import ConfigError, ProtocolError
from dps.training.initializers import MOST_SEED, TRUNCATED_STDDEV, checked, fans, from_wire
from dps.variables.columns import VariableSpec
from dps.variables.plan import Plan, make_plan

ALL = [
    dps.init.Zeros(), dps.init.Ones(), dps.init.Constant(0.5), dps.init.Uniform(-1.0, 1.0, seed=3),
    dps.init.Normal(0.1, mean=2.0, seed=1), dps.init.TruncatedNormal(0.1), dps.init.GlorotUniform(4),
    dps.init.GlorotNormal(5), dps.init.HeUniform(6), dps.init.HeNormal(MOST_SEED - 1),
    dps.init.FromFile("weights.safetensors", "w"), dps.init.FromFile("weights.safetensors"),
]  # fmt: skip


@pytest.mark.parametrize("init", ALL, ids=lambda init: init.kind)
def test_an_initializer_comes_back_from_its_wire_form(init: Any) -> None:
    assert from_wire(init.to_wire()) == init
    spec = VariableSpec("w", (4, 2), "<f4", None, False, init.to_wire())
    plan = make_plan([VariableSpec("v", (2,), "<i8", None), spec], (0,), lambda *_: 0, None)
    assert Plan.from_wire(dict(plan.to_wire())).variables[1] == spec
    assert Plan(*map(tuple, (plan.variables, plan.parts, plan.ps))).differs(plan) == ""


def test_a_plan_without_initializers_travels_as_before() -> None:
    plan = make_plan([VariableSpec("v", (2,), "<i8", None)], (0,), lambda *_: 0, None)
    assert "made" not in plan.to_wire()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dps.init.Normal(-0.1), "Normal: stddev is -0.1, it must be >= 0; try stddev=0.01"),
        (lambda: dps.init.TruncatedNormal(-1), "TruncatedNormal: stddev is -1.0, it must be >= 0"),
        (lambda: dps.init.Uniform(2, 1), "Uniform: low is 2.0, it must be at most high, which is 1.0; try low=1.0"),
        (lambda: dps.init.Normal(math.nan), "Normal: stddev is nan, it must be finite"),
        (lambda: dps.init.Normal(1.0, mean=math.inf), "Normal: mean is inf, it must be finite"),
        (lambda: dps.init.Constant("1"), "Constant: value is '1' of type str, it must be a number"),
        (lambda: dps.init.Normal(1.0, seed=-1), "Normal: seed is -1, it must be from 0 to 2"),
        (lambda: dps.init.HeNormal(1.5), "HeNormal: seed is 1.5, it must be a whole number"),
        (lambda: dps.init.HeNormal(MOST_SEED), "HeNormal: seed is"),
        (lambda: dps.init.Normal(), "Normal: missing a required argument: 'stddev'; it takes stddev, mean, seed"),
        (lambda: dps.init.Normal(0.1, sigma=1), "Normal: got sigma, which it does not take"),
        (lambda: dps.init.FromFile(""), "FromFile: path is '', it must be text of 1 to 4096 characters"),
        (lambda: dps.init.FromFile(3), "FromFile: path is 3, it must be text"),
        (lambda: dps.init.Glorot, "dps.init has no 'Glorot'; there are Zeros, Ones"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_line(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")) as raised:
        make()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("init", "shape", "dtype", "words"),
    [
        (dps.init.Normal(0.1), (2,), "int32", "gives fractions, and the variable is int32"),
        (dps.init.HeUniform(), (2,), "bool", "gives fractions, and the variable is bool"),
        (dps.init.GlorotUniform(), (), "float32", "needs a shape with fans, as (inputs, outputs), and the variable is"),
        (dps.init.Constant(0.5), (2,), "int8", "is no int8; wanted a whole number from -128 to 127"),
        (dps.init.Constant(300), (2,), "uint8", "is no uint8; wanted a whole number from 0 to 255"),
        (dps.init.Constant(-1), (2,), "uint64", "is no uint64"),
        (dps.init.Constant(2), (2,), "bool", "is no bool; wanted a whole number from 0 to 1"),
        (dps.init.Constant(1e6), (2,), "float16", "gives numbers beyond the largest float16, 65504"),
        (dps.init.Normal(1e5), (2,), "float16", "gives numbers beyond the largest float16"),
        (dps.init.Uniform(-3e38, 3e38), (2,), "float32", "gives numbers beyond the largest float32"),
        (dps.init.Normal, (2,), "float32", "wanted one of dps.init; try init=dps.init.Normal(...)"),
        (0.1, (2,), "float32", "init is 0.1, wanted one of dps.init"),
    ],
)  # fmt: skip
def test_an_initializer_that_does_not_fit_the_variable_is_refused_in_one_line(
    init: Any, shape: tuple[int, ...], dtype: str, words: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        checked(init, "user", shape, dtype)
    assert words in str(raised.value) and str(raised.value).startswith("user: ") and "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match=r"dps\.Variable: "):
        dps.Variable(shape=shape, dtype=dtype, init=init)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"value": np.zeros(3), "init": dps.init.Zeros(), "shape": 3}, "got a value and init; give the value alone"),
        ({"value": np.zeros(3), "shape": (3,)}, "got a value and shape"),
        ({"value": np.zeros(3), "dtype": "int8"}, "got a value and dtype"),
        ({"shape": (3,)}, "got a shape or dtype without init; add one of dps.init"),
        ({"init": dps.init.Normal(0.1)}, "without a shape; add one"),
        ({"init": dps.init.Zeros(), "shape": (3, -1)}, "shape is (3, -1), wanted whole numbers from 0"),
        ({"init": dps.init.Zeros(), "shape": (3.0,)}, "shape is (3.0,), wanted whole numbers"),
        ({"init": dps.init.Zeros(), "shape": "3"}, "shape is '3', wanted whole numbers"),
        ({"init": dps.init.Zeros(), "shape": (1 << 30, 1 << 30)}, "less than"),
        ({"init": dps.init.Zeros(), "shape": (1,) * 40}, "axes"),
        ({"init": dps.init.Zeros(), "shape": 3, "dtype": "float33"}, "dtype is 'float33', wanted one as 'float32'"),
        ({"init": dps.init.Zeros(), "shape": 3, "dtype": "complex64"}, "which cannot travel"),
        ({"init": dps.init.Zeros(), "shape": 3, "dtype": object}, "which cannot travel"),
    ],
)
def test_a_variable_of_wrong_arguments_is_refused_in_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        dps.Variable(**settings)
    assert (
        words in str(raised.value) and str(raised.value).startswith("dps.Variable: ") and "\n" not in str(raised.value)
    )


def test_a_variable_takes_a_number_as_shape_and_a_dtype_in_any_form() -> None:
    one = dps.Variable(shape=5, init=dps.init.Zeros())
    assert (one.shape, one.dtype) == ((5,), np.dtype("float32"))
    assert dps.Variable(shape=[np.int64(2), 3], dtype=np.float64, init=dps.init.Zeros()).shape == (2, 3)
    assert dps.Variable(shape=(), dtype=np.dtype("int8"), init=dps.init.Ones()).dtype == np.dtype("int8")


def test_fans_are_those_of_keras() -> None:
    """The doctests of keras/src/initializers/random_initializers.py, `compute_fans`."""
    assert [fans(shape) for shape in [(7,), (3, 5), (2, 3, 5), (2, 4, 3, 5)]] == [(7, 7), (3, 5), (6, 10), (24, 40)]


def test_glorot_and_he_follow_from_the_shape_as_in_keras() -> None:
    assert dps.init.GlorotUniform(1).drawn((3, 5)) == dps.init.Uniform(-math.sqrt(6 / 8), math.sqrt(6 / 8), 1)
    he = dps.init.HeUniform(2).drawn((2, 4, 3, 5))
    assert isinstance(he, dps.init.Uniform) and he.high == pytest.approx(math.sqrt(6 / 24)) == -he.low
    normal = dps.init.GlorotNormal(3).drawn((3, 5))
    assert isinstance(normal, dps.init.TruncatedNormal) and normal.seed == 3
    assert normal.stddev == pytest.approx(math.sqrt(2 / 8) / TRUNCATED_STDDEV)
    he_normal = dps.init.HeNormal().drawn((10,))
    assert isinstance(he_normal, dps.init.TruncatedNormal)
    assert he_normal.stddev == pytest.approx(math.sqrt(2 / 10) / TRUNCATED_STDDEV)
    assert dps.init.HeUniform().drawn((0, 5)) == dps.init.Uniform(-math.sqrt(6), math.sqrt(6))


def made_wire(made: Any) -> dict[str, Any]:
    specs = [VariableSpec("w", (4, 2), "<f4", None), VariableSpec("n", (), "<i8", None)]
    return {**make_plan(specs, (0,), lambda *_: 0, None).to_wire(), "made": made}


@pytest.mark.parametrize(
    "made",
    [
        3, [3], [[0]], [[0, {}]], [[0, {"kind": "exec"}]], [[0, {"kind": ["normal"]}]], [[9, {"kind": "zeros"}]],
        [[-1, {"kind": "zeros"}]], [[0, {"kind": "zeros"}], [0, {"kind": "ones"}]], [[True, {"kind": "zeros"}]],
        [[0, {"kind": "normal", "stddev": -1.0, "mean": 0.0, "seed": 0}]],
        [[0, {"kind": "normal", "stddev": math.nan, "mean": 0.0, "seed": 0}]],
        [[0, {"kind": "normal", "stddev": 1.0, "mean": 0.0, "seed": 1 << 63}]],
        [[0, {"kind": "normal", "stddev": 1.0, "mean": 0.0}]], [[0, {"kind": "zeros", "more": 1}]],
        [[0, {"kind": "constant", "value": 1e39}]], [[1, {"kind": "he_normal", "seed": 0}]],
        [[1, {"kind": "constant", "value": 0.5}]], [[0, {"kind": "file", "path": "a" * 5000, "name": None}]],
        [[0, {"kind": "file", "path": b"a", "name": None}]],
    ],
)  # fmt: skip
def test_an_initializer_from_the_network_is_checked(made: Any) -> None:
    with pytest.raises((ProtocolError, ConfigError)):
        Plan.from_wire(made_wire(made))


PLAIN = st.none() | st.booleans() | st.integers(-5, 1 << 64) | st.floats() | st.text(max_size=4) | st.binary(max_size=4)
FIELDS = st.sampled_from(["kind", "value", "low", "high", "stddev", "mean", "seed", "path", "name"])
KINDS = st.sampled_from([init.kind for init in ALL])


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(FIELDS, PLAIN, max_size=5), KINDS, st.integers(0, 1))
def test_any_wire_form_is_an_initializer_or_an_error_of_the_protocol(
    fields: dict[str, Any], kind: str, index: int
) -> None:
    try:
        plan = Plan.from_wire(made_wire([[index, {"kind": kind, **fields}]]))
    except (ProtocolError, ConfigError):
        return
    init = plan.variables[index].init
    assert init is not None and from_wire(init).to_wire() == init
