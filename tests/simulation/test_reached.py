"""What the simulator's seeds reach of cargo, intake, modes and store, and that the list of the rest is true."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simulation.reached import ROOT, entries, functions, listed

SEEDS = 16
LEAST = 0.97


def test_each_listed_line_is_in_its_function_as_often_as_it_is_listed_and_has_a_reason() -> None:
    for line, reason in entries():
        assert reason, line
    for (name, function, text), count in listed().items():
        owners, source = functions(ROOT / name), (ROOT / name).read_text().splitlines()
        there = sum(owner == function and source[number - 1].strip() == text for number, owner in owners.items())
        assert there >= count, f"{name}::{function} has {there} lines {text!r}, {count} are listed"


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_the_seeds_reach_nearly_all_lines() -> None:
    asked = ["--seeds", str(SEEDS), "--least", str(LEAST)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.reached", *asked],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
