"""The runs of a campaign: drawn from a seed, and written down so that they can be counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import model
from tests.chaos.__main__ import campaign
from tests.chaos.cases import KINDS, MODES, draw, order
from tests.chaos.ledger import Ended, Ledger, Saw, Tail, read
from tests.chaos.table import Table


def test_a_seed_gives_the_same_run_again() -> None:
    for kind, mode in order(3):
        case = draw(kind, mode, 7)
        assert case == draw(kind, mode, 7)
        assert case.mode == mode
        assert case.faults
        assert all(fault.task < {"ps": case.ps, "worker": case.workers}.get(fault.whom, 1) for fault in case.faults)
        assert case.saves or not case.fills_disk


def test_a_campaign_has_every_kind_in_every_mode() -> None:
    assert sorted(order(3)) == sorted((kind, mode) for kind in KINDS for mode in MODES)
    assert order(3) == order(3)
    assert order(3) != order(4)


def test_a_synchronous_run_counts_by_rows() -> None:
    assert all(draw("SIGKILL ps", "sync", seed).pushes in ("rows", "both") for seed in range(20))


def test_a_ledger_is_read_while_it_grows_and_without_a_line_that_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.jsonl"
    tail, ledger = Tail(path), Ledger(path)
    assert tail.look() == []
    first, last = Saw(1.0, 2, {"dense0": (-6.0, -6.0)}), Ended(2.0, "")
    ledger.write(first)
    assert tail.look() == [first]
    with path.open("a") as file:
        file.write('["Ended",{"at_')
    assert tail.look() == [first]
    with path.open("a") as file:
        file.write('s":2.0,"error":""}]\n')
    assert tail.look() == [first, last]
    assert read(path) == [first, last]


@pytest.mark.parametrize("kind", ["dense", "rows", "both"])
def test_the_workers_parts_make_up_each_variable(kind: str) -> None:
    rows, workers = 7, 3
    values = model.initial(kind, rows)
    for worker in range(workers):
        for name, gradient in model.gradients(kind, rows, worker, workers).items():
            if name in model.DENSE_NAMES:
                values[name] -= gradient
            else:
                values[name][gradient.indices] -= gradient.values
    for name, array in values.items():
        for worker in range(workers):
            assert model.ends(array, worker, workers) == (-model.unit(name), -model.unit(name))


def test_the_table_tells_runs_failures_and_the_longest_recovery() -> None:
    table = Table()
    table.cell("SIGKILL ps", "async").add(False, 1.25)
    table.cell("SIGKILL ps", "async").add(True, None)
    table.cell("SIGKILL ps", "sync").add(False, 0.5)
    table.cell("full disk 3 s", "sync").skipped = "full disk: needs root"
    text = table.text()
    assert "1/2" in text
    assert "stalled FAILED" in text
    assert "1/1   0.5 s" in text
    assert "3 runs: 2 passed, 1 failed" in text
    assert "skipped: full disk: needs root" in text


def test_without_a_small_disk_its_runs_are_skipped_and_the_table_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.chaos.__main__.why_none", lambda: "needs root")
    table = campaign(seconds=60, seed=1, jobs=1, only="full disk")
    assert table.runs == 0
    assert table.text().endswith("skipped: full disk: needs root")
