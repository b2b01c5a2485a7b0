"""Definitions of optimizers and schedules: values by hand from the formulas, and what is refused."""

from __future__ import annotations

import math
import re
import subprocess
import sys

import msgpack
import numpy as np
import pytest

from dps import optim
from dps.errors import ConfigError

EVERY_OPTIMIZER = [
    optim.SGD(0.5, weight_decay=0.25),
    optim.Momentum(0.1, momentum=0.8, nesterov=True),
    optim.Adagrad(0.01),
    optim.RMSProp(optim.Exponential(0.1, 0.5, 10, staircase=True), momentum=0.9, centered=True),
    optim.Adam(),
    optim.AdamW(optim.Cosine(0.1, 100, alpha=0.1), weight_decay=0.2),
    optim.Ftrl(optim.WarmUp(optim.Piecewise([10, 20], [1.0, 0.1, 0.01]), 5), l1=0.1),
    optim.SGD(optim.Constant(0.3)),
]


def test_importing_definitions_loads_neither_numba_nor_numpy():
    code = "import sys, dps.optim; print([name for name in ('numba', 'numpy') if name in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "[]"
    )


@pytest.mark.parametrize("optimizer", EVERY_OPTIMIZER, ids=lambda optimizer: optimizer.name)
def test_an_optimizer_comes_back_from_the_wire_equal(optimizer):
    again = optim.from_wire(msgpack.unpackb(msgpack.packb(optimizer.to_wire())))
    assert again == optimizer
    assert type(again) is type(optimizer)
    assert hash(again) == hash(optimizer)


def test_the_wire_form_is_names_and_numbers():
    assert optim.Adagrad(optim.WarmUp(1, 10)).to_wire() == {
        "name": "adagrad",
        "learning_rate": {"name": "warmup", "target": 1.0, "steps": 10},
        "initial_accumulator": 0.1,
        "epsilon": 1e-10,
        "rowwise": False,
    }


def test_defaults_are_those_of_the_documentation():
    assert optim.Momentum(0.1) == optim.Momentum(0.1, momentum=0.9, nesterov=False)
    assert optim.Adagrad(0.1) == optim.Adagrad(0.1, initial_accumulator=0.1, epsilon=1e-10)
    assert optim.Adagrad(0.1, epsilon=0).to_wire()["epsilon"] == 0.0  # TensorFlow 1's form
    assert optim.RMSProp(0.1) == optim.RMSProp(0.1, decay=0.9, momentum=0, epsilon=1e-8, centered=False)
    assert optim.Adam() == optim.Adam(learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8)
    assert optim.AdamW() == optim.AdamW(0.001, 0.9, 0.999, 1e-8, weight_decay=0.01)
    assert optim.Ftrl(0.1) == optim.Ftrl(0.1, -0.5, initial_accumulator=0.1, l1=0, l2=0, beta=0)
    assert optim.SGD(0.1) == optim.SGD(0.1, weight_decay=0)


def test_adam_and_adamw_with_equal_numbers_are_not_equal():
    assert optim.Adam(0.1) != optim.AdamW(0.1, weight_decay=0)


def test_slots_are_only_those_that_the_settings_need():
    assert optim.SGD(0.1).slots == ()
    assert optim.Momentum(0.1).slots == ("velocity",)
    assert optim.Adagrad(0.1).slots == ("accumulator",)
    assert optim.RMSProp(0.1).slots == ("square",)
    assert optim.RMSProp(0.1, centered=True).slots == ("square", "mean")
    assert optim.RMSProp(0.1, momentum=0.9).slots == ("square", "velocity")
    assert optim.RMSProp(0.1, momentum=0.9, centered=True).slots == ("square", "mean", "velocity")
    assert optim.Adam().slots == optim.AdamW().slots == ("first_moment", "second_moment")
    assert optim.Ftrl(0.1).slots == ("accumulator", "linear")


def test_a_constant_rate_is_the_same_at_every_step():
    assert [optim.SGD(0.25).rate(step) for step in (0, 7)] == [0.25, 0.25]
    assert [optim.SGD(optim.Constant(0.25)).rate(step) for step in (0, 7)] == [0.25, 0.25]


def test_exponential_decay_is_smooth_or_in_stairs():
    assert optim.Exponential(8.0, 0.25, 10).at(5) == 4.0  # 8 * 0.25 ** (1/2)
    assert optim.Exponential(8.0, 0.25, 10).at(20) == 0.5  # 8 * 0.25 ** 2
    stairs = optim.Exponential(8.0, 0.25, 10, staircase=True)
    assert [stairs.at(step) for step in (0, 9, 10, 19, 20)] == [8.0, 8.0, 2.0, 2.0, 0.5]


def test_exponential_growth_past_the_floats_is_infinite_and_raises_nothing():
    assert optim.Exponential(1.0, 2.0, 1).at(5000) == math.inf


def test_cosine_decay_ends_at_its_fraction_and_stays_there():
    cosine = optim.Cosine(2.0, 100, alpha=0.1)
    assert cosine.at(0) == 2.0
    assert cosine.at(50) == pytest.approx(1.1)  # 2 * (0.9 * 0.5 + 0.1)
    assert cosine.at(100) == pytest.approx(0.2)
    assert cosine.at(1000) == cosine.at(100)


def test_a_boundary_of_a_piecewise_rate_still_has_the_value_before_it():
    piecewise = optim.Piecewise([10, 20], [1.0, 0.5, 0.1])
    assert [piecewise.at(step) for step in (0, 10, 11, 20, 21, 99)] == [1.0, 1.0, 0.5, 0.5, 0.1, 0.1]


def test_warm_up_rises_in_a_line_and_then_starts_its_target():
    assert [optim.WarmUp(0.8, 4).at(step) for step in (0, 1, 3, 4, 100)] == pytest.approx([0, 0.2, 0.6, 0.8, 0.8])
    stairs = optim.WarmUp(optim.Exponential(8.0, 0.5, 10, staircase=True), 4)
    assert [stairs.at(step) for step in (2, 4, 13, 14)] == [4.0, 8.0, 8.0, 4.0]


@pytest.mark.parametrize(
    ("make", "field", "suggestion"),
    [
        (lambda: optim.SGD(-0.1), "learning_rate is -0.1", "try learning_rate=0.01"),
        (lambda: optim.SGD(math.inf), "learning_rate is inf, it must be finite", "try learning_rate=0.01"),
        (lambda: optim.SGD(10**400), "it must be finite", "try learning_rate"),
        (lambda: optim.SGD(0.1, weight_decay=math.nan), "weight_decay is nan", "try weight_decay"),
        (lambda: optim.Momentum(0.1, momentum=1.0), "momentum is 1.0, it must be at least 0 and below 1", "try"),
        (lambda: optim.Adagrad(0.1, epsilon=-1e-9), "epsilon is -1e-09, it must be >= 0", "try epsilon=1e-10"),
        (lambda: optim.Adagrad(0.1, 0, 0), "epsilon is 0.0 and initial_accumulator is 0.0, one of", "accumulator=0.1"),
        (lambda: optim.Adagrad(0.1, 1e-50, 0), "initial_accumulator is 1e-50, one of them must be > 0", "try initial"),
        (lambda: optim.Adagrad(0.1, initial_accumulator=-1), "initial_accumulator is -1.0", "try"),
        (lambda: optim.RMSProp(0.1, decay=-0.1), "decay is -0.1", "try decay=0.9"),
        (lambda: optim.Adam(beta1=1), "beta1 is 1.0", "try beta1=0.9"),
        (lambda: optim.AdamW(beta2=1.5), "AdamW: beta2 is 1.5", "try beta2=0.999"),
        (lambda: optim.Ftrl(0), "learning_rate is 0.0, it must be > 0", "try learning_rate=0.01"),
        (lambda: optim.Ftrl(0.1, learning_rate_power=0.5), "it must be <= 0", "try learning_rate_power=-0.5"),
        (lambda: optim.Exponential(0.1, 0, 10), "decay_rate is 0.0", "try decay_rate=0.96"),
        (lambda: optim.Cosine(0.1, 0), "decay_steps is 0.0, it must be a whole number", "try decay_steps=1000"),
        (lambda: optim.WarmUp(0.1, 2.5), "steps is 2.5", "try steps=1000"),
        (lambda: optim.Piecewise([1, 2], [1.0, 2.0]), "one longer than boundaries, here 3 values", "try values"),
        (lambda: optim.Piecewise([2, 1], [1, 2, 3]), "boundaries is [2, 1], it must be strictly", "boundaries=[1, 2]"),
        (lambda: optim.Piecewise([1.5], [1, 2]), "boundaries is [1.5], it must be whole numbers of steps", "try"),
        (lambda: optim.Piecewise([math.nan], [1, 2]), "boundaries is [nan], it must be whole numbers of steps", "try"),
        (lambda: optim.Piecewise(["a"], [1, 2]), "boundaries is ['a'], it must be whole numbers of steps", "try"),
    ],
)
def test_a_number_out_of_range_is_refused_with_a_suggestion(make, field, suggestion):
    with pytest.raises(ValueError, match=f"{re.escape(field)}.*{re.escape(suggestion)}"):
        make()


@pytest.mark.parametrize("rate", ["0.1", None, True, optim.SGD(0.1)])
def test_a_rate_that_is_no_number_and_no_schedule_is_a_type_error(rate):
    with pytest.raises(TypeError, match=r"learning_rate is .* must be a number"):
        optim.SGD(rate)


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: optim.PerStep(0.1), "values is 0.1 of type float, it must be a list of numbers; try values="),
        (lambda: optim.Piecewise(5, [1, 2]), "boundaries is 5 of type int, it must be a list of numbers; try"),
        (lambda: optim.SGD(np.array([0.1])), r"learning_rate is array.* of type ndarray, it must be one number; try"),
    ],
    ids=["values", "boundaries", "array"],
)
def test_a_list_for_a_number_and_a_number_for_a_list_are_type_errors_in_one_line(make, wanted):
    with pytest.raises(ConfigError, match=wanted) as raised:
        make()
    assert isinstance(raised.value, TypeError)


def test_whole_boundaries_of_any_type_are_taken():
    assert optim.Piecewise(np.array([1e4, 2e4]), np.array([0.1, 0.2, 0.3])) == optim.Piecewise(
        [10_000, 20_000], [0.1, 0.2, 0.3]
    )


def test_a_flag_that_is_no_bool_is_a_type_error():
    with pytest.raises(TypeError, match="nesterov is 1, it must be True or False"):
        optim.Momentum(0.1, nesterov=1)


def test_an_unknown_optimizer_on_the_wire_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'lion'.*adagrad, adam, adamw, ftrl, momentum, rmsprop, sgd"):
        optim.from_wire({"name": "lion"})


@pytest.mark.parametrize(
    "wire",
    [
        7,
        [],
        {},
        {"name": ["sgd"]},
        {"name": "sgd", "learning_rate": 0.1, "clip": 1.0},
        {"name": "sgd", "learning_rate": {"name": "sgd", "learning_rate": 0.1}},
        {"name": "sgd", "learning_rate": {"name": "warmup", "target": {"name": "nothing"}, "steps": 1}},
    ],
)
def test_what_is_no_optimizer_on_the_wire_is_refused(wire):
    with pytest.raises((ValueError, TypeError), match="try"):
        optim.from_wire(wire)


def test_schedules_nested_without_end_on_the_wire_are_refused():
    rate: object = 0.1
    for _ in range(200):
        rate = {"name": "warmup", "target": rate, "steps": 1}
    with pytest.raises(ValueError, match="nested"):
        optim.from_wire({"name": "sgd", "learning_rate": rate})
