"""How cost grows: which points there are; a small run with its picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import scale
from dps.monitor.works import Table, nbytes


def test_the_sweeps_are_those_of_the_goals() -> None:
    found = list(scale.points(scale.SWEEPS, 10**9))
    xs = {sweep: sorted({p.x for p in found if p.sweep == sweep}) for sweep in scale.SWEEPS}
    assert xs["workers"] == [1, 2, 4, 8, 16, 32]
    assert xs["ps"] == [1, 2, 4]
    assert xs["variables"] == [1, 10, 100, 1000, 10_000, 100_000]
    assert xs["rows"] == [10**4, 10**5, 10**6, 10**7, 10**8]
    assert {p.nbytes for p in found if p.sweep == "extremes"} == {100_000 * 64, 1 << 30}


def test_only_the_number_of_variables_differs() -> None:
    sizes = {nbytes(p.setting.size) for p in scale.points(["variables"], 10**9)}
    assert sizes == {100_000 * 64 * 4}


def test_rows_of_a_large_table_are_distinct_and_in_range() -> None:
    rows = Table(10**8, 8192, 8).drawn(1)
    assert len(set(rows.tolist())) == 8192
    assert rows.min() >= 0 and rows.max() < 10**8
    assert sum(rows < 10**7) > 4096


def test_what_does_not_fit_into_memory_is_left_out_and_said() -> None:
    (point,) = (p for p in scale.points(["rows"], 10**9) if p.x == 10**8)
    too_large = scale.Point(point.sweep, point.x, point.setting, point.works, 10**18)
    rows, failures = scale.run([too_large], 1, 0.01)
    assert rows == []
    assert failures == ["rows 100,000,000: left out, it takes about 4000000000.0 GB"]


@pytest.mark.nightly
def test_a_small_run_writes_figures_and_a_picture(tmp_path: Path) -> None:
    out, picture = tmp_path / "scale.json", tmp_path / "scale.svg"
    flags = ["--sweeps", "variables,rows", "--most", "1", "--rounds", "1", "--seconds", "0.01"]
    assert scale.main([*flags, "--out", str(out), "--picture", str(picture)]) == 0
    rows = json.loads(out.read_text())["results"]
    assert [(row["sweep"], row["work"], row["in_place"]) for row in rows] == [
        ("variables", "pull", False), ("variables", "push", False), ("variables", "step", False),
        ("variables", "step", True), ("rows", "sparse pull", False), ("rows", "sparse push", False),
    ]  # fmt: skip
    assert all(row["per_s"] > 0 for row in rows)
    assert "rows of the table" in picture.read_text() or picture.stat().st_size > 10_000
