"""A reader follows a run from outside, keeps nobody waiting and ends with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.processes import EXAMPLES, Terminals

READER, MNIST = str(EXAMPLES / "reader.py"), str(EXAMPLES / "mnist.py")
ROLE = ("-m", "dps.role")


def seen(text: str) -> list[tuple[int, float]]:
    """Step and accuracy of every version that the reader told."""
    found = re.findall(r"^step +(\d+)  test accuracy ([\d.]+)$", text, re.MULTILINE)
    return [(int(step), float(accuracy)) for step, accuracy in found]


def test_a_reader_that_was_there_before_the_run_follows_it_and_ends_with_it(tmp_path: Path) -> None:
    with Terminals(tmp_path) as terminals:
        terminals.start("chief", *ROLE, "--job", "chief", "--chief", "127.0.0.1:0", "--workers", "1")
        chief = terminals.line("chief").removeprefix("dps chief at ")
        terminals.start("reader", READER, "--target", chief, "--pause", "0.02")
        terminals.start("ps", *ROLE, "--job", "ps", "--chief", chief)
        terminals.start(
            "worker", *ROLE, "--job", "worker", "--chief", chief, "--program", MNIST, "--", "--steps", "1500"
        )
        codes, said = terminals.ended()
    assert codes == {"chief": 0, "reader": 0, "ps": 0, "worker": 0}, said
    steps = [step for step, _ in seen(said["reader"])]
    assert steps == sorted(set(steps)) and len(steps) > 1  # a version that was seen is not told again
    assert steps[0] >= 0 and steps[-1] <= 1500
    assert f"{len(steps)} versions seen" in said["reader"]


@pytest.mark.nightly
def test_without_a_target_it_starts_the_cluster_that_it_follows(tmp_path: Path) -> None:
    with Terminals(tmp_path) as terminals:
        terminals.start("reader", READER, "--steps", "1500", "--pause", "0.05")
        codes, said = terminals.ended()
    assert codes == {"reader": 0}, said
    found = seen(said["reader"])
    assert found and found[-1][0] <= 1501
    best_step, best = max(found, key=lambda row: row[1])
    assert f"the best was at step {best_step}, test accuracy {best:.3f}" in said["reader"]
