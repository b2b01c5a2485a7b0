"""`dps bench` on tiny works: the shape of its JSON, and figures that can be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dps.cli import main
from dps.monitor.works import SIZES

FIELDS = {
    "work", "transport", "nbytes", "variables", "ps", "workers", "per_s", "gb_per_s", "p50_us", "p99_us",
    "limit_gb_per_s", "of_limit",
}  # fmt: skip


def test_json_has_the_agreed_shape(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["--transports", "inproc", "--sizes", "4k", "--rounds", "1", "--seconds", "0.02"]
    assert main(["bench", "--json", "--works", "pull,push,step,sync", *flags]) == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    assert set(found) == {"machine", "results"}
    assert [r["work"] for r in found["results"]] == ["pull", "push", "step", "sync"]
    for row in found["results"]:
        assert set(row) == FIELDS
        assert row["per_s"] > 0 and row["p99_us"] >= row["p50_us"] * 0.5
        assert row["nbytes"] == 4096 * (2 if row["work"] in ("step", "sync") else 1)
        assert row["of_limit"] == pytest.approx(row["gb_per_s"] / row["limit_gb_per_s"])
    earlier = tmp_path / "earlier.json"
    earlier.write_text(text)
    assert main(["bench", "--works", "pull", "--compare", str(earlier), *flags]) == 0
    assert "rate now / then" in capsys.readouterr().out


def test_processes_over_tcp(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--transports", "tcp", "--sizes", "4k", "--rounds", "1", "--seconds", "0.02"]
    assert main(["bench", "--works", "step,sync", *flags]) == 0
    assert "step         tcp" in capsys.readouterr().out


def test_unknown_works_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--works", "jump"]) == 2
    assert "wanted some of pull, push" in capsys.readouterr().err


def test_the_resnet_set_is_what_the_goals_say() -> None:
    shapes = SIZES["resnet"]
    assert len(shapes) == 161
    elements = 0
    for shape in shapes:
        product = 1
        for n in shape:
            product *= n
        elements += product
    assert elements == 25_557_032
