"""`dps bench` on tiny works: the shape of its JSON, and figures that can be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dps.cli import main
from dps.monitor import bench, works
from dps.monitor.bench import compared
from dps.monitor.rounds import Rounds
from dps.monitor.setting import SHARED_LANE, SOCKET_LANE, Setting
from dps.monitor.works import FRESH_LISTS, IN_PLACE, REPEATED, SIZES, Table, nbytes
from dps.transport import limits
from dps.transport.tuning import RowListTuning
from dps.variables import rowlists

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


@pytest.mark.slow
def test_processes_over_tcp_in_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--works", "step,sync", "--transports", "tcp", *QUICK]) == 0
    output = capsys.readouterr().out
    for work in ("step", "sync"):
        for form in ("copied  ", "in place"):
            assert f"{work:18} {form} tcp" in output
    assert output.count(SHARED_LANE) == 4


@pytest.mark.nightly
@pytest.mark.slow
def test_sockets_alone_are_measured_copied_and_against_a_socket(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--works", "push,sparse", "--transports", "socket", "--rounds", "1", "--seconds", "0.02"]
    table = ["--sizes", "1m", "--table-rows", "1000", "--table-taken", "100"]
    assert main(["bench", "--json", *flags, *table]) == 0
    push, *rows = json.loads(capsys.readouterr().out)["results"]
    assert not push["shared_memory"] and not push["in_place"] and push["limit"].startswith("raw TCP, buffers of")
    assert {row["lane"] for row in (push, *rows)} == {SOCKET_LANE}
    kinds = ("sparse pull", "fresh"), ("sparse push", "fresh"), ("sparse pull", "repeated"), ("sparse push", "repeated")
    assert [(row["work"], row["lists"]) for row in rows] == list(kinds)
    for row in rows:
        assert row["optimizer"] == "adagrad"
        assert row["nbytes"] == 100 * 64 * 4
        assert row["rows_per_s"] == pytest.approx(100 * row["per_s"])


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
        (["--works", "loop", "--computing", "long"], "--computing: got long, wanted milliseconds"),
        (["--works", "loop", "--computing", "-1"], "--computing: got -1, wanted"),
        (["--works", "loop", "--computing", "nan"], "--computing: got nan, wanted"),
        (["--seconds", "nan"], "--seconds: got nan, wanted seconds above 0"),
        (["--seconds", "-1"], "--seconds: got -1, wanted"),
        (["--calibrate", "here.json", "--card", "nan"], "--card, --latency: got nan Gbit/s"),
        (["--card", "25"], "--card, --latency: a part of what --calibrate FILE writes; give it"),
        (["--goals", "--latency", "0"], "--card, --latency: a part of what --calibrate FILE writes"),
        (["--compare", "nowhere.json"], "--compare nowhere.json: No such file or directory; wanted a file made by"),
        (["--compare", __file__], "it holds no figures"),
        (["--calibrate", "nowhere/here.json"], "--calibrate nowhere/here.json: name a file in a folder that is there"),
        (["--calibrate", "here.json", "--works", "pull", "--sizes", "4k"], "--calibrate: got --works, --sizes beside"),
        (["--calibrate", "here.json", "--table-rows", "9000"], "got --table-rows beside it, wanted none but --card"),
        (["--calibrate", "here.json", "--goals"], "--calibrate: got --goals beside it"),
        (["--goals", "--workers", "2"], "--goals: got --workers beside it, wanted none but --compare, --json"),
        (["--rounds", "0"], "--rounds: got 0, wanted at least 1"),
        (["--table-rows", "10"], "--table-taken: got 8192, wanted at most --table-rows 10"),
    ],
)
def test_what_cannot_be_measured_is_refused(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *flags]) == 2
    assert said in capsys.readouterr().err


def test_the_sizes_are_what_the_goals_say() -> None:
    assert {size: nbytes(size) for size in SIZES} == {
        "4k": 4096, "small": 102_400, "1m": 1 << 20, "64m": 64 << 20, "256m": 256 << 20, "resnet": 4 * 25_557_032,
        "mlp": 407_080,
    }  # fmt: skip
    assert len(SIZES["resnet"]) == 161
    assert len(SIZES["small"]) == 10


@pytest.mark.parametrize(("rows", "taken"), [(10_000, 512), (100_000, 512), (2_000_000, 512), (1000, 600), (64, 64)])
def test_rows_are_distinct_and_the_low_ones_are_drawn_more_often(rows: int, taken: int) -> None:
    drawn = Table(rows, taken).drawn(1)
    assert len(drawn) == len(set(drawn.tolist())) == taken
    assert drawn.min() >= 0 and drawn.max() < rows
    assert sum(drawn < rows // 10) > taken // 10 or rows == taken


def test_fresh_row_lists_are_new_to_the_session_each_time_and_repeated_ones_are_known() -> None:
    asked: list[rowlists.RowList] = []
    lists = rowlists.RowLists(RowListTuning(least=16))

    class Session:
        def lookup(self, name: str, rows: Any) -> None:
            asked.append(lists.of(rows))

    calls = Table(5000, 64).calls(cast(Any, Session()))
    for _ in range(2 * FRESH_LISTS):
        calls["sparse pull"]()
    assert len(set(map(id, asked))) == 2 * FRESH_LISTS
    asked.clear()
    for _ in range(2 * FRESH_LISTS):
        calls["sparse pull" + REPEATED]()
    assert len(set(map(id, asked))) == works.REPEATED_LISTS


def test_in_place_every_value_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    monkeypatch.setattr(works, "read", lambda values: heard.append(values.size))
    setting = Setting("dense", "inproc", "small")
    with setting.cluster() as server, setting.session(server) as session:
        calls = setting.calls(session)
        for work in ("pull", "step"):
            heard.clear()
            calls[work + IN_PLACE]()
            assert sum(heard) * 4 == setting.nbytes
        session.request_stop()


def test_a_push_that_waits_for_its_pass_asks_the_ps_once_more_and_moves_no_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setting = Setting("dense", "inproc", "small")
    with setting.cluster() as server, setting.session(server) as session:
        call = setting.calls(session)["push" + works.APPLIED]
        call()
        asked: list[object] = []
        pull = session.pull
        monkeypatch.setattr(session, "pull", lambda **how: asked.append(pull(**how)))
        call()
        assert asked == [None]
        assert session.global_step == 2
        assert pull()["v0"][0] == pytest.approx(-0.02)
        session.request_stop()


def test_reading_looks_at_every_value() -> None:
    values = np.zeros((3, 5), np.float32)
    for place in np.ndindex(values.shape):
        values[place] = 2.0
        assert limits.read(values) == 4.0
        values[place] = 0.0


def test_the_raw_tcp_limit_is_the_faster_of_two_sizes_of_buffers() -> None:
    setting = Setting("dense", "socket", "1m")
    slow, fast = setting.limits_of("push")
    assert {slow, fast} == {"raw TCP, buffers of 256 KB", "raw TCP, buffers of 1024 KB"}
    found = Rounds([1.0], [{"push": [0.2], slow: [0.4], fast: [0.1]}], [{"push": 0.0}])
    row = bench._row(setting, "push", SOCKET_LANE, found)
    assert (row["limit"], row["of_limit"]) == (fast, pytest.approx(0.5))


def test_a_figure_is_not_compared_with_one_that_was_measured_otherwise(tmp_path: Path) -> None:
    old = {"transport": "tcp", "nbytes": 4, "variables": 1, "ps": 1, "workers": 1, "per_s": 1.0}
    new = {**old, "per_s": 3.0, "reads_values": True}
    earlier = tmp_path / "earlier.json"
    rows = [{**old, "work": "sparse pull"}, {**old, "work": "pull", "in_place": True}, {**old, "work": "push"}]
    earlier.write_text(json.dumps({"results": rows}))
    now = [
        {**new, "work": "sparse pull", "optimizer": "adagrad", "lists": "fresh"},
        {**new, "work": "sparse pull", "optimizer": "adagrad", "lists": "repeated"},
        {**new, "work": "pull", "optimizer": "sgd", "in_place": True},
        {**new, "work": "push", "optimizer": "sgd"},
    ]
    _, *lines = compared(now, str(earlier)).splitlines()
    assert [line.split()[:3] for line in lines] == [["sparse", "pull", "repeated"], ["push", "copied", "tcp"]]
