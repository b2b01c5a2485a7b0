"""A ps that keeps variables in the memory of a GPU: the same training, checkpoints and refusals as on the CPU.

The GPU is numba's simulator, or with DPS_TEST_GPU=1 in the environment the one that is there.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps import optim
from dps.errors import ConfigError
from dps.kernels import device
from dps.ps.server import PsActor
from dps.ps.store.device_memory import DeviceMemory
from dps.ps.store.gradients import Gradient, RowGradient
from dps.ps.store.memory import gpu_index
from dps.ps.store.store import Store
from dps.transport.current import runtime
from dps.variables.plan import Plan, VariableSpec, make_plan
from tests.in_process import cluster, on_all

GPU, CPU = dps.Device("/job:ps/task:0/gpu:0"), dps.Device("/job:ps/task:0/cpu:0")


# ---- the store: a shard on a GPU beside the same shard on the CPU ----


def specs(optimizer: optim.Optimizer) -> list[VariableSpec]:
    wire = optimizer.to_wire()
    return [
        VariableSpec("a", (4, 3), "<f4", wire),
        VariableSpec("b", (), "<f8", wire),
        VariableSpec("counts", (2,), "<i8", None),
        VariableSpec("table", (6, 2), "<f4", wire, sparse=True),
        VariableSpec("nothing", (0, 3), "<f4", wire),
    ]


def store(optimizer: optim.Optimizer, where: dps.Device) -> Store:
    return Store(make_plan(specs(optimizer), (0,), lambda *_: where, None).layouts[0], runtime())


def filled(optimizer: optim.Optimizer, where: dps.Device) -> Store:
    made = store(optimizer, where)
    for arena in made.layout.arenas:
        values = np.random.default_rng(arena.offset).integers(-5, 5, arena.size).astype(arena.dtype)
        made.fill_values(arena.offset, values.view(np.uint8))
    return made


def held(made: Store) -> list[bytes]:
    """The values and slots of a store, as bytes."""
    return [m.read(slot, 0, m.arena.size).tobytes() for m in made.arenas for slot in (None, *m.slots)]


def updates() -> Iterator[Gradient]:
    """Dense, of some parts, of rows, and dense again when the parts have been updated unequally often."""
    rng = np.random.default_rng(3)
    a, table = rng.standard_normal((4, 3)), rng.standard_normal((2, 2))
    layout = store(optim.SGD(0.1), CPU).layout
    run = [rng.standard_normal(arena.size).astype(arena.dtype) for arena in layout.arenas]
    rows = RowGradient(np.array([1, 4]), table.astype("<f4"))
    yield Gradient(run, {})
    yield Gradient(None, {0: a.astype("<f4"), 3: rows})
    yield Gradient(None, {3: RowGradient(np.empty(0, np.int64), np.empty((0, 2), "<f4"))})
    yield Gradient(run, {})


@pytest.mark.parametrize(
    "optimizer",
    [optim.SGD(0.1), optim.Momentum(0.1, nesterov=True), optim.Adagrad(0.1), optim.RMSProp(0.1, centered=True),
     optim.Adam(0.1), optim.AdamW(0.1), optim.Ftrl(0.1, l1=0.1), optim.Ftrl(optim.WarmUp(0.1, 2))],
    ids=str,
)  # fmt: skip
def test_a_shard_on_the_gpu_has_the_bits_of_one_on_the_cpu(optimizer: optim.Optimizer) -> None:
    there, here = filled(optimizer, GPU), filled(optimizer, CPU)
    assert all(isinstance(memory, DeviceMemory) for memory in there.arenas)
    assert held(there) == held(here)
    for step, update in enumerate(updates()):
        there.apply_update(update, step, 0.5)
        here.apply_update(update, step, 0.5)
        assert held(there) == held(here)
        assert [m.applied.counts() for m in there.arenas] == [m.applied.counts() for m in here.arenas]
    assert there.counter == here.counter == 4


@pytest.mark.parametrize("optimizer", [optim.SGD(0.1), optim.Adam(0.1), optim.Adagrad(0.1, rowwise=True)], ids=str)
def test_gradients_that_are_on_the_gpu_stay_there_and_leave_the_same_bits(optimizer: optim.Optimizer) -> None:
    there, here = filled(optimizer, GPU), filled(optimizer, GPU)
    rng = np.random.default_rng(8)
    for step in (1, 2):
        run = [rng.standard_normal(arena.size).astype(arena.dtype) for arena in there.layout.arenas]
        assert there.apply_update(Gradient([device.to_device(g) for g in run], {}, checked=False), step) == ""
        assert here.apply_update(Gradient(run, {}, checked=False), step) == ""
        assert held(there) == held(here)
        for memory in there.arenas:
            assert isinstance(memory, DeviceMemory)
            assert device.to_host(memory._values).tobytes() == memory.values.tobytes()
    run[0][4] = np.nan
    before = held(there)
    refused = there.apply_update(Gradient([device.to_device(g) for g in run], {}, checked=False), 3)
    assert refused == "the gradient of a has NaN or infinite values (first at element 4)"
    assert held(there) == before and there.counter == 2


def leased(made: Store, parts: list[int] | None = None) -> Any:
    return made.hold(arenas=made.refresh(parts or []))


def test_a_leased_version_stays_while_the_gpu_goes_on() -> None:
    made = filled(optim.SGD(1.0), GPU)
    first = leased(made)
    before = [array.copy() for array in first.arrays]
    run = Gradient([np.ones(a.size, a.dtype) for a in made.layout.arenas], {})
    made.apply_update(run, 1)
    assert made.hold() is None  # nobody has asked the GPU for this version
    second = leased(made)
    made.apply_update(run, 2)
    for array, was, memory in zip(first.arrays, before, made.arenas, strict=True):
        assert array.tobytes() == was.tobytes()
        assert memory.values.tobytes() == (was if memory.optimizer is None else was - 2).tobytes()
    for array, was, memory in zip(second.arrays, before, made.arenas, strict=True):
        assert array.tobytes() == (was if memory.optimizer is None else was - 1).tobytes()


def test_values_are_set_on_the_gpu_after_the_gradients_and_slots_stay() -> None:
    on_gpu, on_cpu = (filled(optim.Momentum(0.1), where) for where in (GPU, CPU))
    first = leased(on_gpu)
    before = [array.copy() for array in first.arrays]
    for made in (on_gpu, on_cpu):
        for update in updates():
            made.apply_update(update, 1)
        slots = held(made)
        values = {0: np.full((4, 3), 7, "<f4"), 2: np.array([1, 2], "<i8"), 4: np.empty((0, 3), "<f4")}
        made.apply_update(Gradient(None, {}, values=values), 1)
        assert made.part(made.layout.arenas[0].parts[0]).tolist() == [[7.0] * 3] * 4
        assert held(made)[1] == slots[1] and [max(memory.applied.counts()) for memory in made.arenas][:2] == [3, 2]
    assert held(on_gpu) == held(on_cpu)
    assert [array.tobytes() for array in first.arrays] == [array.tobytes() for array in before]


def test_a_version_is_copied_out_once_whoever_reads_and_memory_of_readers_is_used_again() -> None:
    made = filled(optim.SGD(1.0), GPU)
    run = Gradient([np.ones(a.size, a.dtype) for a in made.layout.arenas], {})
    for _ in range(5):
        one, two = leased(made), leased(made)
        assert all(a.ctypes.data == b.ctypes.data for a, b in zip(one.arrays, two.arrays, strict=True))
        one.release()
        two.release()
        made.apply_update(run, 1)
    assert all(len(memory.buffers) == 1 for memory in made.arenas)


def test_no_third_version_is_leased_so_that_the_next_one_finds_memory() -> None:
    made = filled(optim.SGD(1.0), GPU)
    run = Gradient([np.ones(a.size, a.dtype) for a in made.layout.arenas], {})
    kept = []
    for _ in range(2):
        kept.append(leased(made))
        made.apply_update(run, 1)
    assert None not in kept and leased(made) is None
    made.apply_update(run, 1)
    assert leased(made) is None
    kept[0].release()
    assert leased(made) is not None
    assert {len(memory.buffers) for memory in made.arenas if memory.optimizer is not None} == {3}


def test_a_lease_outlives_the_memory_on_the_gpu() -> None:
    made = filled(optim.SGD(1.0), GPU)
    lease = leased(made)
    before = [array.copy() for array in lease.arrays]
    made.close()
    assert all(a.tobytes() == b.tobytes() for a, b in zip(lease.arrays, before, strict=True))
    lease.release()
    assert made.leased() == 0


def test_a_reader_of_some_parts_leaves_the_others_on_the_gpu() -> None:
    made = filled(optim.SGD(1.0), GPU)
    lease = leased(made, [0])
    assert lease.arrays[0].tobytes() == made.arenas[0].values.tobytes()
    assert [len(memory.buffers) for memory in made.arenas] == [1, 0, 0, 0]
    lease.release()
    assert made.leased() == 0


def test_rows_are_looked_up_on_the_gpu() -> None:
    made = filled(optim.SGD(1.0), GPU)
    part = next(p for a in made.layout.arenas for p in a.parts if p.name == "table")
    table = made.arenas[made.layout.place[part.index][0]].values.reshape(6, 2)
    assert made.gather(part, np.array([5, 0, 5])).tolist() == table[[5, 0, 5]].tolist()
    assert made.gather(part, np.empty(0, np.int64)).shape == (0, 2)


def test_a_ps_told_to_use_a_gpu_keeps_there_what_says_nothing_of_a_device() -> None:
    layout = make_plan(specs(optim.SGD(1.0)), (0,), lambda name, *_: CPU if name == "a" else 0, None).layouts[0]
    made = Store(layout, runtime(), "gpu:0")
    found = {memory.arena.parts[0].name: memory.on_device for memory in made.arenas}
    assert found == {"a": False, "b": True, "counts": True, "table": True, "nothing": True}


@pytest.mark.parametrize(
    ("said", "index"), [("", None), ("cpu", None), ("gpu", 0), ("gpu:1", 1), ("/device:GPU:2", 2), ("/cpu:0", None)]
)
def test_devices_of_a_ps_are_said_as_everywhere(said: str, index: int | None) -> None:
    assert gpu_index(said) == index


@pytest.mark.parametrize("said", ["tpu:0", "/job:ps/gpu:0", "gpu:first", "gpu:99"])
def test_a_ps_on_a_device_that_it_cannot_have_is_not_made(said: str) -> None:
    with pytest.raises(ConfigError):
        PsActor(said)


# ---- a cluster ----


def params() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "w": rng.standard_normal((5, 4)).astype(np.float32),
        "b": np.float64(0.5),
        "table": dps.Variable(rng.standard_normal((9, 3)).astype(np.float32), sparse=True),
    }


def gradients(worker: int, step: int) -> dict[str, Any]:
    rng = np.random.default_rng((worker, step))
    rows = rng.integers(0, 9, 4)
    return {
        "w": rng.standard_normal((5, 4)).astype(np.float32),
        "b": np.float64(rng.standard_normal()) if step % 2 else None,
        "table": dps.Rows(rows, rng.standard_normal((4, 3)).astype(np.float32)),
    }


def on(where: str, ps: int = 1) -> Any:
    return dps.replica_device_setter(ps_tasks=ps, ps_device=f"/job:ps{where}")


def trained(where: str, update: Any, workers: int, ps: int = 1) -> dict[str, Any]:
    """The variables after four steps of each worker."""

    def work(server: dps.Server) -> Any:
        with dps.Session(server, params(), optimizer=optim.Adagrad(0.1), placement=on(where, ps)) as session:
            for step in range(4):
                session.push(gradients(server.task, step))
            rows = session.lookup("table", [8, 0, 8])
            with session.view() as seen:
                return {**{name: np.array(v) for name, v in seen.items()}, "rows": rows}

    with cluster(ps=ps, workers=workers, transport="inproc", update=update) as servers:
        return on_all(servers, work)[0]


@pytest.mark.parametrize(
    ("update", "workers", "ps"),
    [(dps.Async(), 1, 1), (dps.Async(compensation=0.04), 1, 2), (dps.SyncReplicas(), 2, 2)],
    ids=["async", "async compensated", "sync"],
)
def test_training_on_a_gpu_gives_what_the_cpu_gives(update: Any, workers: int, ps: int) -> None:
    there, here = (trained(where, update, workers, ps) for where in ("/gpu:0", "/cpu:0"))
    assert there.keys() == here.keys()
    for name, values in there.items():
        np.testing.assert_allclose(values, here[name], rtol=1e-6, atol=1e-6)
        assert not np.allclose(here["w"], params()["w"])


def test_a_checkpoint_moves_from_gpu_to_cpu_and_back(tmp_path: Path) -> None:
    found = []
    for run, where in enumerate(["/gpu:0", "/cpu:0", "/gpu:0"]):
        with (
            cluster(transport="inproc") as [server],
            dps.Session(
                server, params(), optimizer=optim.Adam(0.1), placement=on(where), checkpoint_dir=tmp_path
            ) as session,
        ):
            assert session.global_step == 2 * run
            for step in (2 * run, 2 * run + 1):
                session.push(gradients(0, step))
            session.save()
            found.append(session.pull())
    with (
        cluster(transport="inproc") as [server],
        dps.Session(server, params(), optimizer=optim.Adam(0.1)) as session,
    ):
        for step in range(6):
            session.push(gradients(0, step))
        at_once = session.pull()
    for name, values in at_once.items():
        np.testing.assert_allclose(found[-1][name], values, rtol=1e-6, atol=1e-6)


def test_a_gradient_with_nan_is_refused_and_the_gpu_keeps_its_values() -> None:
    with (
        cluster(transport="inproc") as [server],
        dps.Session(server, params(), optimizer=optim.SGD(0.1), placement=on("/gpu:0")) as session,
    ):
        bad = {"w": np.full((5, 4), np.nan, np.float32)}
        with pytest.raises(ValueError, match="w has NaN"):
            session.push(bad)
        np.testing.assert_array_equal(session.pull()["w"], params()["w"])


def test_scopes_and_variables_say_where_they_live() -> None:
    with dps.device("/gpu:0"):
        scoped = dps.Variable(np.ones(3, np.float32))
    tree = {"scoped": scoped, "pinned": dps.Variable(np.ones(3, np.float32), device=GPU), "free": np.ones(3, "<f4")}
    with (
        cluster(transport="inproc") as [server],
        dps.Session(server, tree, optimizer=optim.SGD(1.0)) as session,
    ):
        plan = session._connection.agreed.plan
        assert [(p.name, p.device) for p in plan.parts] == [("scoped", "GPU:0"), ("pinned", "GPU:0"), ("free", "")]
        assert [[p.name for p in a.parts] for a in plan.layouts[0].arenas] == [["scoped", "pinned"], ["free"]]
        session.push({name: np.ones(3, np.float32) for name in tree})
        assert {name: v.tolist() for name, v in session.pull().items()} == {name: [0, 0, 0] for name in tree}


def test_memory_that_is_neither_a_cpus_nor_a_gpus_is_refused() -> None:
    with pytest.raises(dps.PlacementError, match=r"w was placed on /job:ps/task:0/device:TPU:0; wanted the memory of"):
        make_plan(
            [VariableSpec("w", (1,), "<f4", None)], (0,),
            lambda *_: dps.Device("/job:ps/device:TPU:0", task=0), None,
        )  # fmt: skip


def test_devices_travel_with_the_plan_and_nonsense_does_not() -> None:
    plan = make_plan(specs(optim.SGD(0.1)), (0,), lambda *_: GPU, None)
    wire = plan.to_wire()
    assert Plan.from_wire(wire) == plan
    with pytest.raises(dps.ProtocolError, match="parts are on 'GPU:0/../etc'"):
        Plan.from_wire({**wire, "places": [[0, "GPU:0/../etc"]]})


@contextmanager
def no_driver() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "is_available", lambda: "CUDA cannot be used: CUDA driver library cannot be found")
        yield


def test_a_gpu_that_is_not_there_is_an_answer_and_the_ps_lives_on() -> None:
    with cluster(transport="inproc") as [server]:
        with pytest.raises(ConfigError, match=r"ps:0: w and 1 more.*got GPU:7, wanted 0 to \d.*; try GPU:0"):
            dps.Session(server, {"w": np.ones(2, "<f4"), "v": np.ones(2, "<f4")}, optimizer=optim.SGD(0.1),
                        placement=on("/gpu:7"))  # fmt: skip
        with no_driver(), pytest.raises(ConfigError, match=r"driver library.*dps\[gpu\].*NUMBA_ENABLE_CUDASIM=1"):
            dps.Session(server, params(), optimizer=optim.SGD(0.1), placement=on("/gpu:0"))
        with dps.Session(server, params(), optimizer=optim.SGD(0.1)) as session:
            assert session.push(gradients(0, 1)).accepted


CPU_RUN = """
import sys, numpy as np, dps
server = dps.Server.create_local_server()
with dps.Session(server, {"w": np.ones(3)}, optimizer=dps.optim.SGD(0.1)) as session:
    session.push({"w": np.ones(3)})
server.stop()
print([name for name in sys.modules if name.startswith("numba.cuda")])
"""


def test_a_ps_on_the_cpu_imports_nothing_of_cuda() -> None:
    done = subprocess.run([sys.executable, "-c", CPU_RUN], check=False, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
