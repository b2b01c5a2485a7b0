"""Replicas of one step: contexts, barriers with deadlines, collectives, and steps that end early."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import ConfigError, DeadlineExceeded
from dps.strategy import (
    Mirrored,
    MirroredValue,
    OneDevice,
    PerReplica,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)


def mirrored(count: int = 2, timeout: float = 60.0) -> Mirrored:
    return Mirrored([f"/cpu:{index}" for index in range(count)], timeout=timeout)


def here() -> Any:
    context = get_replica_context()
    assert context is not None
    return context


def made(strategy: Any, params: Any = None) -> Any:
    with strategy.scope():
        return strategy.variables({"w": np.zeros(2)} if params is None else params, optimizer=dps.optim.SGD(1.0))


# -- contexts -----------------------------------------------------------------------------------------------------


def test_without_a_scope_the_default_strategy_is_there_and_its_only_replica_is_everywhere() -> None:
    default = get_strategy()
    assert default is get_strategy() and not has_strategy() and not in_cross_replica_context()
    assert here().replica_id == 0 and here().strategy is default
    assert default.run(lambda a, b: a + b, args=(1,), kwargs={"b": 2}) == 3
    with default.scope():
        assert get_strategy() is default and not has_strategy()
    assert here().all_reduce("sum", 2.0) == 2.0


def test_a_scope_is_cross_replica_and_a_step_is_a_replica_in_or_out_of_the_scope() -> None:
    strategy = mirrored()

    def step() -> Any:
        assert get_strategy() is strategy and has_strategy() and not in_cross_replica_context()
        return here().replica_id, threading.current_thread().name

    with strategy.scope():
        assert get_strategy() is strategy and in_cross_replica_context() and get_replica_context() is None
        ids, names = strategy.run(step)
    assert ids.values == (0, 1) and len(set(names.values)) == 2
    assert get_strategy() is not strategy
    assert strategy.run(step)[0].values == (0, 1)


def test_each_replica_has_context_variables_of_its_own_and_its_device_as_scope() -> None:
    from dps.cluster.device import current_device

    assert mirrored(3).run(lambda: str(current_device())).values == tuple(f"/device:CPU:{i}" for i in range(3))
    assert str(current_device()) == ""


def test_arguments_are_taken_apart_and_results_put_together_in_their_nesting() -> None:
    strategy = mirrored()
    given = {"x": PerReplica([1, 2]), "same": [strategy.broadcast(10), 5]}
    result = strategy.run(lambda batch: {"sum": batch["x"] + batch["same"][0], "none": None}, args=(given,))
    assert result["sum"].values == (11, 12) and result["none"] is None
    shared = strategy.run(lambda: (here().all_reduce("sum", np.ones(2)), here().replica_id))
    assert isinstance(shared[0], MirroredValue) and not shared[0].value.flags.writeable
    assert strategy.local_results(result) == ({"sum": 11, "none": None}, {"sum": 12, "none": None})


# -- collectives --------------------------------------------------------------------------------------------------


def test_replicas_reduce_gather_and_merge() -> None:
    def step() -> Any:
        n = here().replica_id + 1
        total = here().all_reduce("SUM", {"a": n, "b": np.full(2, float(n))})
        everything = here().all_gather(np.full(n, n), axis=0)

        def merge(strategy: Any, value: Any, scale: Any) -> Any:
            assert in_cross_replica_context() and get_strategy() is strategy
            return strategy.reduce("max", value) * strategy.reduce("mean", scale), PerReplica(
                [v * 10 for v in value.values]
            )

        merged = here().merge_call(merge, args=(n,), kwargs={"scale": 2})
        return int(total["a"]), total["b"].tolist(), everything.tolist(), int(merged[0]), merged[1]

    results = mirrored(3).local_results(mirrored(3).run(step))
    assert results == tuple((6, [6.0, 6.0], [1, 2, 2, 3, 3, 3], 6, 10 * n) for n in (1, 2, 3))


def test_sums_are_taken_in_replica_order_whoever_comes_first() -> None:
    values = [1e16, 1.0, -1e16, 1.0]

    def step(value: float, late: float) -> Any:
        time.sleep(late)
        return here().all_reduce("sum", value)

    strategy = mirrored(4)
    for delays in ([0.0, 0.01, 0.02, 0.03], [0.03, 0.02, 0.01, 0.0]):
        found = strategy.run(step, args=(PerReplica(values), PerReplica(delays)))
        assert {float(v) for v in found.values} == {((1e16 + 1.0) - 1e16) + 1.0}


# -- steps that end early -----------------------------------------------------------------------------------------


def test_a_replica_that_raises_ends_the_step_for_all_and_is_named() -> None:
    strategy, ended = mirrored(3), []

    def step() -> None:
        try:
            if here().replica_id == 1:
                raise KeyError("no such example")
            here().all_reduce("sum", 1.0)
        finally:
            ended.append(here().replica_id)

    with pytest.raises(KeyError) as caught:
        strategy.run(step)
    assert any("replica 1" in note for note in caught.value.__notes__)
    for _ in range(1000):
        if len(ended) == 3:
            break
        time.sleep(0.005)
    assert sorted(ended) == [0, 1, 2]
    assert strategy.reduce("sum", strategy.run(lambda: here().all_reduce("sum", 1.0))) == 9.0


def test_a_replica_that_returns_early_ends_the_step_and_nothing_is_applied() -> None:
    strategy = mirrored()
    variables = made(strategy)
    with pytest.raises(ConfigError, match="replica 1 returned from the step, replica 0 waits in apply_gradients"):
        strategy.run(lambda: here().replica_id or variables.apply_gradients({"w": np.ones(2)}))
    assert variables.read()["w"].tolist() == [0, 0]


def test_replicas_that_make_different_calls_are_told_which() -> None:
    strategy = mirrored()
    variables = made(strategy)

    def step() -> None:
        if here().replica_id:
            variables.apply_gradients({"w": np.ones(2)})
        else:
            here().all_reduce("mean", 1.0)

    with pytest.raises(ConfigError, match=r"in apply_gradients.*in all_reduce 'mean'|in all_reduce.*in apply_grad"):
        strategy.run(step)


def test_a_replica_that_does_not_come_is_named_at_the_deadline() -> None:
    release = threading.Event()

    def step() -> None:
        if here().replica_id == 1:
            release.wait(30)
        here().all_reduce("sum", 1.0)

    try:
        with pytest.raises(DeadlineExceeded, match=r"all_reduce 'sum': replica 0 wait.* for replica 1 for 0.2 s"):
            mirrored(timeout=0.2).run(step)
    finally:
        release.set()


def test_the_error_of_a_merged_function_ends_the_step() -> None:
    with pytest.raises(ZeroDivisionError):
        mirrored().run(lambda: here().merge_call(lambda strategy: 1 // 0))


# -- bad use ------------------------------------------------------------------------------------------------------


def test_strategies_do_not_nest() -> None:
    one, two = mirrored(), OneDevice("/cpu:0")
    with one.scope():
        with one.scope():
            assert get_strategy() is one
        with pytest.raises(ConfigError, match="do not nest"), two.scope():
            pass
        with pytest.raises(ConfigError, match="do not nest"):
            two.run(lambda: None)
    with pytest.raises(ConfigError, match="run: called inside a replica"):
        one.run(lambda: one.run(lambda: None))
    with pytest.raises(ConfigError, match="do not nest"):
        two.run(lambda: one.run(lambda: None))


def test_variables_of_another_strategy_or_made_outside_the_scope_are_refused() -> None:
    one, two = mirrored(), mirrored()
    with pytest.raises(ConfigError, match=r"outside of the scope .*with strategy.scope"):
        one.variables({"w": np.zeros(2)}, optimizer=dps.optim.SGD(0.1))
    with one.scope(), pytest.raises(ConfigError, match="made in a replica"):
        one.run(lambda: one.variables({"w": np.zeros(2)}, optimizer=dps.optim.SGD(0.1)))
    variables = made(one)
    with pytest.raises(ConfigError, match="these variables are of dps.strategy.Mirrored"):
        two.run(lambda: variables.apply_gradients({"w": np.ones(2)}))
    with pytest.raises(ConfigError, match="read: these variables are of"):
        two.run(variables.read)


def test_values_that_do_not_fit_the_replicas_are_refused() -> None:
    strategy = mirrored()
    with pytest.raises(ConfigError, match="PerReplica of 3 values for a strategy of 2 replicas"):
        strategy.run(lambda x: x, args=(PerReplica([1, 2, 3]),))
    uneven = strategy.run(lambda: np.zeros(here().replica_id + 2))
    with pytest.raises(ConfigError, match=r"replica 0 has shape \(2,\), replica 1 has \(3,\)"):
        strategy.reduce("sum", uneven)
    with pytest.raises(ConfigError, match="wanted 'sum', 'mean' or 'max'"):
        strategy.reduce("product", uneven)
    with pytest.raises(ConfigError, match="the same on all 2 replicas"):
        strategy.reduce("sum", 3.0)
    assert strategy.reduce("MEAN", 3.0) == 3.0


@pytest.mark.parametrize("strategy", [mirrored(), OneDevice("/cpu:0"), get_strategy()])
@pytest.mark.parametrize("count", [0, 3])
def test_values_of_another_number_of_replicas_are_refused_by_every_call(strategy: Any, count: int) -> None:
    """They were reduced, gathered and applied as if the strategy had that many replicas."""
    values = PerReplica([np.ones(1)] * count)
    variables = made(strategy, {"w": np.zeros(1), "b": np.zeros(1)})
    for call in (
        lambda: strategy.reduce("sum", values), lambda: strategy.reduce("mean", {"a": values}, axis=0),
        lambda: strategy.reduce("max", values), lambda: strategy.gather(values, axis=0),
        lambda: strategy.local_results([values]), lambda: strategy.run(abs, (values,)),
        lambda: variables.apply_gradients({"w": values}),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"got a PerReplica of {count} values for a strategy of"):
            call()
    assert variables.read()["w"] == 0
    alone = PerReplica([np.ones(1)] * strategy.num_replicas_in_sync)
    assert len(strategy.local_results(alone)) == strategy.num_replicas_in_sync


@pytest.mark.parametrize("axis", ["x", 0.0, True, None])
def test_an_axis_is_a_whole_number(axis: Any) -> None:
    value = PerReplica([np.ones((2, 2))] * 2)
    with pytest.raises(ConfigError, match="gather: axis: got .*, wanted a whole number"):
        mirrored().gather(value, axis)
    if axis is not None:
        with pytest.raises(ConfigError, match="reduce 'sum': axis: got .*, wanted a whole number"):
            mirrored().reduce("sum", value, axis)


@pytest.mark.parametrize(
    ("devices", "match"),
    [
        ("/cpu:0", "wanted a list"), (["/cpu:0", "/device:CPU:0"], "more than once"), (["/tpu:0"], "wanted"),
        (["/gpu:7"], "none is there"), ([], "none is there"), (["/job:x/foo"], "wanted"),
    ],
)  # fmt: skip
def test_devices_that_cannot_be_are_refused(devices: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Mirrored(devices)


def test_devices_that_are_not_there_are_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert Mirrored(["/gpu:0", "/gpu:9"]).devices == ("/gpu:0",)
    assert "/gpu:9 not there, goes on with /gpu:0" in caplog.text


NO_ROWS = [dps.Rows(np.zeros(0, np.int64), np.zeros((0, 2))), dps.Rows([], [])]


def without_rows(strategy: Any, params: Any, rows: Any) -> Any:
    """The values after a step in which one variable gets no element, and one in which it gets a row."""
    with strategy.scope():
        variables = strategy.variables(params, optimizer=dps.optim.Adam(1.0))
    for gradient in (rows, dps.Rows([1], np.ones((1, 2)))):
        push = strategy.run(lambda gradient=gradient: variables.apply_gradients({"w": gradient, "b": np.ones(1)}))
    assert strategy.local_results(push)[0].step == 2
    return variables.read()


@pytest.mark.parametrize("rows", NO_ROWS, ids=["shaped", "lists"])
@pytest.mark.parametrize("made", [
    lambda: dps.strategy.OneDevice("/cpu:0"), lambda: dps.strategy.OneDevice("/gpu:0"), lambda: mirrored(),
    lambda: dps.strategy.CentralStorage(["/cpu:0", "/cpu:1"]), lambda: dps.strategy.get_strategy(),
])  # fmt: skip
def test_rows_without_elements_are_no_gradient(made: Any, rows: Any) -> None:
    params = {"w": np.zeros((3, 2)), "b": np.zeros(1)}
    found = without_rows(made(), params, rows)
    wanted = without_rows(made(), params, None)
    assert found["w"].tobytes() == wanted["w"].tobytes() and found["b"].tobytes() == wanted["b"].tobytes()
    assert found["w"][1, 0] < 0 == found["w"][0, 0]


@pytest.mark.parametrize("update", ["async", "bounded:1", "sync", "local:1", "local:3"])
@pytest.mark.parametrize("rows", NO_ROWS, ids=["shaped", "lists"])
def test_a_session_takes_rows_without_elements_in_every_mode(update: str, rows: Any) -> None:
    params = {"w": np.zeros((3, 2)), "b": np.zeros(1)}
    with dps.Server.create_local_server(update) as server:
        session = dps.Session(server, params, optimizer=dps.optim.SGD(1.0))
        assert session.push({"w": rows, "b": np.ones(1)}).accepted
        values = session.pull()
        session.close()
    assert not values["w"].any() and values["b"] == -1


def test_a_strategy_inside_of_an_equal_one_is_told_from_it() -> None:
    with dps.strategy.OneDevice("/cpu:0").scope():
        with pytest.raises(ConfigError, match=r"inside of another one like it; strategies do not nest"):
            dps.strategy.OneDevice("/cpu:0").scope().__enter__()
        with pytest.raises(ConfigError, match=r"inside of dps\.strategy\.OneDevice\(.*; strategies do not nest"):
            dps.strategy.Mirrored(["/cpu:0"]).scope().__enter__()
