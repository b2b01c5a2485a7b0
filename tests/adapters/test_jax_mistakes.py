"""Mistakes of programs with `dps.jax.optimizer` that were wrong results without a word: each is told once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dps
from tests.in_process import cluster

jax = pytest.importorskip("jax", reason='needs JAX: pip install "dps[jax]"')
optax = pytest.importorskip("optax", reason='needs optax: pip install "dps[jax]"')
jnp = jax.numpy

ONES = {"w": jnp.ones(3)}


@pytest.fixture
def server() -> Iterator[dps.Server]:
    with cluster(transport="inproc") as (worker,):
        yield worker


def optimizer(server: Any, params: Any) -> Any:
    return dps.jax.optimizer(server, params, dps.optim.SGD(0.1))


def train(opt: Any, params: Any, steps: int, grads: Any = ONES, front: Any = None) -> Any:
    """Steps with the same gradients, compiled."""
    tx = opt if front is None else optax.chain(front, opt)
    state = tx.init(params)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(steps):
        params, state = step(params, state)
    return jax.block_until_ready(params)


def test_a_program_that_begins_with_other_parameters_than_the_run_is_told(server: dps.Server, caplog: Any) -> None:
    """Its first gradients belonged to these, and were applied to the values of the run."""
    with optimizer(server, {"w": jnp.zeros(3)}) as opt:
        train(opt, {"w": jnp.full(3, 5.0)}, 3)
    (told,) = [record.getMessage() for record in caplog.records]
    assert "of the first update are not those of the run (the first is w)" in told and "params = opt.pull()" in told


def test_parameters_that_are_those_of_the_run_need_no_pull(server: dps.Server, caplog: Any) -> None:
    with optimizer(server, {"w": jnp.zeros(3)}) as opt:
        train(opt, {"w": jnp.zeros(3)}, 3)
        train(opt, opt.pull(), 3)
    assert not caplog.records


def test_gradients_that_are_held_back_in_front_are_told(server: dps.Server, caplog: Any) -> None:
    """Each micro-step was a step of the ps, most of them without a gradient."""
    with optimizer(server, {"w": jnp.zeros(3)}) as opt:
        train(opt, opt.pull(), 4, front=optax.apply_every(2))
    (told,) = [record.getMessage() for record in caplog.records]
    assert "all gradients of an update are 0" in told and "optax.apply_every" in told


def test_gradients_of_which_some_are_not_0_are_nothing_to_tell(server: dps.Server, caplog: Any) -> None:
    last = {"w": jnp.zeros(1000).at[999].set(1.0), "v": jnp.zeros((40, 3), jnp.bfloat16)}
    with optimizer(server, jax.tree.map(jnp.zeros_like, last)) as opt:
        train(opt, opt.pull(), 2, last)
    assert not caplog.records


def test_two_models_of_one_task_are_told_that_they_have_the_same_values(server: dps.Server, caplog: Any) -> None:
    """The second of two networks got the values of the first without a word."""
    with optimizer(server, ONES):
        pass
    with optimizer(server, ONES):
        assert not caplog.records
        with optimizer(server, ONES):
            (told,) = [record.getMessage() for record in caplog.records]
    assert "two models of this task" in told
