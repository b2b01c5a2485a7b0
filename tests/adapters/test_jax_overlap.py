"""`dps.jax.optimizer(overlap=True)`: the push of a step is on its way while the program computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import ConfigError
from tests.in_process import cluster
from tests.tuned import tune

jax = pytest.importorskip("jax", reason='needs JAX: pip install "dps[jax]"')
optax = pytest.importorskip("optax", reason='needs optax: pip install "dps[jax]"')
jnp = jax.numpy


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late answer would have the loop pull newer values."""
    tune(monkeypatch, client__step_patience_s=20.0, nodes__first_resend_s=20.0)


def first() -> Any:
    return {"layer": {"w": jnp.arange(6.0).reshape(2, 3)}, "b": jnp.ones(3)}


def gradients(values: Any, turn: int) -> Any:
    return jax.tree.map(lambda value: 0.5 * value + turn, values)


def overlapped(server: Any, rule: Any = None, **settings: Any) -> Any:
    settings.setdefault("update", "async")
    return dps.jax.optimizer(server, first(), rule or dps.optim.SGD(0.1), overlap=True, **settings)


@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "sockets"])
@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_each_step_has_the_values_right_after_the_push_before(rule: str, ps: int, shared: bool) -> None:
    ours, theirs = (dps.optim.SGD(0.1), optax.sgd(0.1)) if rule == "sgd" else (dps.optim.Adam(0.01), optax.adam(0.01))
    with cluster(ps, 1) as (server,), overlapped(server, ours, shared_memory=shared) as opt:

        @jax.jit
        def step(params: Any, state: Any, turn: Any) -> Any:
            updates, state = opt.update(gradients(params, turn), state, params)
            return optax.apply_updates(params, updates), state

        params = opt.pull()
        state, applied, own = opt.init(params), first(), theirs.init(first())
        read = applied
        for turn in range(10):
            updates, own = theirs.update(gradients(read, turn), own, applied)
            read, applied = applied, optax.apply_updates(applied, updates)
            params, state = step(params, state, float(turn))
            jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-5), params, read)
        newest = opt.pull()
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-5), newest, applied)


def test_an_error_of_a_push_is_raised_by_the_next_step_and_the_loop_goes_on() -> None:
    with cluster(1, 1) as (server,):
        opt = overlapped(server)
        params = opt.pull()
        state = opt.init(params)
        opt.update(jax.tree.map(lambda value: jnp.full_like(value, jnp.nan), params), state, params)
        with pytest.raises(Exception, match="has NaN"):
            jax.block_until_ready(opt.update(gradients(params, 1), state, params))
        for _ in range(3):
            updates, state = opt.update(gradients(params, 1), state, params)
            params = optax.apply_updates(params, updates)
        assert opt.pull()["b"][0] < 1
        opt.update(jax.tree.map(lambda value: jnp.full_like(value, jnp.inf), params), state, params)
        with pytest.raises(ValueError, match="has NaN or infinite"):
            opt.close()


def test_what_the_program_assigns_and_pulls_is_not_undone() -> None:
    with cluster(1, 1) as (server,), overlapped(server) as opt:
        params = opt.pull()
        state = opt.init(params)
        for turn in range(3):
            updates, state = opt.update(gradients(params, turn), state, params)
            params = optax.apply_updates(params, updates)
        jax.block_until_ready(params)
        opt.session.assign({"b": np.full(3, 7, np.float32)})
        params = opt.pull()
        assert params["b"].tolist() == [7, 7, 7]
        zeros = jax.tree.map(jnp.zeros_like, params)
        for _ in range(3):
            updates, state = opt.update(zeros, state, params)
            params = optax.apply_updates(params, updates)
            assert params["b"].tolist() == [7, 7, 7]


def test_modes_that_need_the_step_before_say_so() -> None:
    for update, mode in (("sync", "sync"), (dps.Local(2), "local")):
        with cluster(1, 1) as (server,), pytest.raises(ConfigError, match=f"prefetch in {mode} mode"):
            overlapped(server, update=update)
