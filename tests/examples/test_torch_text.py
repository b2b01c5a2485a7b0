"""Two workers train a character model whose loss is far below that of a model without memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.processes import EXAMPLES, Terminals

STEPS, MOST = 200, 2.0
"""Nats a character on text kept aside. The frequencies of characters alone give 3.2, those of pairs 2.3."""


@pytest.mark.nightly
def test_two_workers_learn_more_than_the_pairs_of_characters(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason='needs torch: pip install "dps[torch]"')
    launch = "-m", "dps.cli", "launch", "--ps", "2", "--workers", "2", str(EXAMPLES / "torch_text.py"), "--"
    with Terminals(tmp_path) as terminals:
        terminals.start("all", *launch, "--steps", str(STEPS))
        codes, said = terminals.ended()
    assert codes == {"all": 0}, said
    found = re.findall(r"done at step (\d+), loss ([\d.]+)", said["all"])
    assert len(found) == 2, said
    for step, loss in found:
        assert STEPS <= int(step) <= STEPS + 1
        assert 1.0 < float(loss) < MOST
