"""benchmarks/torch_steps.py: dps.torch.Optimizer beside torch.optim."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.torch_steps import Burst, lines_of, main


def test_the_table_has_times_of_both_and_the_ratio_of_rounds() -> None:
    pairs = [(Burst(2e-3, 1e-4), Burst(whole, 9e-4)) for whole in (3e-3, 2e-3, 4e-3, 6e-3)]
    head, row = lines_of({"5 MB": pairs}, "Adam")
    assert head.split()[:4] == ["Adam", "torch.optim", "dps", "ratio"]
    assert " ".join(row.split()) == "5 MB 2.00 ms 3.50 ms 1.75 1.50-3.00 0.10 to 0.90 ms"


def test_unknown_sizes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--sizes", "7 MB"])
    assert "--sizes 7 MB is not known; wanted some of 0.4 MB, 5 MB, 100 MB" in capsys.readouterr().err


@pytest.mark.nightly
def test_both_copies_train(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    assert main(["--rounds", "2", "--sizes", "0.4 MB", "--json", str(tmp_path / "bursts.json")]) == 0
    assert "ratio" in capfd.readouterr().out
    assert len(json.loads((tmp_path / "bursts.json").read_text())["rounds"]["0.4 MB"]) == 2
