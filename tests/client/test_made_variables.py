"""Variables whose first values the ps make, by sessions against running clusters."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import dps
from dps.client import assembly, membership
from dps.errors import CheckpointError, ConfigError
from dps.kernels.first_values import made
from dps.messages.runs import Init
from dps.transport.wire import MAX_FRAMES
from tests.in_process import cluster, on_all

SGD = dps.optim.SGD(0.5)
TABLE, WIDE, BIAS = dps.init.Normal(0.01, seed=1), dps.init.GlorotUniform(seed=2), dps.init.Constant(0.25)


def variables() -> dict[str, Any]:
    return {
        "table": dps.Variable(shape=(13, 3), init=TABLE, sparse=True),
        "given": np.arange(6, dtype=np.float32).reshape(2, 3),
        "deep": {"w": dps.Variable(shape=(700, 5), dtype="float64", init=WIDE), "b": dps.Variable(shape=5, init=BIAS)},
        "count": dps.Variable(shape=(), dtype="int64", init=dps.init.Ones(), trainable=False),
        "half": dps.Variable(shape=(9,), dtype="float16", init=dps.init.HeNormal()),
    }


def wanted() -> dict[str, Any]:
    return {
        "table": made(TABLE, "table", (13, 3), "float32"),
        "given": variables()["given"],
        "deep": {"w": made(WIDE, "deep/w", (700, 5), "float64"), "b": np.full(5, 0.25, np.float32)},
        "count": np.ones((), np.int64),
        "half": made(dps.init.HeNormal(), "half", (9,), "float16"),
    }


def is_same(found: Any, other: Any) -> bool:
    if isinstance(other, dict):
        return found.keys() == other.keys() and all(is_same(found[key], other[key]) for key in other)
    return found.dtype == other.dtype and found.shape == other.shape and found.tobytes() == other.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("parts", [None, 2, 5])
@pytest.mark.parametrize("ps", [1, 2, 3])
def test_any_number_of_ps_and_parts_has_the_same_bits(ps: int, parts: int | None) -> None:
    partitioner = None if parts is None else dps.partition.Fixed(parts)
    with (
        cluster(ps=ps, transport="inproc") as (server,),
        dps.Session(
            server, variables(), optimizer=SGD, partitioner=partitioner, timeout=240
        ) as session,  # it may compile
    ):
        assert is_same(session.pull(), wanted())
        assert np.array_equal(session.lookup("table", [12, 0]), wanted()["table"][[12, 0]])


@pytest.mark.parametrize("update", ["async", "bounded:2", "sync", "local:2"])
def test_variables_that_are_made_are_trained_in_all_modes(update: str) -> None:
    params = {"w": dps.Variable(shape=(40,), init=TABLE), "b": np.ones(3, np.float32)}
    grads = {"w": np.ones(40, np.float32), "b": np.ones(3, np.float32)}

    def work(server: dps.Server) -> Any:
        with dps.Session(server, params, optimizer=SGD, update=update) as session:
            first = session.pull()
            for _ in range(4):
                session.push(grads)
            return first, session.step(grads)

    with cluster(ps=2, workers=1, transport="inproc", update=update) as servers:
        first, last = on_all(servers, work)[0]
    start = made(TABLE, "w", (40,), "float32")
    assert np.array_equal(first["w"], start)
    assert last["w"] == pytest.approx(start - 5 * 0.5) and last["b"] == pytest.approx(np.full(3, 1 - 2.5))


def test_only_descriptions_and_given_values_leave_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Init] = []
    real = membership.Init

    def noted(*args: Any) -> Init:
        sent.append(real(*args))
        return sent[-1]

    monkeypatch.setattr(membership, "Init", noted)
    with cluster(ps=2, transport="inproc") as (server,), dps.Session(server, variables(), optimizer=SGD) as session:
        assert is_same(session.pull(), wanted())
    assert sum(array.nbytes for message in sent for array in message.arrays) == variables()["given"].nbytes


def test_first_values_of_some_parts_are_cut_into_pieces_and_grouped() -> None:
    from dps.variables.planning import plan_of

    params = {**variables(), "more": np.arange(50, dtype=np.float32), "n": np.arange(3), "e": np.zeros((0, 2))}
    plan, values = plan_of(params, SGD, [0, 1], None, dps.partition.Fixed(2))
    assert sorted(values) == ["e", "given", "more", "n"]
    for most in (1, 20, 64, 1 << 20):
        for ps, layout in plan.layouts.items():
            run, seen = np.zeros(layout.nbytes, np.uint8), 0
            for offsets, arrays in assembly.pieces_of_parts(plan, layout, values, most):
                assert sum(map(len, arrays)) <= max(most, 8)
                for offset, data in zip(offsets, arrays, strict=True):
                    layout.check_range(offset, len(data))
                    assert not run[offset : offset + len(data)].any()
                    run[offset : offset + len(data)] = data
                    seen += len(data)
            parts = [p for a in layout.arenas for p in a.parts if plan.variables[p.variable].name in values]
            assert seen == sum(p.size * plan.dtypes[p.variable].itemsize for p in parts)
            for arena, flat in zip(layout.arenas, layout.flats(run), strict=True):
                for part, start in zip(arena.parts, arena.starts, strict=True):
                    value = values.get(plan.variables[part.variable].name)
                    if value is not None and part.ps == ps and part.size:
                        rows = value[part.row0 : part.row0 + part.shape[0]]
                        assert np.array_equal(flat[start : start + part.size], rows.reshape(-1))


def test_first_values_of_very_many_small_variables_fit_the_frames_of_a_message() -> None:
    small = {f"b{number}": np.full(2, number, np.float32) for number in range(MAX_FRAMES + 10)}
    made = dps.Variable(shape=(4, 3), dtype="float32", init=dps.init.Ones())
    with cluster(transport="inproc") as (server,), dps.Session(server, {**small, "t": made}, optimizer=SGD) as session:
        found = session.pull()
    assert all(np.array_equal(found[name], value) for name, value in small.items()) and (found["t"] == 1).all()


def test_init_fn_may_give_a_value_of_its_own_and_leave_others_to_the_ps() -> None:
    own = np.full((13, 3), 7, np.float32)
    with (
        cluster(ps=2, transport="inproc") as (server,),
        dps.Session(server, variables(), optimizer=SGD, init_fn=lambda p: {**p, "table": own}) as session,
    ):
        found = session.pull()
    assert is_same(found, {**wanted(), "table": own})


def test_init_fn_that_gives_another_shape_is_refused() -> None:
    with (
        cluster(transport="inproc") as (server,),
        pytest.raises(dps.HookError, match=r"float64 \(2,\) for table, the v"),
    ):
        dps.Session(server, variables(), optimizer=SGD, init_fn=lambda p: {"table": np.zeros(2)})


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            dps.Variable(shape=4, init=dps.init.Normal(0.02)),
            r"w are made by Normal\(stddev=0.02.*the run's are made by N",
        ),
        (dps.Variable(shape=4, init=dps.init.Normal(0.01, seed=1)), r"first values of w are made by Normal.*seed=1"),
        (np.zeros(4, np.float32), r"its first values of w are an array of the program, the run's are made by Normal"),
        (dps.Variable(shape=5, init=dps.init.Normal(0.01)), r"its w is float32 \(5,\), the run's is float32 \(4,\)"),
    ],
)
def test_workers_that_disagree_get_an_error_that_names_the_variable(other: Any, words: str) -> None:
    with (
        cluster(workers=2, transport="inproc") as servers,
        dps.Session(servers[0], {"w": dps.Variable(shape=4, init=dps.init.Normal(0.01))}, optimizer=SGD),
        pytest.raises(ConfigError, match=words),
    ):
        dps.Session(servers[1], {"w": other}, optimizer=SGD, timeout=20)


def test_workers_that_agree_join_and_a_reader_reads() -> None:
    opened = threading.Barrier(2)

    def work(server: dps.Server) -> Any:
        with dps.Session(server, variables(), optimizer=SGD) as session:
            opened.wait(60)
            with dps.Session(server.target) as reader:
                return session.pull(), reader.pull()

    with cluster(ps=2, workers=2, transport="inproc") as servers:
        for both in on_all(servers, work):
            assert all(is_same(found, wanted()) for found in both)


def test_a_checkpoint_holds_values_and_is_restored_before_anything_is_made(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    settings: dict[str, Any] = {"optimizer": SGD, "checkpoint_dir": folder}
    with cluster(ps=2, transport="inproc") as (server,), dps.Session(server, variables(), **settings) as session:
        session.push({"table": dps.Rows([1], np.ones((1, 3), np.float32))})
        last = session.pull()
    assert not is_same(last, wanted())
    other = {**variables(), "half": dps.Variable(shape=(9,), dtype="float16", init=dps.init.Zeros())}
    with (
        cluster(ps=3, transport="inproc") as (server,),
        dps.Session(server, other, partitioner=dps.partition.Fixed(2), **settings) as session,
    ):
        assert is_same(session.pull(), last)


def test_averages_begin_at_the_values_that_were_made() -> None:
    params = {"w": dps.Variable(shape=(300,), init=TABLE)}
    average = dps.optim.MovingAverage(0.9)
    with (
        cluster(transport="inproc") as (server,),
        dps.Session(server, params, optimizer=SGD, moving_average=average) as session,
    ):
        assert np.array_equal(session.averages()["w"], made(TABLE, "w", (300,), "float32"))


def test_a_shape_that_no_machine_holds_is_refused_before_it_is_made() -> None:
    params = {"w": dps.Variable(shape=(1 << 43,), init=dps.init.Zeros())}
    with cluster(transport="inproc") as (server,):
        with pytest.raises(ConfigError, match=r"ps:0.* would hold variables of 35,184.4 GB, and its machine has .* GB"):
            dps.Session(server, params, optimizer=SGD, timeout=20)
        with dps.Session(server, {"w": np.zeros(3)}, optimizer=SGD) as session:
            assert session.global_step == 0


# -- files ----------------------------------------------------------------------------------------------------


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.safetensors"
    values = {"emb": np.arange(39, dtype=np.float32).reshape(13, 3), "s": np.array(4.0), "table": np.ones((2, 2))}
    save_file(values, path)
    return path


@pytest.mark.parametrize("ps", [1, 3])
def test_values_come_from_a_tensor_of_a_file(weights: Path, ps: int) -> None:
    params = {
        "table": dps.Variable(shape=(13, 3), init=dps.init.FromFile(weights, "emb")),
        "s": dps.Variable(shape=(), dtype="float64", init=dps.init.FromFile(str(weights))),
    }
    with (
        cluster(ps=ps, transport="inproc") as (server,),
        dps.Session(server, params, optimizer=SGD, partitioner=dps.partition.Fixed(4)) as session,
    ):
        found = session.pull()
    assert np.array_equal(found["table"], np.arange(39, dtype=np.float32).reshape(13, 3)) and found["s"] == 4.0


def test_values_come_from_a_variable_of_a_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    with (
        cluster(ps=3, transport="inproc") as (server,),
        dps.Session(
            server, variables(), optimizer=SGD, partitioner=dps.partition.Fixed(3), checkpoint_dir=str(folder)
        ) as session,
    ):
        session.push({"table": dps.Rows([1], np.ones((1, 3), np.float32))})
        last = session.pull()["table"]
    name = max(path.name for path in folder.iterdir() if path.name.startswith("step-"))
    params = {"new": dps.Variable(shape=(13, 3), init=dps.init.FromFile(folder / name, "table"))}
    with (
        cluster(ps=2, transport="inproc") as (server,),
        dps.Session(server, params, optimizer=SGD, partitioner=dps.partition.Fixed(2)) as session,
    ):
        assert np.array_equal(session.pull()["new"], last)
    with cluster(transport="inproc") as (server,), pytest.raises(ConfigError, match=f"name one of them, as .*{name}"):
        dps.Session(server, {"table": dps.Variable(shape=(13, 3), init=dps.init.FromFile(folder))}, optimizer=SGD)


@pytest.mark.parametrize(
    ("shape", "dtype", "name", "words"),
    [
        (
            (13, 3),
            "float32",
            "absent",
            r"table: .*weights.safetensors holds no 'absent'; it has .*emb.*: give FromFile",
        ),
        ((13, 4), "float32", "emb", r"table: 'emb' in .* is float32 \(13, 3\), and the variable is float32 \(13, 4\)"),
        ((13, 3), "float64", "emb", r"table: 'emb' in .* is float32 \(13, 3\), and the variable is float64 \(13, 3\)"),
    ],
)
def test_a_file_with_other_tensors_is_refused_in_one_line(
    weights: Path, shape: tuple[int, ...], dtype: str, name: str, words: str
) -> None:
    params = {"table": dps.Variable(shape=shape, dtype=dtype, init=dps.init.FromFile(weights, name))}
    with cluster(transport="inproc") as (server,), pytest.raises(ConfigError, match=words) as raised:
        dps.Session(server, params, optimizer=SGD, timeout=20)
    assert "\n" not in str(raised.value)


def test_a_missing_and_a_damaged_file_are_refused(tmp_path: Path, weights: Path) -> None:
    def opened(path: Path) -> None:
        with cluster(transport="inproc") as (server,):
            dps.Session(server, {"emb": dps.Variable(shape=(13, 3), init=dps.init.FromFile(path))}, optimizer=SGD)

    with pytest.raises(ConfigError, match="emb: there is no .*absent where its ps runs"):
        opened(tmp_path / "absent")
    damaged = tmp_path / "damaged"
    damaged.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="its tensors end at byte"):
        opened(damaged)


# -- in one process -------------------------------------------------------------------------------------------


def test_strategies_of_one_machine_make_the_same_values(weights: Path) -> None:
    params = {**variables(), "emb": dps.Variable(shape=(13, 3), init=dps.init.FromFile(weights))}
    strategy = dps.strategy.OneDevice("/cpu:0")
    with strategy.scope():
        found = strategy.variables(params, optimizer=SGD).read()
    assert is_same({key: value for key, value in found.items() if key != "emb"}, wanted())
    assert found["emb"].sum() == 39 * 19


def test_a_strategy_of_parameter_servers_has_them_made_there() -> None:
    with cluster(ps=2, transport="inproc") as (server,):
        strategy = dps.strategy.ParameterServer(server)
        with strategy.scope():
            kept = strategy.variables(variables(), optimizer=SGD)
        assert is_same(kept.read(), wanted())
        strategy.close()


class Scale(dps.nn.Layer):
    """A layer whose parameter an initializer makes."""

    def initial(self, rng: np.random.Generator, dtype: Any) -> dict[str, Any]:
        return {"s": dps.Variable(shape=(4,), dtype=dtype, init=dps.init.Normal(0.5, seed=3))}

    def forward(self, computation: Any, params: Any, *inputs: Any) -> tuple[Any, Any]:
        return inputs[0] * params["s"], inputs[0]

    def backward(self, computation: Any, params: Any, kept: Any, dout: Any) -> tuple[Any, Any]:
        return {"s": (dout * kept).sum(axis=0)}, (dout * params["s"],)


def test_a_layer_may_have_its_parameters_made() -> None:
    x = dps.nn.Input((4,))
    model = dps.nn.Model(x, Scale(name="scale")(x))
    before = model.get_weights()
    model.compile(optimizer=dps.optim.SGD(0.1), loss="mse")
    assert np.array_equal(before[0], made(dps.init.Normal(0.5, seed=3), "scale/s", (4,), "float32"))
    assert np.array_equal(model.get_weights()[0], before[0])


def test_nobody_warns_of_first_values_that_a_worker_does_not_hold(caplog: pytest.LogCaptureFixture) -> None:
    from dps.client import reports

    with (
        pytest.MonkeyPatch.context() as patch,
        caplog.at_level(logging.WARNING),
        cluster(transport="inproc") as (server,),
    ):
        patch.setattr(reports, "LARGE_NBYTES", 1000)
        with dps.Session(server, {"w": dps.Variable(shape=(1000,), init=TABLE)}, optimizer=SGD):
            pass
    assert not [record for record in caplog.records if "first values" in record.getMessage()]
