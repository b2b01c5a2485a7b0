"""`dps bench` on tiny works: the shape of its JSON, and figures that can be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dps.cli import main
from dps.monitor.works import SIZES, Table, nbytes

AGREED = {
    "work", "transport", "nbytes", "variables", "ps", "workers", "per_s", "gb_per_s", "p50_us", "p99_us",
    "limit_gb_per_s", "of_limit",
}  # fmt: skip
QUICK = ["--sizes", "4k", "--rounds", "1", "--seconds", "0.02"]


def test_json_has_the_agreed_shape(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = [*QUICK, "--transports", "inproc", "--forms", "copied"]
    assert main(["bench", "--json", "--works", "pull,push,step,sync", *flags]) == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    assert set(found) == {"machine", "results"}
    assert [r["work"] for r in found["results"]] == ["pull", "push", "step", "sync"]
    for row in found["results"]:
        assert set(row) >= AGREED
        assert row["per_s"] > 0 and row["p99_us"] >= row["p50_us"] * 0.5
        assert row["nbytes"] == 4096 * (2 if row["work"] in ("step", "sync") else 1)
        assert row["workers"] == (2 if row["work"] == "sync" else 1)
        assert row["of_limit"] == pytest.approx(row["gb_per_s"] / row["limit_gb_per_s"])
        assert (row["rounds"], row["dropped"]) == (1, 0)
    earlier = tmp_path / "earlier.json"
    earlier.write_text(text)
    assert main(["bench", "--works", "pull", "--compare", str(earlier), *flags]) == 0
    assert "rate now / then" in capsys.readouterr().out


def test_processes_over_tcp_in_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--works", "step,sync", "--transports", "tcp", *QUICK]) == 0
    output = capsys.readouterr().out
    for work in ("step", "sync"):
        for form in ("copied  ", "in place"):
            assert f"{work:11} {form} tcp" in output


def test_sockets_alone_are_measured_copied_and_against_a_socket(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--works", "push,sparse", "--transports", "socket", "--rounds", "1", "--seconds", "0.02"]
    table = ["--sizes", "1m", "--table-rows", "1000", "--table-taken", "100"]
    assert main(["bench", "--json", *flags, *table]) == 0
    push, pull_rows, push_rows = json.loads(capsys.readouterr().out)["results"]
    assert not push["shared_memory"] and not push["in_place"] and push["limit"] == "raw TCP"
    assert [pull_rows["work"], push_rows["work"]] == ["sparse pull", "sparse push"]
    assert push_rows["optimizer"] == "adagrad"
    assert push_rows["nbytes"] == 100 * 64 * 4
    assert push_rows["rows_per_s"] == pytest.approx(100 * push_rows["per_s"])


def test_rates_of_several_workers_are_added(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--works", "push", "--forms", "copied", "--transports", "inproc", "--workers", "2"]
    assert main(["bench", "--json", *flags, *QUICK]) == 0
    row = json.loads(capsys.readouterr().out)["results"][0]
    assert row["workers"] == 2
    assert row["per_s"] > 1e6 / row["p50_us"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--works", "jump"], "wanted some of pull, push"),
        (["--transports", "smoke"], "wanted some of inproc, ipc, tcp, socket"),
        (["--rounds", "0"], "--rounds 0: wanted at least 1"),
        (["--table-rows", "10"], "--table-taken 8192 is more than --table-rows 10"),
    ],
)
def test_what_cannot_be_measured_is_refused(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *flags]) == 2
    assert said in capsys.readouterr().err


def test_the_sizes_are_what_the_goals_say() -> None:
    assert {size: nbytes(size) for size in SIZES} == {
        "4k": 4096, "small": 102_400, "1m": 1 << 20, "64m": 64 << 20, "256m": 256 << 20, "resnet": 4 * 25_557_032,
    }  # fmt: skip
    assert len(SIZES["resnet"]) == 161
    assert len(SIZES["small"]) == 10


def test_rows_are_distinct_and_the_low_ones_are_drawn_more_often() -> None:
    table = Table(10_000, 512)
    rows = table.drawn(1)
    assert len(set(rows.tolist())) == 512
    assert rows.min() >= 0 and rows.max() < 10_000
    assert sum(rows < 1000) > 256
