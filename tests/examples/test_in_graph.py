"""Workers that serve the functions of a file train a network in each of its three modes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.processes import EXAMPLES, Terminals


@pytest.mark.parametrize(
    "mode", [pytest.param("async", marks=pytest.mark.nightly), "sync", pytest.param("model", marks=pytest.mark.nightly)]
)
def test_each_mode_learns(mode: str, tmp_path: Path) -> None:
    file = str(EXAMPLES / "in_graph.py")
    launch = ("-m", "dps.cli", "launch", "--ps", "2", "--workers", "2", "--serve", file, file, "--")
    own = (file,)
    with Terminals(tmp_path) as terminals:
        terminals.start("all", *(launch if mode == "sync" else own), "--mode", mode, "--steps", "150")
        codes, said = terminals.ended()
    assert codes == {"all": 0}, said
    found = re.search(rf"{mode}: test accuracy ([\d.]+) after 150 steps", said["all"])
    assert found is not None and float(found[1]) > 0.8, said
