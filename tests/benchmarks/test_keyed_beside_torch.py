"""benchmarks/keyed_beside_torch.py: a keyed table beside torch's EmbeddingBag."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.keyed_beside_torch import FORMS, Rates, lines_of, main, markdown_of


def rates(*millions: float) -> Rates:
    """The median of each form in a turn, in the order of `FORMS`."""
    return {name: [round(1e6 * (x - 0.1)), round(1e6 * x), 9_000_000] for name, x in zip(FORMS, millions, strict=True)}


def test_the_tables_have_medians_and_say_where_dps_is_as_fast() -> None:
    found = {(16, 512, 10_000): rates(1.0, 0.5, 0.6, 0.9), (16, 8192, 10_000): rates(0.4, 0.8, 0.6, 1.6)}
    _, head, small, large = lines_of(found)
    assert head.split()[:4] == ["dim", "a", "step", "table"]
    assert " ".join(small.split()) == "16 512 10,000 1.00 (1.00) 0.50 (0.50) 0.60 (0.60) 0.90 (0.90)"
    assert " ".join(large.split()) == "16 8,192 10,000 0.40 (0.50) 0.80 (1.00) 0.60 (0.75) 1.60 (2.00)"
    head, _, row = markdown_of(found)
    assert head == "| float32 a row | rows | 512 a step | 8,192 a step |"
    assert row == "| 16 | 10,000 | 0.60; 0.90 | 0.75; **2.00** |"


def test_a_step_without_a_bag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--taken", "2"])
    assert "--taken: 4 to 16384" in capsys.readouterr().err


@pytest.mark.nightly
def test_all_forms_update_the_same_rows(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The benchmark itself compares the rows of dps and torch after a step."""
    pytest.importorskip("torch", reason="torch is not installed")
    given = "--rows", "3000", "--dims", "8", "--taken", "1024,4096", "--turns", "1"
    assert main([*given, "--json", str(tmp_path / "rates.json")]) == 0
    assert "| 8 | 3,000 | " in capfd.readouterr().out
    cases = json.loads((tmp_path / "rates.json").read_text())["cases"]
    assert [(case["taken"], case["rows"]) for case in cases] == [(1024, 3000), (4096, 3000)]
    assert all(rate > 0 for case in cases for name in FORMS for rate in case["rates"][name])
