"""A worker that brings large first values is told what they cost."""

from __future__ import annotations

import numpy as np
import pytest

import dps
from dps.client import reports
from tests.in_process import cluster

WORDS = "worker:0: params has 0.0 GB of first values; each worker that makes them needs that memory"


@pytest.mark.parametrize("made", ["large", "small", "in init_fn", "reader"])
def test_who_brings_large_first_values_is_told_what_that_costs(
    made: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "LARGE_NBYTES", 4000 if made == "small" else 3999)
    params = {"w": np.ones(500, np.float32), "table": np.zeros((100, 5), np.float32)}
    init = (lambda _: params) if made == "in init_fn" else None
    settings = {} if made == "reader" else {"optimizer": dps.optim.SGD(0.1), "init_fn": init}
    with cluster() as (server,):
        if made == "reader":
            monkeypatch.setattr(reports, "LARGE_NBYTES", 1 << 30)
            first = dps.Session(server, params, optimizer=dps.optim.SGD(0.1))
            monkeypatch.setattr(reports, "LARGE_NBYTES", 0)
        with dps.Session(server, None if made == "reader" else params, **settings):
            pass
        if made == "reader":
            first.close()
    told = [record.getMessage() for record in caplog.records if "first values" in record.getMessage()]
    assert len(told) == (made == "large") and all(text.startswith(WORDS) for text in told)
