"""benchmarks/overhead.py: what a ps adds to a step, by size and computing time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import dps
from benchmarks.bare_pair import BarePair
from benchmarks.overhead import BARE, Model, bare_forms, draw, forms, main, products_for, summary, table
from dps.monitor.loops import LOCAL
from tests.in_process import cluster

ROUNDS = [
    {
        LOCAL: 1e-3,
        "step": 1.5e-3,
        "pull and push": 2e-3,
        "in place": 1.2e-3,
        "overlapped": overlapped,
        "overlapped in place": 1.05e-3,
        BARE[0]: 1.1e-3,
        BARE[1]: 1e-3,
    }
    for overlapped in (1.0e-3, 1.1e-3, 9e-4)
]


def test_a_row_has_the_median_of_what_each_form_adds() -> None:
    row = summary(100_000, 0.5, ROUNDS)
    assert row["added"] == pytest.approx(
        {"step": 0.5, "pull and push": 1.0, "in place": 0.2, "overlapped": 0.0, "overlapped in place": 0.05}
        | {BARE[0]: 0.1, BARE[1]: 0.0}
    )
    head, line = table([row])
    assert " ".join(line.split()) == "400 KB 1.00 ms +50% +100% +20% +0% +5% +10% +0%"
    assert head.split()[:3] == ["model", "alone", "step"]


def test_all_forms_and_the_local_loop_make_the_same_steps() -> None:
    with cluster(transport="inproc") as (worker,):
        model = Model(50, products_for(0.01))
        with dps.Session(worker, {"w": model.values}, optimizer=dps.optim.SGD(1e-3)) as session:
            loops = forms(model, session)
            for name in loops.keys() - {LOCAL}:
                before = session.global_step
                loops[name](5)
                session.pull()
                assert session.global_step == before + 5, name
            values = session.pull()["w"]
        assert np.all(values < 1) and np.all(values > 0.99)


def test_the_bare_pair_trains_as_the_local_loop_does() -> None:
    model = Model(50, 1)
    pair = BarePair(model.values, 1e-3)
    loops, values = bare_forms(model, pair), model.values
    loops["bare in place"](4)
    for _ in range(4):
        values = values - np.float32(1e-3) * (values * np.float32(1e-3))
    last = pair.step()
    np.testing.assert_allclose(last, values - np.float32(1e-3) * pair.gradient, rtol=1e-6)
    loops["bare step"](3)
    pair.close()


def test_the_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason='needs matplotlib: pip install "dps[notebook]"')
    rows = [summary(elements, ms, ROUNDS) for elements in (1000, 100_000) for ms in (0.5, 2.0)]
    draw({"cores": 2, "results": rows}, tmp_path / "overhead.svg")
    assert "one worker and one ps on 2 cores" in (tmp_path / "overhead.svg").read_text()


@pytest.mark.nightly
@pytest.mark.slow
def test_the_program_measures_and_writes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    assert main(["--rounds", "1", "--elements", "1000", "--milliseconds", "0.5", "--json", str(file)]) == 0
    (row,) = json.loads(file.read_text())["results"]
    assert row["nbytes"] == 4000 and row["local_ms"] > 0.2 and "alone" in capfd.readouterr().out
