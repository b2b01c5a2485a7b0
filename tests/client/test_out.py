"""Arrays of the caller's own in which a pull or a step returns its values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from tests.in_process import cluster

PARAMS = {name: np.full(2, value, np.float32) for name, value in (("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0))}
buf = np.zeros(16, np.float32)
OUTS: list[tuple[list[str], dict[str, Any], dict[str, Any]]] = [
    (["a", "b"], {"a": buf[0:4:2], "b": buf[1:5:2]}, {"a": buf[0:2], "b": buf[1:3]}),
    (["a", "b"], {"a": buf[0:2], "b": buf[2:4]}, {"a": buf[0:2], "b": buf[1:3]}),
]


@pytest.mark.parametrize(("names", "apart", "shared"), OUTS)
def test_arrays_that_share_memory_are_refused_also_after_others_that_did_not(
    names: list[str], apart: dict[str, Any], shared: dict[str, Any]
) -> None:
    with cluster() as (worker,), dps.Session(worker, PARAMS, optimizer=dps.optim.SGD(1.0)) as session:
        for _ in range(2):
            assert all((value == PARAMS[name]).all() for name, value in session.pull(names, out=apart).items())
            with pytest.raises(ValueError, match="out has one memory for a and b"):
                session.pull(names, out=shared)


def test_arrays_of_other_variables_are_checked_anew() -> None:
    with cluster() as (worker,), dps.Session(worker, PARAMS, optimizer=dps.optim.SGD(1.0)) as session:
        session.pull(["a", "b"], out={"a": buf[0:2], "b": buf[2:4]})
        with pytest.raises(ValueError, match="out has one memory for c and d"):
            session.pull(["c", "d"], out={"c": buf[0:2], "d": buf[1:3]})
