"""Every optimizer through a running ps, against the formulas in plain numpy and, where it is installed, torch.optim.

The model has a few variables for every optimizer, each with settings of its own, so that one cluster serves all:
`w` and `scalar` dense, `table` by rows of a sparse table, `rows` by rows at even steps and dense at odd ones. In the
mixed runs `w` has no gradient at every fifth step, so that its t is not the global step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dps
from dps import optim
from tests.in_process import cluster, on_all

STEPS = 20
ROWS, DIM = 11, 3
Array = Any  # float64
State = dict[str, Array]


# -- the rules, from the formulas: w, g and the state of the touched elements -------------------------------------


def sgd(o: Any, w: Array, g: Array, s: State, lr: float, t: int) -> Array:
    return w - lr * (g + o.weight_decay * w)


def momentum(o: Any, w: Array, g: Array, s: State, lr: float, t: int) -> Array:
    s["v"] = o.momentum * s.get("v", np.zeros_like(w)) + g
    return w - lr * (g + o.momentum * s["v"]) if o.nesterov else w - lr * s["v"]


def adagrad(o: Any, w: Array, g: Array, s: State, lr: float, t: int) -> Array:
    s["a"] = s.get("a", np.full_like(w, o.initial_accumulator)) + g * g
    return w - lr * g / (np.sqrt(s["a"]) + o.epsilon)


def rmsprop(o: Any, w: Array, g: Array, s: State, lr: float, t: int) -> Array:
    zero = np.zeros_like(w)
    s["sq"] = o.decay * s.get("sq", zero) + (1 - o.decay) * g * g
    s["avg"] = o.decay * s.get("avg", zero) + (1 - o.decay) * g
    under = s["sq"] - s["avg"] ** 2 if o.centered else s["sq"]
    s["buf"] = o.momentum * s.get("buf", zero) + g / (np.sqrt(under) + o.epsilon)
    return w - lr * s["buf"]


def adam(o: Any, w: Array, g: Array, s: State, lr: float, t: int) -> Array:
    w = w - lr * getattr(o, "weight_decay", 0.0) * w
    s["m"] = o.beta1 * s.get("m", np.zeros_like(w)) + (1 - o.beta1) * g
    s["v"] = o.beta2 * s.get("v", np.zeros_like(w)) + (1 - o.beta2) * g * g
    return w - lr * (s["m"] / (1 - o.beta1**t)) / (np.sqrt(s["v"] / (1 - o.beta2**t)) + o.epsilon)


def ftrl(o: Any, w: Array, g: Array, s: State, lr: float, t: int) -> Array:
    n, z, p = s.get("n", np.full_like(w, o.initial_accumulator)), s.get("z", np.zeros_like(w)), o.learning_rate_power
    after = n + g * g
    z = z + g - (after**-p - n**-p) / lr * w
    s["n"], s["z"] = after, z
    q = (after**-p + o.beta) / lr + 2 * o.l2
    return np.where(np.abs(z) > o.l1, (np.sign(z) * o.l1 - z) / q, 0.0)


RULES = {
    optim.SGD: sgd, optim.Momentum: momentum, optim.Adagrad: adagrad, optim.RMSProp: rmsprop, optim.Adam: adam,
    optim.AdamW: adam, optim.Ftrl: ftrl,
}  # fmt: skip
OPTIMIZERS: dict[str, optim.Optimizer] = {
    "sgd": optim.SGD(0.1),
    "sgd_decay": optim.SGD(0.1, weight_decay=0.05),
    "momentum": optim.Momentum(0.05),
    "nesterov": optim.Momentum(0.05, momentum=0.8, nesterov=True),
    "adagrad": optim.Adagrad(0.2),
    "adagrad_no_epsilon": optim.Adagrad(0.2, epsilon=0),
    "rmsprop": optim.RMSProp(0.01),
    "rmsprop_centered": optim.RMSProp(0.01, decay=0.8, momentum=0.5, centered=True),
    "adam": optim.Adam(0.02),
    "adamw": optim.AdamW(0.02, beta1=0.8, weight_decay=0.1),
    "ftrl": optim.Ftrl(0.1),
    "ftrl_l1_l2": optim.Ftrl(0.1, learning_rate_power=-0.6, l1=0.4, l2=0.1, beta=1.0),
    "exponential": optim.SGD(optim.Exponential(0.2, 0.7, 5)),
    "staircase": optim.Momentum(optim.Exponential(0.2, 0.5, 6, staircase=True)),
    "cosine": optim.Adam(optim.Cosine(0.1, 15, alpha=0.1)),
    "piecewise": optim.Adagrad(optim.Piecewise([4, 11], [0.2, 0.1, 0.05])),
    "warmup": optim.RMSProp(optim.WarmUp(optim.Exponential(0.1, 0.9, 3), 7)),
}
EVERY_OPTIMIZER = pytest.mark.parametrize("case", list(OPTIMIZERS))


class Reference:
    """One logical variable, its slots and its t, updated by the rules in numpy; all of it, or some rows."""

    def __init__(self, optimizer: optim.Optimizer, w: Array) -> None:
        self.optimizer, self.w, self.t = optimizer, w.copy(), 0
        self._slots: State = {}

    def apply(self, gradient: Any, step: int) -> None:
        """`step`: the global step that this update makes."""
        if gradient is None:
            return
        self.t += 1
        rule, lr = RULES[type(self.optimizer)], self.optimizer.rate(step - 1)
        if not isinstance(gradient, dps.Rows):
            self.w = rule(self.optimizer, self.w, gradient, self._slots, lr, self.t)
            return
        rows, place = np.unique(gradient.indices, return_inverse=True)
        g = np.zeros((len(rows), *self.w.shape[1:]))
        np.add.at(g, place, gradient.values)
        if not self._slots:  # a first update of nothing makes the slots
            rule(self.optimizer, self.w, np.zeros_like(self.w), self._slots, 1.0, 1)
        touched = {name: slot[rows] for name, slot in self._slots.items()}
        self.w[rows] = rule(self.optimizer, self.w[rows], g, touched, lr, self.t)
        for name, slot in self._slots.items():
            slot[rows] = touched[name]


# -- the model and its gradients ----------------------------------------------------------------------------------


def first_values() -> dict[str, Any]:
    draw = np.random.default_rng(7)
    return {
        case: {
            "w": dps.Variable(draw.normal(size=(7, 2)), optimizer=optimizer),
            "scalar": dps.Variable(draw.normal(size=()), optimizer=optimizer),
            "table": dps.Variable(draw.normal(size=(ROWS, DIM)), optimizer=optimizer, sparse=True),
            "rows": dps.Variable(draw.normal(size=(ROWS, DIM)), optimizer=optimizer),
        }
        for case, optimizer in OPTIMIZERS.items()
    }


def gradients(worker: int, step: int, dense: bool) -> dict[str, Any]:
    """The same for every optimizer: what one worker pushes at a step, counted from 0; never twice the same."""
    draw = np.random.default_rng([worker, step])
    size = 1 + step / 4

    def some_rows() -> dps.Rows:
        indices = draw.integers(0, ROWS if step > 3 else 4, size=6)  # the first steps touch the first rows only
        indices[3] = indices[0]
        return dps.Rows(indices, size * draw.normal(size=(6, DIM)))

    tables: dict[str, Any]
    if dense:
        tables = {name: size * draw.normal(size=(ROWS, DIM)) for name in ("table", "rows")}
    else:
        tables = {"table": some_rows(), "rows": size * draw.normal(size=(ROWS, DIM)) if step % 2 else some_rows()}
    w = None if not dense and step % 5 == 3 else size * draw.normal(size=(7, 2))
    return {"w": w, "scalar": np.asarray(size * draw.normal()), **tables}


def train(server: Any, dense: bool, partitioner: Any = None, update: Any = None) -> Any:
    with dps.Session(server, first_values(), update=update, partitioner=partitioner, timeout=120) as session:
        for step in range(STEPS):
            session.pull()
            assert session.push(dict.fromkeys(OPTIMIZERS, gradients(server.task, step, dense))).accepted
        return session.pull()


def mean(pushed: list[Any]) -> Any:
    """The mean of a synchronous step; of rows, each by the number of pushes that touched it."""
    if pushed[0] is None or not isinstance(pushed[0], dps.Rows):
        return None if pushed[0] is None else sum(pushed) / len(pushed)
    count = np.zeros(ROWS)
    for gradient in pushed:
        count[np.unique(gradient.indices)] += 1
    indices = np.concatenate([gradient.indices for gradient in pushed])
    values = np.concatenate([gradient.values for gradient in pushed])
    return dps.Rows(indices, values / count[indices][:, None])


@functools.cache
def expected(workers: int, dense: bool) -> dict[str, dict[str, Array]]:
    """The values after all steps by the reference; `workers` gradients make a step."""
    found: dict[str, dict[str, Array]] = {}
    pushed = [[gradients(worker, step, dense) for worker in range(workers)] for step in range(STEPS)]
    for case, variables in first_values().items():
        found[case] = {}
        for name, variable in variables.items():
            reference = Reference(OPTIMIZERS[case], variable.value)
            for step, of_step in enumerate(pushed):
                reference.apply(mean([g[name] for g in of_step]), step + 1)
            found[case][name] = reference.w
    return found


Run = Callable[[], Any]
RUNS: dict[str, tuple[int, bool, Run]] = {}


def a_run(workers: int, dense: bool) -> Callable[[Run], Run]:
    def note(run: Run) -> Run:
        cached = functools.cache(run)
        RUNS[run.__name__] = (workers, dense, cached)
        return cached

    return note


@a_run(workers=1, dense=True)
def dense_async() -> Any:
    with cluster(2, 1, "inproc") as (server,):
        return train(server, dense=True)


@a_run(workers=1, dense=False)
def mixed_async() -> Any:
    with cluster(2, 1, "inproc") as (server,):
        return train(server, dense=False)


@a_run(workers=1, dense=False)
def mixed_async_in_parts() -> Any:
    with cluster(3, 1, "inproc") as (server,):
        return train(server, dense=False, partitioner=dps.partition.Fixed(3))


@a_run(workers=2, dense=False)
def mixed_sync() -> Any:
    with cluster(2, 2, "inproc") as servers:
        first, second = on_all(servers, lambda server: train(server, False, update=dps.SyncReplicas()))
    for case in OPTIMIZERS:
        for name in first[case]:
            np.testing.assert_array_equal(first[case][name], second[case][name])
    return first


@pytest.mark.slow
@EVERY_OPTIMIZER
@pytest.mark.parametrize("run", list(RUNS))
def test_twenty_steps_through_a_ps_are_those_of_the_formulas(run: str, case: str) -> None:
    workers, dense, values = RUNS[run]
    for name, wanted in expected(workers, dense)[case].items():
        np.testing.assert_allclose(values()[case][name], wanted, rtol=1e-9, atol=1e-9, err_msg=name)


# -- torch --------------------------------------------------------------------------------------------------------

TORCH: dict[str, Callable[[Any, Any], Any]] = {
    "sgd_decay": lambda torch, w: torch.SGD(w, lr=0.1, weight_decay=0.05),
    "momentum": lambda torch, w: torch.SGD(w, lr=0.05, momentum=0.9),
    "nesterov": lambda torch, w: torch.SGD(w, lr=0.05, momentum=0.8, nesterov=True),
    "adagrad": lambda torch, w: torch.Adagrad(w, lr=0.2, initial_accumulator_value=0.1, eps=1e-10),
    "rmsprop": lambda torch, w: torch.RMSprop(w, lr=0.01, alpha=0.9, eps=1e-8),
    "rmsprop_centered": lambda torch, w: torch.RMSprop(w, lr=0.01, alpha=0.8, eps=1e-8, momentum=0.5, centered=True),
    "adam": lambda torch, w: torch.Adam(w, lr=0.02, betas=(0.9, 0.999), eps=1e-8),
    "adamw": lambda torch, w: torch.AdamW(w, lr=0.02, betas=(0.8, 0.999), eps=1e-8, weight_decay=0.1),
}


@pytest.mark.slow  # loads torch
@pytest.mark.parametrize("case", list(TORCH))
def test_twenty_steps_through_a_ps_are_those_of_torch(case: str) -> None:
    torch = pytest.importorskip("torch")
    variables = {n: torch.tensor(v.value, requires_grad=True) for n, v in first_values()[case].items()}
    optimizer = TORCH[case](torch.optim, list(variables.values()))
    for step in range(STEPS):
        for name, gradient in gradients(0, step, dense=True).items():
            variables[name].grad = torch.tensor(gradient)
        optimizer.step()
    for name, wanted in variables.items():
        np.testing.assert_allclose(
            dense_async()[case][name], wanted.detach().numpy(), rtol=1e-9, atol=1e-9, err_msg=name
        )
