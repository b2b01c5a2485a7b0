"""benchmarks/uneven.py: its table and picture, and a training of dps where links can be made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import uneven
from benchmarks.links import NoLinks, star


def found(*systems: str) -> dict[str, Any]:
    runs = [{"seconds": 4.0 + n, "steps": 40, "curve": [[1.0, 0.6], [4.0 + n, 0.94]]} for n in range(3)]
    rows = [
        uneven.row_of(name, [{**run, "seconds": run["seconds"] / (1 + at)} for run in runs])
        for at, name in enumerate(systems)
    ]
    about = {"workers": 4, "slower": 4.0, "batch_s": 0.05, "megabits": 200, "goal": 0.93}
    return {"machine": {"cores": 2}, "about": about, "results": rows, "failures": []}


def test_the_table_has_the_fastest_first() -> None:
    lines = uneven.table(found("DDP (gloo)", "dps async")["results"]).splitlines()
    assert lines[2] == "| dps async | 2.5 | 2.0, 3.0 | 62 |"
    assert lines[3] == "| DDP (gloo) | 5.0 | 4.0, 6.0 | 125 |"


def test_an_earlier_run_is_drawn_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "run.json").write_text(json.dumps(found("dps async")))
    assert uneven.main(["--plot", str(tmp_path / "run.json"), "--picture", str(tmp_path / "run.svg")]) == 0
    assert "links of 200 Mbit/s" in (tmp_path / "run.svg").read_text()
    assert "| dps async | 5.0 |" in capsys.readouterr().out


def test_a_system_that_there_is_not_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        uneven.main(["--systems", "dps async;horovod"])
    assert "'horovod' is none of 'dps async'" in capsys.readouterr().err


@pytest.mark.nightly
def test_four_workers_train_over_slow_links(capfd: pytest.CaptureFixture[str]) -> None:
    try:
        with star({"ps": 20}, "cubic"):
            pass
    except NoLinks as error:
        pytest.skip(str(error))
    assert uneven.main(["--systems", "dps async", "--rounds", "1", "--goal", "0.6", "--batch-ms", "20", "--json"]) == 0
    (row,) = json.loads(capfd.readouterr().out)["results"]
    assert row["system"] == "dps async" and row["curves"][0][-1][1] >= 0.6
