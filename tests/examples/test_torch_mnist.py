"""A PyTorch model on the ps; without PyTorch, one line that says what to install."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.examples.processes import EXAMPLES, Terminals

PROGRAM = str(EXAMPLES / "torch_mnist.py")


@pytest.mark.skipif(find_spec("torch") is None, reason='needs PyTorch: pip install "dps[torch]"')
def test_two_workers_train_one_model(tmp_path: Path) -> None:
    with Terminals(tmp_path) as terminals:
        terminals.start("all", "-m", "dps.cli", "launch", "--ps", "2", "--workers", "2", PROGRAM, "--", "--steps", "80")
        codes, said = terminals.ended()
    assert codes == {"all": 0}, said
    found = re.findall(r"done at step (\d+), test accuracy ([\d.]+)", said["all"])
    assert len(found) == 2, said
    for step, accuracy in found:
        assert 80 <= int(step) <= 81
        assert float(accuracy) > 0.75  # guessing is 0.1


def test_without_pytorch_one_line_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('No module named torch')\n")
    with Terminals(tmp_path) as terminals:
        terminals.start("alone", PROGRAM, PYTHONPATH=str(tmp_path))
        codes, said = terminals.ended()
    assert codes == {"alone": 1}
    assert said["alone"].count("\n") == 1 and "dps[torch]" in said["alone"]
