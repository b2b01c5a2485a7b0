"""The table of `dps monitor`: what tasks do, by the counters of chief and ps, and what they use, by the run's files."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dps
from dps.launch.runs import folder, keeper, monitor
from dps.launch.runs import usage as gpus
from dps.launch.runs.monitor import COLUMNS, Monitor, shown
from dps.launch.runs.table import Plain, Rich, fitting, screen
from dps.launch.runs.usage import UsageMeter
from dps.launch.runs.view import View, read_run
from dps.launch.supervision.plan import small_plan
from dps.transport.clock import wall

DIM = 250_000
"""Elements of the variable: 1 MB."""


class Clock:
    """Each look at the table is a second after the one before."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    """A run in which one worker has pushed and pulled, and whose files tell what its tasks use."""
    path = folder.create(str(tmp_path))
    keeper.prepare_run(path, small_plan(1, 2, ("train.py",)), {"name": "x", "command": "", "values": {}})
    used = {"worker:0": {"cpu_percent": 98.6, "memory_mb": 120.4, "gpu_percent": 50.0, "gpu_memory_mb": 900.2}}
    folder.write(os.path.join(path, "usage.json"), used | {"ps:0": {"cpu_percent": 10.0, "memory_mb": 99.9}})
    made = read_run(path, wall())
    with dps.Server.create_local_server() as server:
        made.values["chief"] = server.target
        for name in made.tasks:
            made.tasks[name] |= {"state": "RUNNING", "host": "elsewhere"}
        params = {"w": np.zeros(DIM, np.float32)}
        hooks = [dps.LogMetrics(10**9, batch=32)]
        with dps.Session(server, params, optimizer=dps.optim.SGD(1.0), hooks=hooks) as session:
            made.asked["session"] = session
            yield made


def test_rates_come_from_the_ps_and_use_from_the_files(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, session = Clock(), view.asked["session"]
    monkeypatch.setattr(monitor, "now", clock)
    looks = Monitor()
    looks.rows(view)
    for _ in range(4):
        session.push({"w": np.ones(DIM, np.float32)})
    session.pull()
    clock.at += 2.0
    rows = {row["task"].partition(".")[2]: row for row in looks.rows(view)}
    looks.close()
    assert all(tuple(row) == COLUMNS for row in rows.values())
    worker, ps, chief, other = (rows[name] for name in ("worker.0", "ps.0", "chief", "worker.1"))
    assert (worker["step"], worker["pushes/s"], worker["examples/s"], worker["staleness"]) == (4, 2.0, 64.0, 0)
    assert (ps["step"], ps["pushes/s"], ps["MB/s in"]) == (4, 2.0, 2.0)
    assert worker["MB/s out"] == 2.0 and worker["MB/s in"] == ps["MB/s out"] >= 0.5
    assert [worker[name] for name in ("CPU %", "memory MB", "GPU %", "GPU MB")] == [99, 120, 50, 900]
    assert (ps["CPU %"], ps["GPU %"], chief["CPU %"], other["step"]) == (10, None, None, None)
    texts = {row["task"]: row for row in shown(list(rows.values()))}
    assert [texts[f"{view.id}.worker.0"][name] for name in ("examples/s", "GPU %")] == ["64", "50"]
    assert [texts[f"{view.id}.ps.0"][name] for name in ("examples/s", "GPU %", "GPU MB")] == ["N/A"] * 3


def test_without_an_answer_the_table_has_what_the_files_say(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "ANSWER_S", 0.05)
    view.values["chief"] = "127.0.0.1:9"
    looks = Monitor()
    rows = {row["task"]: row for row in looks.rows(view)}
    looks.close()
    assert rows[f"{view.id}.worker.0"]["CPU %"] == 99 and rows[f"{view.id}.worker.0"]["step"] is None


@pytest.mark.parametrize("rows", [False, True])
def test_what_sparse_and_partial_pushes_and_lookups_move_is_counted(rows: bool) -> None:
    params = {"table": dps.Variable(np.zeros((1000, 4), np.float32), sparse=True)}
    with (
        dps.Server.create_local_server() as server,
        dps.Session(server, params, optimizer=dps.optim.SGD(1.0)) as session,
    ):
        before = session.stats()["ps:0"]["sessions"]["worker:0"]
        if rows:
            session.push({"table": dps.Rows(np.arange(10), np.ones((10, 4), np.float32))})
        else:
            session.lookup("table", np.arange(10))
        after = session.stats()["ps:0"]["sessions"]["worker:0"]
    received, sent = after["received"] - before["received"], after["sent"] - before["sent"]
    assert (160 <= received <= 300 and sent == 0) if rows else (received, sent) == (0, 160)


def test_a_meter_tells_processor_time_since_it_last_looked() -> None:
    meter, stop = UsageMeter(), threading.Event()
    first = meter.measure_tasks({"own": os.getpid(), "gone": 2**22 + 1})
    assert first.keys() == {"own"} and first["own"].keys() == {"memory_mb"} and first["own"]["memory_mb"] > 1
    end = sum(os.times()[:2]) + 0.05
    while sum(os.times()[:2]) < end and not stop.is_set():
        pass
    assert 0 < meter.measure_tasks({"own": os.getpid()})["own"]["cpu_percent"] < 1000


class Nvml(ModuleType):
    """As much of pynvml as dps uses: two GPUs, of which the second does not tell processes apart."""

    NVML_ERROR_NOT_FOUND = 6

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            self.value = value

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[Any]:
        megabytes = {7: 300, 8: None} if device == 0 else {7: 100}
        return [SimpleNamespace(pid=p, usedGpuMemory=m and m * 1e6) for p, m in megabytes.items()]

    def nvmlDeviceGetProcessUtilization(self, device: int, since: int) -> list[Any]:
        if device:
            raise self.NVMLError(3)
        if since:
            raise self.NVMLError(6)
        return [SimpleNamespace(pid=7, smUtil=util, timeStamp=at) for at, util in ((2, 40), (1, 90))]

    def nvmlDeviceGetUtilizationRates(self, device: int) -> Any:
        return SimpleNamespace(gpu=25)


def test_gpu_figures_are_those_of_each_process() -> None:
    found = gpus.Gpus(Nvml("pynvml"))
    found.read_gpus()
    assert found.latest == {7: {"gpu_memory_mb": 400.0, "gpu_percent": 65.0}, 8: {"gpu_percent": 0.0}}
    found.read_gpus()
    assert found.latest[7]["gpu_percent"] == 25.0, "nobody has computed on the first one since"


def test_without_nvml_there_are_no_gpu_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Nvml("pynvml")
    broken.nvmlInit = lambda: (_ for _ in ()).throw(broken.NVMLError(9))  # type: ignore[method-assign]
    for module in (None, broken):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        assert gpus._find_gpus() is None


def test_the_screen_is_rich_where_that_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module, kind in ((None, Plain), ("rich", Rich)):
        if module is None:
            monkeypatch.setattr("dps.launch.runs.table.importlib.util.find_spec", lambda name: None)
        else:
            pytest.importorskip(module)
            monkeypatch.undo()
        drawn = screen()
        assert isinstance(drawn, kind)
        drawn.show("run 1: RUNNING", ("task", "state"), [{"task": "1.ps.0", "state": "RUNNING"}])
        drawn.close()
        said = capsys.readouterr().out
        assert "run 1: RUNNING" in said and "1.ps.0" in said and "TASK" in said, kind


def test_columns_that_have_no_room_are_left_out_from_the_right() -> None:
    columns, rows = ["task", "state", "examples/s"], [{"task": "1.worker.0", "state": "RUNNING"}]
    assert fitting(columns, rows, 200) == columns
    assert fitting(columns, rows, 10 + 2 + 7 + 2 + 10) == columns
    assert fitting(columns, rows, 10 + 2 + 7 + 2 + 9) == ["task", "state"]
    assert fitting(columns, rows, 5) == ["task"]
