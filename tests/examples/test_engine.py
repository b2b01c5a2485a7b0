"""A stand-in for an inference engine takes weights over between two requests, and every answer is of its version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.processes import EXAMPLES, Terminals

ANSWERS, LOSS = 240, 2.5
"""Answers that are asked for; and nats a character, which training takes from 4.85 to 2.46."""
SLOW = "prompt += chr(", "len(prompt) % 10 or threading.Event().wait(0.005); prompt += chr("
"""A request takes more than 20 ms, so that versions come while it runs."""
PAUSED = "                engine.pause_generation()\n", ""
RESUMED = "finally:\n                    engine.resume_generation()", "finally:\n                    pass"


def run(folder: Path, *changes: tuple[str, str]) -> tuple[float, int, int, int, float]:
    """The loss, the answers, their versions, how many are wrong, and the lag in ms, of the changed example."""
    text = (EXAMPLES / "engine.py").read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "program.py").write_text(text)
    with Terminals(folder) as terminals:
        terminals.start("all", "program.py")
        codes, said = terminals.ended()
    assert codes == {"all": 0}, said
    found = re.search(
        r"^loss ([\d.]+); .*\n(\d+) answers of (\d+) versions, (\d+) wrong; lag (\d+) ms$", said["all"], re.MULTILINE
    )
    assert found is not None, said
    return float(found[1]), int(found[2]), int(found[3]), int(found[4]), float(found[5])


@pytest.mark.parametrize("changes", [(), (SLOW,)], ids=["as it is", "slow answers"])
def test_each_answer_is_what_the_version_that_it_names_answers(
    changes: tuple[tuple[str, str], ...], tmp_path: Path
) -> None:
    loss, answers, versions, wrong, lag_ms = run(tmp_path, *changes)
    assert loss < LOSS and answers == ANSWERS and wrong == 0
    assert versions > 2 and lag_ms < 5000


@pytest.mark.nightly
def test_answers_of_an_engine_that_does_not_pause_are_found_to_be_wrong(tmp_path: Path) -> None:
    _, answers, _, wrong, _ = run(tmp_path, SLOW, PAUSED, RESUMED)
    assert 0 < wrong <= answers == ANSWERS
