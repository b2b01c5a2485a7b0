"""`dps.jax.optimizer`: an optax transformation gives the curves of plain optax, and the values of the ps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import dps
from tests.in_process import cluster, on_all

jax = pytest.importorskip("jax", reason='needs JAX: pip install "dps[jax]"')
optax = pytest.importorskip("optax", reason='needs optax: pip install "dps[jax]"')
jnp = jax.numpy

STEPS = 100
NEAR = 1e-6 if jax.default_backend() == "cpu" else 1e-3
"""Between losses of about 1; a GPU multiplies float32 as TF32."""
BETA2 = 1 - 2**-10
"""Adam's 0.999, but exact in float32. Of 0.999 itself optax computes `1 - beta2**t` in float32, 1e-5 off at first."""
RULES: dict[str, tuple[dps.optim.Optimizer, Any]] = {
    "sgd": (dps.optim.SGD(0.1), optax.sgd(0.1)),
    "momentum": (dps.optim.Momentum(0.05, 0.9), optax.sgd(0.05, momentum=0.9)),
    "adagrad": (dps.optim.Adagrad(0.02), optax.adagrad(0.02, eps=1e-10)),
    "adam": (dps.optim.Adam(0.002, beta2=BETA2), optax.adam(0.002, b2=BETA2)),
    "adamw": (
        dps.optim.AdamW(0.002, beta2=BETA2, weight_decay=0.01),
        optax.adamw(0.002, b2=BETA2, weight_decay=0.01),
    ),
}


class Layer(NamedTuple):
    w: Any
    b: Any


@cache
def data() -> tuple[Any, Any]:
    x = np.random.default_rng(1).standard_normal((64, 8)).astype(np.float32)
    return x, 0.3 * np.sin(x.sum(axis=1, keepdims=True))


def params(dtype: str = "float32") -> Any:
    """A pytree of dicts, a list, a tuple with names, and a scalar."""
    rng = np.random.default_rng(2)

    def normal(*shape: int) -> Any:
        return jnp.asarray(0.3 * rng.standard_normal(shape), dtype)

    layers = [Layer(normal(8, 32), jnp.zeros(32, dtype)), Layer(normal(32, 1), jnp.zeros(1, dtype))]
    return {"layers": layers, "scale": jnp.ones((), dtype)}


def loss_of(values: Any, x: Any, y: Any) -> Any:
    first, last = values["layers"]
    hidden = jnp.tanh(x @ first.w + first.b)
    return jnp.square(values["scale"] * (hidden @ last.w + last.b) - y).mean()


def compiled(tx: Any) -> Callable[..., Any]:
    """A step of training inside `jit`: parameters, state and a batch to parameters, state and the loss before."""

    @jax.jit
    def step(values: Any, state: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(values, x, y)
        updates, state = tx.update(grads, state, values, value=loss)
        return optax.apply_updates(values, updates), state, loss

    return step


def clipped(rule: Any) -> Any:
    return optax.chain(optax.clip_by_global_norm(0.1), rule)


def trained(tx: Any, values: Any, steps: int = STEPS, batch: Any = None) -> tuple[list[float], Any]:
    step, state, losses = compiled(tx), tx.init(values), []
    x, y = batch or data()
    for _ in range(steps):
        values, state, loss = step(values, state, x, y)
        losses.append(float(loss))
    return losses, values


@contextmanager
def opened(given: Any, rule: dps.optim.Optimizer = RULES["sgd"][0], **session: Any) -> Iterator[Any]:
    with dps.Server.create_local_server() as server, dps.jax.optimizer(server, given, rule, **session) as opt:
        yield opt


def units_away(values: Any, others: Any) -> float:
    """The largest difference in units in the last place of the ps's value."""

    def units(one: Any, other: Any) -> float:
        one, other = np.asarray(one), np.asarray(other)
        digits = jnp.finfo(one.dtype).nmant
        unit = np.ldexp(1.0, np.frexp(np.abs(other.astype(np.float64)))[1] - 1 - digits)
        return float((np.abs(one.astype(np.float64) - other.astype(np.float64)) / unit).max(initial=0))

    return max(jax.tree.leaves(jax.tree.map(units, values, others)))


# -- curves and values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_the_loss_curve_is_that_of_plain_optax_with_clipping_in_front(name: str) -> None:
    rule, plain = RULES[name]
    wanted, _ = trained(clipped(plain), params())
    with opened(params(), rule) as opt:
        got, values = trained(clipped(opt), opt.pull())
        assert opt.session.global_step == STEPS
        assert units_away(values, opt.pull()) <= 1
    assert np.abs(np.subtract(got, wanted)).max() <= NEAR
    assert got[-1] < 0.7 * got[0]


@pytest.mark.slow
def test_the_loss_curve_of_adam_with_its_usual_betas_is_that_of_optax_in_double_precision() -> None:
    """Plain optax in float32 is 3e-6 away from both."""
    with opened(params(), dps.optim.Adam(0.002)) as opt:
        got, _ = trained(clipped(opt), opt.pull())
    if hasattr(jax, "enable_x64"):
        doubles = jax.enable_x64
    else:  # before JAX 0.8
        from jax.experimental import enable_x64 as doubles
    with doubles(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, "float64"), params())
        wanted, _ = trained(clipped(optax.adam(0.002)), wide)
    assert np.abs(np.subtract(got, wanted)).max() <= NEAR


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_parameters_stay_within_one_unit_of_the_values_of_the_ps(dtype: str) -> None:
    """After each step, not only after the first: differences do not add up."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    with opened(params(dtype), dps.optim.Momentum(0.05)) as opt:
        step, values, state = compiled(opt), opt.pull(), opt.init(params(dtype))
        for _ in range(30):
            values, state, _ = step(values, state, *data())
            assert units_away(values, opt.pull()) <= 1
        assert {leaf.dtype.name for leaf in jax.tree.leaves(values)} == {dtype}


def test_a_value_that_jumps_far_comes_back_within_one_unit_of_the_larger_one() -> None:
    given = {"w": jnp.array([1.0, -1e6, 3.0])}
    with opened(given, dps.optim.SGD(1.0)) as opt:
        target = np.array([1e-6, 2.5, -7e5], np.float32)
        updates, _ = jax.jit(opt.update)({"w": given["w"] - target}, opt.init(given), given)
        got, ps = optax.apply_updates(given, updates)["w"], opt.pull()["w"]
        assert (np.abs(got - ps) <= np.spacing(np.maximum(np.abs(given["w"]), np.abs(ps)))).all()
        again, _ = jax.jit(opt.update)({"w": jnp.zeros(3)}, opt.init(given), {"w": got})
        assert units_away(optax.apply_updates({"w": got}, again), opt.pull()) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "sync", "bounded:2", "local:5"])
def test_each_update_mode_trains(mode: str) -> None:
    with opened(params(), dps.optim.SGD(0.1), update=mode) as opt:
        losses, _ = trained(clipped(opt), opt.pull(), steps=20)
    with opened(params(), dps.optim.SGD(0.1)) as opt:
        wanted, _ = trained(clipped(opt), opt.pull(), steps=20)
    assert losses == pytest.approx(wanted, abs=1e-6)  # one worker: all modes are one


def test_two_sync_workers_with_half_batches_are_one_with_the_whole_batch() -> None:
    x, y = data()
    with opened(params(), dps.optim.Momentum(0.05)) as opt:
        _, wanted = trained(opt, opt.pull(), steps=30)

    def work(server: dps.Server) -> Any:
        half = slice(32 * server.task, 32 * server.task + 32)
        with dps.jax.optimizer(server, params(), dps.optim.Momentum(0.05)) as opt:
            return trained(opt, opt.pull(), 30, (x[half], y[half]))[1]

    with cluster(workers=2, update="sync") as servers:
        first, second = on_all(servers, work)
    assert units_away(first, second) <= 1
    for got, one in zip(jax.tree.leaves(first), jax.tree.leaves(wanted), strict=True):
        assert np.abs(got - one).max() <= 1e-6


def test_steps_run_without_jit_and_inside_scan_and_cond() -> None:
    given = {"w": jnp.ones(4)}

    def step(values: Any, _: Any) -> Any:
        updates, _ = opt.update(values, optax.EmptyState(), values)
        return optax.apply_updates(values, updates), None

    with opened(given, dps.optim.SGD(0.5)) as opt:
        values, _ = step(opt.pull(), None)
        values, _ = jax.jit(lambda v: jax.lax.scan(step, v, length=3))(values)
        values = jax.jit(lambda v: jax.lax.cond(v["w"][0] > 0, lambda v: step(v, None)[0], lambda v: v, v))(values)
        assert opt.session.global_step == 5
    assert values["w"].tolist() == [0.5**5] * 4


def test_gradients_of_another_float_dtype_are_cast_to_the_parameters() -> None:
    given = {"w": jnp.ones(4, jnp.float16)}
    with opened(given, dps.optim.SGD(0.5)) as opt:
        updates, _ = opt.update({"w": jnp.ones(4, jnp.float32)}, opt.init(given), given)
        assert optax.apply_updates(given, updates)["w"].tolist() == [0.5] * 4


# -- names --------------------------------------------------------------------------------------------------------


def test_variables_have_the_names_of_key_paths() -> None:
    given = {"mlp/~/linear": {"w": jnp.ones(2)}, "mlp": [jnp.ones(3), (jnp.ones(1), Layer(jnp.ones(4), jnp.ones(5)))]}
    with opened(given, dps.optim.SGD(0.5)) as opt:
        names = dict(flat(opt.session.pull()))
        assert {name: len(array) for name, array in names.items()} == {
            "mlp/0": 3, "mlp/1/0": 1, "mlp/1/1/w": 4, "mlp/1/1/b": 5, "mlp/~/linear/w": 2,
        }  # fmt: skip
        assert jax.tree.structure(opt.pull()) == jax.tree.structure(given)
        assert jax.tree.map(len, opt.pull()) == jax.tree.map(len, given)


def test_a_class_that_is_a_pytree_and_a_single_array_have_names() -> None:
    class Frozen(dict[str, Any]):
        """As of flax: a mapping that JAX knows by keys."""

    jax.tree_util.register_pytree_with_keys(
        Frozen,
        lambda d: ([(jax.tree_util.DictKey(k), d[k]) for k in sorted(d)], tuple(sorted(d))),
        lambda keys, leaves: Frozen(zip(keys, leaves, strict=True)),
    )
    with opened(Frozen(dense=Frozen(kernel=jnp.ones(2)))) as opt:
        assert [name for name, _ in flat(opt.session.pull())] == ["dense/kernel"]
        assert isinstance(opt.pull()["dense"], Frozen)
    with opened(jnp.ones(3)) as opt:
        assert opt.pull().shape == (3,)


def flat(values: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{key}/")
        else:
            yield f"{before}{key}", value


# -- the session --------------------------------------------------------------------------------------------------


def test_a_hook_ends_the_loop_after_its_step_and_gets_the_loss() -> None:
    class Losses(dps.Hook):
        def after_run(self, session: Any, result: dps.Push, loss: Any) -> None:
            seen.append(loss)

    seen: list[Any] = []
    with opened(params(), hooks=[dps.StopAtStep(last_step=7), Losses()]) as opt:
        step, values, state, turns = compiled(opt), opt.pull(), opt.init(params()), 0
        while not opt.should_stop():
            values, state, loss = step(values, state, *data())
            turns += 1
        assert opt.session.global_step == turns == 7
    assert float(seen[-1]) == float(loss)


def test_a_second_worker_begins_with_the_values_of_the_run() -> None:
    with cluster(workers=2, update="async") as servers:
        first = dps.jax.optimizer(servers[0], {"w": jnp.zeros(3)}, dps.optim.SGD(0.5))
        second = dps.jax.optimizer(servers[1], {"w": jnp.ones(3)}, dps.optim.SGD(0.5))
        with first, second:
            assert second.pull()["w"].tolist() == first.pull()["w"].tolist() == [0, 0, 0]


def test_close_waits_for_the_steps_that_were_started() -> None:
    with dps.Server.create_local_server() as server:
        opt = dps.jax.optimizer(server, params(), dps.optim.SGD(0.1))
        step, values, state = compiled(opt), opt.pull(), opt.init(params())
        for _ in range(20):
            values, state, _ = step(values, state, *data())
        opt.close()
        opt.close()
        assert opt.session.global_step == 20
        with pytest.raises(ValueError, match="closed"):
            opt.pull()


@pytest.mark.nightly
@pytest.mark.timeout(200)
def test_a_model_of_100_mb_steps_without_a_deadlock() -> None:
    """With and without waiting for each step: JAX then runs ahead, and its threads wait in callbacks."""
    given = {"w": np.ones((5, 5_000_000), np.float32), "b": np.ones(3, np.float32)}
    with opened(given, dps.optim.SGD(0.5)) as opt:
        tx = clipped(opt)

        @jax.jit
        def step(values: Any, state: Any) -> Any:
            updates, state = tx.update(jax.tree.map(jnp.sign, values), state, values)
            return optax.apply_updates(values, updates), state

        values, state = opt.pull(), tx.init(given)
        for turn in range(8):
            values, state = step(values, state)
            if turn < 4:
                jax.block_until_ready(values)
        assert units_away(values, opt.pull()) <= 1
        assert opt.session.global_step == 8


# -- mistakes -----------------------------------------------------------------------------------------------------


def test_multi_steps_is_an_error_as_it_would_push_every_micro_step() -> None:
    with opened(params()) as opt:
        with pytest.raises(dps.ConfigError, match="MultiSteps would push every micro-step"):
            optax.MultiSteps(clipped(opt), every_k_schedule=4).init(params())
        with pytest.raises(dps.ConfigError, match="MultiSteps"):
            jax.jit(optax.MultiSteps(opt, every_k_schedule=4).gradient_transformation().init)(params())
        assert opt.session.global_step == 0


def halved(rule: Any) -> Any:
    return optax.chain(rule, optax.scale(0.5))


def projected(values: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.maximum(leaf, 0.2), values)


@pytest.mark.parametrize("case", ["behind it", "lookahead", "projection"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_change_of_the_parameters_that_a_step_undoes_is_told_once(case: str, dtype: str, caplog: Any) -> None:
    with opened({"w": jnp.asarray([1.0, 0.25], dtype)}) as opt:
        tx = {"behind it": halved, "lookahead": lambda rule: optax.lookahead(rule, 2, 0.5)}.get(case, lambda r: r)(opt)
        values = opt.pull()
        if case == "lookahead":
            values = optax.LookaheadParams.init_synced(values)
        state = tx.init(values)
        for _ in range(6):
            updates, state = tx.update({"w": jnp.full(2, 0.3)}, state, values)
            values = optax.apply_updates(values, updates)
            values = projected(values) if case == "projection" else values
    told = [r.getMessage() for r in caplog.records if "are not those of the step before" in r.getMessage()]
    assert len(told) == 1 and "(the first is w)" in told[0]


def test_values_that_are_pulled_between_or_assigned_are_no_change_that_is_told(caplog: Any) -> None:
    with opened({"w": jnp.asarray([1.0, 0.25])}) as opt:
        values, newest = opt.pull(), None
        state = opt.init(values)
        for step in range(6):
            updates, state = opt.update({"w": jnp.full(2, 0.3)}, state, values)
            values = optax.apply_updates(values, updates)
            newest = opt.pull()
            if step == 3:
                opt.session.assign({"w": np.full(2, 5.0, np.float32)})
                values = opt.pull()
        assert jnp.allclose(values["w"], 5.0 - 2 * 0.1 * 0.3) and jnp.allclose(newest["w"], values["w"])
    assert not caplog.records


@pytest.mark.parametrize("way", ["pulled", "assigned"])
def test_values_of_the_ps_that_came_past_the_optimizer_are_no_change_that_is_told(way: str, caplog: Any) -> None:
    with opened({"w": jnp.asarray([1.0, 0.25])}) as opt:
        values = opt.pull()
        state = opt.init(values)
        for step in range(20):
            updates, state = opt.update({"w": jnp.full(2, 0.3)}, state, values)
            values = optax.apply_updates(values, updates)
            opt.should_stop()
            if way == "assigned" and step == 3:
                values = {"w": jnp.full(2, 5.0)}
                opt.session.assign({"w": np.asarray(values["w"])})
            if way == "pulled" and step < 18:
                opt.session.push({"w": np.full(2, 0.1, np.float32)})  # so that they are other ones than the last step's
                values = {"w": jnp.asarray(opt.session.pull()["w"])}
    assert not caplog.records


def test_after_a_refused_gradient_the_program_may_go_on() -> None:
    """Each later call raised the error of that gradient, and the values could no longer be read."""
    with opened({"w": jnp.ones(2)}) as opt:
        values = opt.pull()
        state = opt.init(values)
        with pytest.raises(Exception, match="NaN or infinite"):
            jax.block_until_ready(opt.update({"w": jnp.full(2, jnp.nan)}, state, values))
        updates, state = opt.update({"w": jnp.full(2, 2.0)}, state, values)
        assert jnp.allclose(optax.apply_updates(values, updates)["w"], 0.8) and jnp.allclose(opt.pull()["w"], 0.8)
        with pytest.raises(Exception, match="NaN or infinite"):
            jax.block_until_ready(opt.update({"w": jnp.full(2, jnp.nan)}, state, values))
        with pytest.raises(ValueError, match="NaN or infinite"):
            opt.pull()
        assert jnp.allclose(opt.pull()["w"], 0.8)


def test_an_error_of_the_program_after_a_refused_gradient_that_was_told_is_its_own() -> None:
    with pytest.raises(KeyError, match="own"), opened({"w": jnp.ones(2)}) as opt:  # noqa: PT012
        values = opt.pull()
        with pytest.raises(Exception, match="NaN or infinite"):
            jax.block_until_ready(opt.update({"w": jnp.full(2, jnp.nan)}, opt.init(values), values))
        with pytest.raises(ValueError, match="NaN or infinite"):
            opt.pull()
        raise KeyError("own")


def test_update_needs_params_of_the_nesting_and_shapes_that_the_optimizer_was_given() -> None:
    with opened({"w": jnp.ones(3), "b": jnp.ones(2)}) as opt:
        given = opt.pull()
        with pytest.raises(dps.ConfigError, match="no params"):
            opt.update(given, opt.init(given))
        with pytest.raises(dps.ConfigError, match=r"init got w as float32\[4\]; the variable is float32\[3\]"):
            opt.init({"w": jnp.ones(4), "b": jnp.ones(2)})
        with pytest.raises(dps.ConfigError, match="update got PyTreeDef"):
            opt.update({"w": jnp.ones(3)}, opt.init(given), given)
        for wrapped in (optax.masked(opt, {"w": True, "b": False}), optax.flatten(opt)):
            with pytest.raises(dps.ConfigError, match=r"init got PyTreeDef.*optax\.masked"):
                wrapped.init(given)


def test_a_parameter_that_is_not_trained_and_a_name_twice_are_errors() -> None:
    server = "127.0.0.1:1"  # nothing is asked
    with pytest.raises(dps.ConfigError, match="the parameter step has dtype int32"):
        dps.jax.optimizer(server, {"step": jnp.zeros((), int), "w": jnp.ones(2)}, dps.optim.SGD(0.1))
    made = {"keys": "int64", "dim": 2, "capacity": 9, "init": dps.init.Zeros()}
    for table in (dps.Variable(jnp.ones((3, 2)), sparse=True), dps.Variable(**made)):
        with pytest.raises(dps.ConfigError, match=r"the parameter a/0 is a dps\.Variable"):
            dps.jax.optimizer(server, {"a": [table]}, dps.optim.SGD(0.1))
    with pytest.raises(dps.ConfigError, match="two parameters would be 'a/b'"):
        dps.jax.optimizer(server, {"a": {"b": jnp.ones(1)}, "a/b": jnp.ones(1)}, dps.optim.SGD(0.1))
    with pytest.raises(dps.ConfigError, match="one a part of the other"):
        dps.jax.optimizer(server, {"a": jnp.ones(1), "a/b": jnp.ones(1)}, dps.optim.SGD(0.1))


def test_the_error_of_a_step_is_raised_by_should_stop_and_by_the_end_of_the_block() -> None:
    def program() -> None:
        with opened(given) as opt:
            with pytest.raises(Exception, match="NaN") as told:  # JAX's own error, with the text of that of the step
                jax.block_until_ready(jax.jit(opt.update)({"w": jnp.full(3, jnp.nan)}, opt.init(given), given))
            with pytest.raises(ValueError, match="NaN"):
                opt.should_stop()
            raise told.value

    given = {"w": jnp.ones(3)}
    with pytest.raises(ValueError, match="NaN"):
        program()


def test_an_error_in_the_block_is_told_to_the_run() -> None:
    with pytest.raises(KeyError, match="mine"), opened(params()) as opt:
        raise KeyError("mine")
    assert "closed" in repr(opt.session)


def test_more_workers_of_one_process_than_jax_has_threads_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr("jax.default_backend", lambda: "cpu")
    here = threading.Barrier(2)

    def work(server: dps.Server) -> None:
        with dps.jax.optimizer(server, {"w": jnp.ones(2)}, dps.optim.SGD(0.1)):
            here.wait(30)

    with cluster(workers=2, update="async") as servers:
        on_all(servers, work)
    assert not caplog.records
    with cluster(workers=2, update="sync") as servers:
        on_all(servers, work)
    assert "2 workers of this process train with JAX" in caplog.text


def test_the_simulator_is_refused_before_a_session_is_opened() -> None:
    pytest.importorskip("greenlet", reason='needs the simulator: pip install "dps[sim]"')

    def train(server: dps.Server) -> None:
        with pytest.raises(dps.ConfigError, match="simulator"):
            dps.jax.optimizer(server, {"w": jnp.ones(2)}, dps.optim.SGD(0.1))

    dps.simulate(train, ps=1, workers=1)
