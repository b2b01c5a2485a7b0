"""Variables of float16 and bfloat16 through running ps: optimizers, ways of a gradient, checkpoints, errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import dps
from dps.variables.plan import Plan
from dps.variables.planning import plan_of
from tests.in_process import cluster, on_all
from tests.training.test_optimizers_through_ps import OPTIMIZERS, STEPS, Reference, first_values, gradients, mean

DTYPES: dict[str, Any] = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
EVERY_DTYPE = pytest.mark.parametrize("name", list(DTYPES))
EVERY_KERNEL = pytest.mark.parametrize("name", ["bfloat16", pytest.param("float16", marks=pytest.mark.nightly)])
"""Of tests that need the kernels of all optimizers, which are compiled for each dtype."""
STEP = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""From 1 to the next number."""


def cast(value: Any, dtype: Any) -> Any:
    """A gradient, or the values of a variable, in halves."""
    if isinstance(value, dps.Rows):
        return dps.Rows(value.indices, value.values.astype(dtype))
    if isinstance(value, dps.Variable):
        return dps.Variable(value.value.astype(dtype), optimizer=value.optimizer, sparse=value.sparse)
    return None if value is None else value.astype(dtype)


def wide(value: Any) -> Any:
    return cast(value, np.float32)


def model(dtype: Any) -> Any:
    return {case: {n: cast(v, dtype) for n, v in found.items()} for case, found in first_values().items()}


def pushed(worker: int, step: int, dtype: Any) -> dict[str, Any]:
    return {n: cast(g, dtype) for n, g in gradients(worker, step, dense=step % 4 == 0).items()}


def train(server: Any, dtype: Any, **settings: Any) -> Any:
    with dps.Session(server, model(dtype), timeout=120, **settings) as session:
        for step in range(STEPS):
            session.pull()
            assert session.push(dict.fromkeys(OPTIMIZERS, pushed(server.task, step, dtype))).accepted
        return session.pull()


def expected(case: str, name: str, workers: int, dtype: Any) -> Any:
    """Twenty updates by the formulas, in float32; the values are rounded to halves after each."""
    variable = cast(first_values()[case][name], dtype)
    reference = Reference(OPTIMIZERS[case], wide(variable.value))
    for step in range(STEPS):
        reference.apply(mean([wide(pushed(worker, step, dtype)[name]) for worker in range(workers)]), step + 1)
        reference.w = reference.w.astype(dtype).astype(np.float32)
    return reference.w


def check(values: Any, workers: int, name: str) -> None:
    """Within two steps of the dtype: where numpy rounds an operation otherwise, a tie may fall to the other side."""
    for case, found in values.items():
        for variable, got in found.items():
            assert got.dtype == DTYPES[name]
            wanted = expected(case, variable, workers, DTYPES[name])
            step = STEP[name]
            np.testing.assert_allclose(wide(got), wanted, rtol=2 * step, atol=step / 4, err_msg=f"{case}/{variable}")


@pytest.mark.slow
@EVERY_KERNEL
def test_twenty_asynchronous_steps_are_those_of_the_formulas_rounded_after_each(name: str) -> None:
    with cluster(2, 1, "inproc") as (server,):
        check(train(server, DTYPES[name], partitioner=dps.partition.Fixed(2)), 1, name)


@pytest.mark.slow
@EVERY_KERNEL
def test_synchronous_steps_have_the_same_bits_with_one_ps_and_with_two(name: str) -> None:
    found = []
    for ps in (1, 2):
        with cluster(ps, 2, "inproc") as servers:
            found.append(on_all(servers, lambda s: train(s, DTYPES[name], update=dps.SyncReplicas()))[0])
    check(found[0], 2, name)
    for case, variables in found[0].items():
        for variable, one in variables.items():
            assert one.tobytes() == found[1][case][variable].tobytes()


def go_on(server: Any, dtype: Any, steps: range, parts: int, folder: Path | None, save: bool = False) -> Any:
    params = {"table": np.arange(22).reshape(11, 2).astype(dtype), "step": np.int64(3)}
    settings: dict[str, Any] = {} if folder is None else {"checkpoint_dir": str(folder)}
    with dps.Session(
        server, params, optimizer=dps.optim.Adam(0.3), partitioner=dps.partition.Fixed(parts), **settings
    ) as session:
        for step in steps:
            session.push({"table": np.random.default_rng(step).normal(size=(11, 2)).astype(dtype)})
        values = session.pull()
        if save:
            session.save()
        return values


@EVERY_DTYPE
def test_a_checkpoint_goes_on_where_it_was_on_other_ps_and_in_other_parts(tmp_path: Path, name: str) -> None:
    dtype = DTYPES[name]
    with cluster() as (server,):
        wanted = go_on(server, dtype, range(6), 1, None)
    with cluster(ps=3) as (server,):
        go_on(server, dtype, range(3), 4, tmp_path, save=True)
    with cluster(ps=2) as (server,):
        found = go_on(server, dtype, range(3, 6), 3, tmp_path)
    assert found["table"].dtype == dtype
    assert found["table"].tobytes() == wanted["table"].tobytes()
    from safetensors import safe_open

    (file,) = sorted(tmp_path.glob("*/*-00000-*.safetensors"))[:1] or sorted(tmp_path.glob("*/*.safetensors"))[:1]
    with safe_open(str(file), "np") as saved:
        kinds = {saved.get_slice(tensor).get_dtype() for tensor in saved.keys() if "table" in tensor}  # noqa: SIM118
    assert kinds == {{"float16": "F16", "bfloat16": "BF16"}[name], "F32"}


@EVERY_DTYPE
def test_rows_are_looked_up_and_gradient_buffers_given_in_halves(name: str) -> None:
    dtype = DTYPES[name]
    table = np.arange(12).reshape(6, 2).astype(dtype)
    with cluster(transport="tcp") as (server,), dps.Session(server, {"t": table}, optimizer=dps.optim.SGD(0.5)) as s:
        rows = s.lookup("t", [5, 0, 5])
        assert rows.dtype == dtype
        assert wide(rows).tolist() == [[10, 11], [0, 1], [10, 11]]
        buffers = s.gradients()
        assert buffers["t"].dtype == dtype
        buffers["t"][...] = 2
        s.push(buffers)
        s.push({"t": dps.Rows([1, 1, 4], np.ones((3, 2), dtype))})
        wanted = table.astype(np.float32) - 1
        wanted[1] -= 1
        wanted[4] -= 0.5
        assert wide(s.pull()["t"]).tolist() == wanted.tolist()


@EVERY_DTYPE
def test_compression_leaves_halves_alone_and_delays_are_compensated_in_float32(name: str) -> None:
    dtype, one = DTYPES[name], np.ones(4)
    settings: dict[str, Any] = {"compression": dps.compress.Int8(), "pull_compression": dps.compress.Bfloat16()}
    params = {"h": one.astype(dtype), "w": one.astype(np.float32)}
    settings |= {"optimizer": dps.optim.SGD(0.25), "timeout": 120}
    with (
        cluster(update=dps.Async(compensation=0.5)) as (server,),
        dps.Session(server, params, **settings) as session,
    ):
        session.pull()
        session.push({"h": one.astype(dtype), "w": one.astype(np.float32)})  # at the backup: 1 - 0.25
        session.push({"h": one.astype(dtype)})  # g = 1 + 0.5 * (0.75 - 1); 0.75 - 0.25 * 0.875
        assert wide(session.pull()["h"]).tolist() == [0.53125] * 4


@EVERY_DTYPE
def test_a_gradient_that_is_not_finite_is_refused(name: str) -> None:
    dtype = DTYPES[name]
    with cluster() as (server,), dps.Session(server, {"w": np.ones(3, dtype)}, optimizer=dps.optim.SGD(0.5)) as s:
        with pytest.raises(ValueError, match="the gradient of w has NaN or infinite values"):
            s.push({"w": np.array([1, np.nan, 1], dtype)})
        with pytest.raises(ValueError, match=f"the gradient of w is float32; the variable is {name}: cast with"):
            s.push({"w": np.ones(3, np.float32)})
        s.push({"w": np.ones(3, dtype)})
        assert wide(s.pull()["w"]).tolist() == [0.5] * 3


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.ones(2, np.complex64), "w is ndarray of dtype complex64; wanted an array of numbers: float16, bfloat16,"),
        (np.ones(2, ml_dtypes.float8_e4m3fn), "w is ndarray of dtype float8_e4m3fn; wanted an array of numbers: "),
        (np.ones(2, np.longdouble), "trained variables are float16, bfloat16, float32 or float64"),
    ],
)
def test_dtypes_that_are_not_kept_are_told_with_those_that_are(array: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words) as told:
        plan_of({"w": array}, dps.optim.SGD(0.1), [0], None, None)
    assert "\n" not in str(told.value)


def test_bfloat16_without_ml_dtypes_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = plan_of({"w": np.ones(2, DTYPES["bfloat16"])}, dps.optim.SGD(0.1), [0], None, None)[0].to_wire()
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(
        dps.ConfigError, match=r"^bfloat16 variables need ml_dtypes on every task [^\n]*dps\[bfloat16\]'$"
    ):
        Plan.from_wire(wire)


@pytest.mark.slow  # loads torch
def test_bfloat16_tensors_of_torch_are_taken() -> None:
    torch = pytest.importorskip("torch")
    _, values = plan_of({"w": torch.tensor([1.5, -2.0], dtype=torch.bfloat16)}, dps.optim.SGD(0.1), [0], None, None)
    assert values["w"].dtype == DTYPES["bfloat16"]
    assert wide(values["w"]).tolist() == [1.5, -2.0]
