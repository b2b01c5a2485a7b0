"""benchmarks/scale_out.py: its figures, its table, and what it says where there can be no links."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import scale_out
from benchmarks.scale_out import Case, main, meaning, rate, row_of, table
from benchmarks.scale_out_sides import AFTER, AT_ONCE, TOGETHER, requests_of, row_lists

STEP = Case("step", "async", workers=2, ps=2, megabits=100, nbytes=10_000_000, rows=8192)


def row(ps: int, calls_per_s: float, work: str = "step") -> dict[str, Any]:
    case = Case(work, "async", 2, ps, 100, 10_000_000, 8192)
    found = {"raw": [2.0 * ps, 2.0 * ps], "dps": [calls_per_s, calls_per_s]}
    return row_of(case, 3, found, {"raw": [123e6, 123e6], "dps": [126e6, 126e6]})


def test_the_rate_leaves_out_the_time_in_which_links_fill_or_run_empty() -> None:
    """One worker's calls end at 2, 3, 4, the other's at 1, 3, 5: from 2 to 4 these are 2 and 1 calls."""
    assert rate([[0.0, 2.0, 3.0, 4.0], [0.0, 1.0, 3.0, 5.0]]) == pytest.approx(1.5)


def test_a_single_call_counts_from_the_first_begin_to_the_last_end() -> None:
    assert rate([[0.0, 2.0], [1.0, 4.0]]) == pytest.approx(2 / 4)


def test_a_case_knows_what_its_links_need() -> None:
    one_way = 2 * 10e6 / (2 * 100e6 / 8 * 0.955)
    assert STEP.link_s == pytest.approx(one_way)
    assert Case("step", "sync", 2, 2, 100, 10_000_000, 8192).link_s == pytest.approx(2 * one_way)
    assert Case("rows", "async", 2, 2, 100, 10_000_000, 8192).link_s == pytest.approx(2 * one_way)
    assert STEP.share(2 / one_way) == pytest.approx(0.955)


def test_raw_tcp_is_asked_for_what_a_call_moves() -> None:
    assert requests_of("step", "async", 800, 0) == [(800, 800, AT_ONCE)]
    assert requests_of("step", "sync", 800, 0) == [(800, 800, TOGETHER)]
    assert requests_of("rows", "sync", 0, 10) == [(40, 2560, AFTER), (2600, 0, TOGETHER)]


def test_lists_of_rows_are_distinct_and_those_of_the_worker() -> None:
    first, second = next(row_lists(0, 100, 1)), next(row_lists(1, 100, 1))
    assert len(np.unique(first)) == len(np.unique(second)) == 100
    assert not np.array_equal(first, second)


def test_the_table_has_growth_shares_and_the_ratio_to_raw_tcp() -> None:
    rows = [row(1, 1.5), row(4, 6.0)]
    head, _, one, four = table(rows).splitlines()
    assert "times one ps" in head
    assert "torch" not in head
    assert one == "| step | async | 2 | 1 | 15.0 | 1.00 | 1.20 | 1.60 | 0.75 (0.75 to 0.75) |"
    assert four == "| step | async | 2 | 4 | 60.0 | 4.00 | 1.20 | 1.60 | 0.75 (0.75 to 0.75) |"
    assert rows[0]["systems"]["dps"]["bytes_for_one"] == 1.05


def test_one_line_says_what_it_means() -> None:
    assert meaning([row(1, 1.5), row(4, 6.0), row(1, 2.0, "rows"), row(4, 4.0, "rows")]) == (
        "step 4.00 times as fast with 4 ps as with 1, and 0.75 of raw TCP; "
        "rows 2.00 times as fast with 4 ps as with 1, and 0.50 to 1.00 of raw TCP "
        "(goals: 3.2 times with 4 ps, 0.85 of raw TCP, which 1 of 4 reach)"
    )


def test_without_root_it_refuses_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "scale_out.py: network namespaces need root and iproute2 (ip, tc)\n"


def test_unknown_works_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--works", "step,swim"])
    assert "swim: wanted some of step, push, pull, rows, async, sync" in capsys.readouterr().err


def test_earlier_runs_are_shown_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="draws a picture")
    files = []
    for name, ps in (("one", 1), ("four", 4)):
        files.append(str(tmp_path / f"{name}.json"))
        found = {"machine": {"cores": 2}, "results": [row(ps, 1.5 * ps)], "failures": []}
        Path(files[-1]).write_text(json.dumps(found))
    picture = tmp_path / "scale-out.svg"
    assert scale_out.main(["--plot", *files, "--picture", str(picture)]) == 0
    assert "| step | async | 2 | 4 | 60.0 | 4.00 |" in capsys.readouterr().out
    assert 'aria-label="Plots of MB/s against the number of ps' in picture.read_text()
