"""The benchmark of a GPU runs in numba's simulator: every work once, and a file with what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import gpu

WORKS = {
    "copy", "sgd", "momentum", "adagrad", "rmsprop", "adam", "ftrl", "all_finite", "gather",
    "sparse adagrad", "sparse adagrad, row-wise", "dense 5 x 7 x 4", "dense 5 x 7 x 4, backward", "staging to the GPU",
    "staging to the GPU, pinned", "staging to the host", "staging to the host, pinned", "step, gradients on the GPU",
    "step through a session",
}  # fmt: skip


def test_every_work_is_measured_and_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gpu.json"
    gpu.main(["--small", "--rounds", "2", "--json", str(file)])
    found = json.loads(file.read_text())
    rows = {row["work"]: row for row in found["results"]}
    assert len(rows) == len(found["results"])
    assert {name for name in rows if not name.startswith("cuBLAS")} == WORKS
    assert all(row["rate"] > 0 and row["ms"] > 0 for row in rows.values())
    assert {row["of_limit"] is None for row in rows.values() if row["limit"]} == {False}
    assert (rows["adam"]["goal"], rows["gather"]["goal"], rows["copy"]["goal"]) == (0.85, 0.70, None)
    assert found["machine"].keys() == {"device", "simulated", "cuda", "driver", "torch", "dps"}
    printed = capsys.readouterr().out
    assert found["machine"]["device"] in printed and all(f"| {name} |" in printed for name in rows)


def test_rates_are_medians_of_rounds_and_ratios_are_taken_round_by_round() -> None:
    known = {"copy": [1.0, 4.0, 2.0]}
    work = gpu.Work("some", lambda: None, 2.0, "GB/s", "copy", 0.85)
    seconds = iter([2.0, 0.5, 4.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "timed", lambda call, calls: next(seconds))
        (row,) = gpu.measured(iter([work]), gpu.SMALL, 3, known)
    assert known["some"] == [1.0, 4.0, 0.5]
    assert (row.rate, row.ms, row.of_limit) == (1.0, 2000.0, 1.0)
