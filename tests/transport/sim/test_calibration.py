"""Calibrations: their files, what `dps.simulate` makes of them, and where the network card of a ps is full."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.cli import main
from dps.transport.sim import Calibration, Handling, LaneCosts

PS, WORKER = Handling(200e-6, 4e-10, 100e-6, 2e-10, beside=0.1), Handling(80e-6, 2e-10, 80e-6, 2e-10, 300e-6)
LANE = LaneCosts(PS, WORKER, 10e-6, ((1e-3, 0.0), (2e-3, 50e-6)))
MADE = Calibration("mine", 4, LANE, LANE, (1e-10, 2e-10), 1.25e9, 50e-6, {"measured": "2026-11-28"})
MB = {"w": np.zeros(262_144, np.float32)}


def train(server: dps.Server, pushes: int, params: Any = None) -> float:
    """The virtual seconds that some pushes took, once all workers have begun."""
    params = {"w": np.zeros(16, np.float32)} if params is None else params
    gradients = {name: np.ones_like(value) for name, value in params.items()}
    with dps.Session(server, params, optimizer=dps.optim.SGD(0.1), timeout=600) as session:
        session.push(gradients)
        began = server.runtime.now()
        for _ in range(pushes):
            session.push(gradients)
        return float(server.runtime.now() - began)


def spoilt(path: Path, **changes: Any) -> Path:
    """The file of a calibration with other values in some places, such as sockets__trip_s."""
    MADE.write(path)
    found = json.loads(path.read_text())
    for name, value in changes.items():
        *above, last = name.split("__")
        place = found
        for part in above:
            place = place[part]
        if value is None:
            del place[last]
        else:
            place[last] = value
    path.write_text(json.dumps(found))
    return path


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    MADE.write(tmp_path / "mine.json")
    assert Calibration.read(tmp_path / "mine.json") == MADE


def test_the_shipped_one_is_of_a_machine_that_can_be() -> None:
    shipped = Calibration.shipped()
    assert shipped.cores == 2 and str(shipped).startswith("shipped (2 cores")
    for lane in (shipped.sockets, shipped.shared_memory):
        for each in (lane.ps, lane.worker):
            assert 1e-6 < each.received_s < 1e-2 and 1e-6 < each.sent_s < 1e-2
            assert 0 <= each.received_byte_s < 1e-8 and 0 <= each.beside < 1
    assert list(shipped.update_byte_s) == sorted(shipped.update_byte_s)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 7}, '"format": 1'),
        ({"sockets": None}, "the calibration lacks sockets"),
        ({"sockets__ps": None}, "sockets lacks ps"),
        ({"sockets__ps__recieved_s": 1.0}, "sockets.ps has recieved_s, which is not known"),
        ({"sockets__trip_s": -1.0}, "sockets.trip_s: got -1.0, wanted a number of 0 or more"),
        ({"sockets__rested": [[1.0, 0.0], 5]}, "sockets.rested"),
        ({"update_byte_s": "fast"}, "update_byte_s: got 'fast', wanted a list"),
        ({"cores": 0}, "cores=0"),
        ({"cores": "two"}, "cores: got 'two'"),
        ({"card_bytes_per_s": float("nan")}, "card_bytes_per_s: got nan"),
    ],
)
def test_a_bad_file_gets_one_error_that_says_what_is_bad(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = spoilt(tmp_path / "bad.json", **changes)
    with pytest.raises(dps.ConfigError, match="bad.json is no calibration: .*dps bench --calibrate FILE") as caught:
        Calibration.read(path)
    assert said in str(caught.value)


def test_no_file_and_no_json_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "text.json").write_text("no figures")
    for name, said in (("none.json", "No such file"), ("text.json", "Expecting value")):
        with pytest.raises(dps.ConfigError, match=f"{name} is no calibration: .*{said}"):
            dps.simulate(train, 1, calibration=tmp_path / name)
    with pytest.raises(dps.ConfigError, match='calibration: got 7, wanted "shipped"'):
        dps.simulate(train, 1, calibration=7)  # type: ignore[arg-type]


def test_a_run_says_which_calibration_it_had(tmp_path: Path) -> None:
    MADE.write(tmp_path / "mine.json")
    shipped = dps.simulate(train, 3)
    assert shipped.calibration == str(Calibration.shipped())
    assert str(shipped).endswith(f"; calibration: {Calibration.shipped()}")
    assert dps.simulate(train, 3, calibration=tmp_path / "mine.json").calibration == "mine"
    assert dps.simulate(train, 3, calibration=MADE).calibration == "mine"
    bare = dps.simulate(train, 3, calibration=None)
    assert "; calibration: none, messages and arithmetic take no core" in str(bare)
    own = dps.simulate(train, 3, machines=dps.sim.Machines())
    assert own.calibration == "none, machines were given"


def test_a_push_takes_what_the_calibration_says() -> None:
    """A worker's and a ps's message and answer, and the link twice; nothing without a calibration but the link."""
    network = dps.sim.Network(latency_s=1e-3, jitter=0.0, bytes_per_s=1e15)
    costs = replace(LANE, ps=replace(PS, received_byte_s=0.0, sent_byte_s=0.0, beside=0.0), rested=())
    worker = replace(WORKER, received_byte_s=0.0, sent_byte_s=0.0)
    made = Calibration("mine", 4, replace(costs, worker=worker), LANE, (0.0,), 1e15, 0.0)
    settings: dict[str, Any] = {"network": network, "preempt": 0.0}
    (took,) = dps.simulate(train, 10, calibration=made, **settings).results
    (bare,) = dps.simulate(train, 10, calibration=None, **settings).results
    of_a_push = 300e-6 + (80 + 80) * 1e-6 + (200 + 100) * 1e-6
    assert bare == pytest.approx(10 * 2e-3, rel=0.01)
    assert took - bare == pytest.approx(10 * of_a_push, rel=0.1)


def test_the_arithmetic_of_a_ps_takes_time() -> None:
    slow = replace(MADE, update_byte_s=(1e-7,), card_bytes_per_s=1e15)
    (took,) = dps.simulate(train, 4, MB, calibration=slow).results
    (quick,) = dps.simulate(train, 4, MB, calibration=replace(slow, update_byte_s=(0.0,))).results
    assert took - quick == pytest.approx(4 * 1e-7 * (1 << 20), rel=0.05)


@pytest.mark.parametrize("ps", [1, 2])
def test_more_workers_bring_no_more_where_the_cards_of_the_ps_are_full(ps: int) -> None:
    """1 MB of each push, halved on two ps, over cards of 100 Mbit/s; a worker computes for 0.2 s."""
    params = {f"w{i}": np.zeros(131_072, np.float32) for i in range(2)}
    here = Calibration.shipped().with_card(0.1)
    rates = {}
    for workers in (1, 8):
        run = dps.simulate(train, 4, params, ps=ps, workers=workers, calibration=here, compute=dps.sim.Compute(0.2))
        rates[workers] = sum(4 / took_s for took_s in run.results)
    full = ps * here.card_bytes_per_s / (1 << 20)
    assert rates[1] < 0.5 * full
    assert 0.75 * full < rates[8] < 1.1 * full


def test_the_command_takes_a_file_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop.py").write_text(
        "import numpy as np, dps\n"
        "def train(server):\n"
        "    with dps.Session(server, {'w': np.zeros(2)}, optimizer=dps.optim.SGD(1.0)) as session:\n"
        "        session.push({'w': np.ones(2)})\n"
    )
    MADE.write(tmp_path / "mine.json")
    command = ["simulate", f"{tmp_path}/loop.py:train", "--calibration"]
    assert main([*command, str(tmp_path / "mine.json")]) == 0
    assert "calibration: mine\n" in capsys.readouterr().out
    assert main([*command, "none"]) == 0
    assert "calibration: none, " in capsys.readouterr().out
    assert main([*command, str(tmp_path / "loop.py")]) != 0
    assert "loop.py is no calibration" in capsys.readouterr().err
