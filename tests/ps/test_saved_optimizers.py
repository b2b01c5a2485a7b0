"""A checkpoint goes on with the optimizer that was saved: its numbers may differ, its rule may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import CheckpointError
from tests.in_process import cluster

ADAM = dps.optim.Adam(0.1)
KEYED: dict[str, Any] = {"keys": "int64", "dim": 2, "capacity": 10, "init": dps.init.Zeros()}


def trained(
    folder: Path, optimizer: Any, steps: int, variable: Any = None, ps: int = 1, update: str = "async"
) -> float:
    """The first element after these steps of ones."""
    variable = np.zeros(3) if variable is None else variable
    with (
        cluster(ps=ps) as (worker,),
        dps.Session(worker, {"w": variable}, optimizer=optimizer, checkpoint_dir=str(folder), update=update) as session,
    ):
        keyed = session.pull()["w"] is None
        for _ in range(steps):
            session.push({"w": dps.Rows([5], np.ones((1, 2), np.float32)) if keyed else np.ones(3)})
        return float(session.lookup("w", [5])[0, 0] if keyed else session.pull()["w"][0])


@pytest.mark.parametrize("keyed", [False, True])
def test_another_rule_is_refused_and_other_numbers_are_taken(tmp_path: Path, keyed: bool) -> None:
    """Adam began with slots of 0 and the count of SGD's steps, Ftrl with weights of 0."""
    variable = dps.Variable(**KEYED) if keyed else None
    trained(tmp_path, dps.optim.SGD(0.1), 5, variable)
    for other in (ADAM, dps.optim.Ftrl(0.1)):
        with pytest.raises(CheckpointError, match=f"w is trained with sgd in .* and with {other.name} in this program"):
            trained(tmp_path, other, 1, variable, ps=2)
    assert trained(tmp_path, dps.optim.SGD(0.5), 1, variable, ps=2) == pytest.approx(-1.0)


def test_the_refusal_of_another_rule_says_how_to_go_on_from_the_values(tmp_path: Path) -> None:
    """Adam and AdamW have slots of the same names, and are two rules: AdamW is given the values alone."""
    first, second, adamw = tmp_path / "first", tmp_path / "second", dps.optim.AdamW(0.1, weight_decay=0.0)
    for optimizer, other in ((ADAM, adamw), (adamw, ADAM)):
        folder, anew = first / other.name, second / other.name
        assert trained(folder, optimizer, 5) == pytest.approx(-0.5)
        with pytest.raises(CheckpointError, match=r"another checkpoint_dir.*dps\.init\.FromFile\('.*'\)") as refused:
            trained(folder, other, 1)
        path = str(refused.value).split("FromFile('")[1].split("'")[0]
        begun = dps.Variable(shape=(3,), dtype=np.float64, init=dps.init.FromFile(path))
        assert trained(anew, other, 1, begun) == pytest.approx(-0.6)


def test_a_variable_that_was_not_trained_for_a_while_begins_as_new(tmp_path: Path) -> None:
    """Its slots were new, and its count of updates was not: a step of Adam was half as long."""
    trained(tmp_path, ADAM, 5)
    assert trained(tmp_path, ADAM, 0, dps.Variable(np.zeros(3), trainable=False)) == pytest.approx(-0.5)
    assert trained(tmp_path, ADAM, 1) == pytest.approx(-0.6)


def test_after_local_mode_the_optimizer_of_the_ps_begins_as_new(tmp_path: Path) -> None:
    """The rounds that SGD had applied were taken as updates of Adam."""
    assert trained(tmp_path, ADAM, 6, update="local:2") == pytest.approx(-0.6)
    assert trained(tmp_path, ADAM, 1) == pytest.approx(-0.7)
    assert trained(tmp_path, ADAM, 2, update="local:2") == pytest.approx(-0.9)
    with pytest.raises(CheckpointError, match="w is trained with adam in .* and with sgd in this program"):
        trained(tmp_path, dps.optim.SGD(0.1), 1)


def test_a_keyed_table_that_counts_its_keys_is_no_variable_that_the_program_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The counts of keys that are not admitted yet are saved as a variable of their own."""
    trained(tmp_path, ADAM, 1, dps.Variable(**KEYED, admit=3))
    for admit in (3, 1):
        trained(tmp_path, ADAM, 1, dps.Variable(**KEYED, admit=admit))
    assert "starts from" in caplog.text and "are not restored" not in caplog.text
