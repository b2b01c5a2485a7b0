"""The loss that a push is given: a number in any of its forms, or an error before anything is sent."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import NotFinite
from dps.process import telemetry


@pytest.fixture
def server() -> Iterator[dps.Server]:
    with dps.Server.create_local_server() as server:
        yield server


def opened(server: dps.Server, *hooks: dps.Hook) -> dps.Session:
    return dps.Session(server, {"w": np.zeros(2)}, optimizer=dps.optim.SGD(1.0), hooks=hooks)


ONES = {"w": np.ones(2)}


class Tensor:
    """What PyTorch and JAX have in common."""

    shape = ()

    def item(self) -> float:
        return 0.25

    def __float__(self) -> float:
        raise AssertionError("a tensor that wants a gradient warns when it is made a float")


def test_what_is_no_number_is_refused_before_anything_is_sent(server: dps.Server) -> None:
    cases: list[tuple[Any, type[Exception], str]] = [
        ("x", TypeError, "got 'x' for loss, wanted a number"),
        ("3.5", TypeError, "got '3.5' for loss, wanted a number"),
        ([0.5], TypeError, "wanted a number"),
        (1j, TypeError, "wanted a number"),
        (np.array(["x"]), TypeError, "wanted a number"),
        (np.ones(3), ValueError, r"got an array of shape \(3,\) for loss, wanted one number, such as its mean"),
        (np.ones(0), ValueError, r"shape \(0,\)"),
    ]
    with opened(server) as session:
        for loss, error, words in cases:
            with pytest.raises(error, match=words):
                session.push(ONES, loss=loss)
            with pytest.raises(error, match=words):
                session.push_async(ONES, loss=loss)
            with pytest.raises(error, match=words):
                session.step(ONES, loss=loss)
        assert session.push(ONES).step == 1


def test_numbers_come_in_many_forms(server: dps.Server) -> None:
    rows: list[dict[str, Any]] = []
    telemetry.on_progress.append(rows.append)
    try:
        with opened(server, dps.LogMetrics(steps=1)) as session:
            for loss in (0.25, np.float32(0.25), np.array(0.25), np.array([0.25]), Tensor(), None, 1, True):
                session.push(ONES, loss=loss)
    finally:
        telemetry.on_progress.remove(rows.append)
    assert [row["loss"] for row in rows] == [0.25] * 5 + [None, 1.0, 1.0]


def test_a_loss_that_is_not_finite_is_told_once(server: dps.Server, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "dps"), opened(server) as session:
        session.push(ONES, loss=1.0)
        session.push(ONES, loss=float("nan"))
        session.step(ONES, loss=np.float32("inf"))
    (told,) = [record.getMessage() for record in caplog.records if "the loss is" in record.getMessage()]
    assert told.startswith("worker:0: the loss is nan at step 2") and "dps.NanGuard()" in told


def test_a_hook_that_watches_the_loss_is_told_and_nobody_else(
    server: dps.Server, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "dps"),
        pytest.raises(NotFinite, match="nan at step 1"),
        opened(server, dps.NanGuard()) as session,
    ):
        session.push(ONES, loss=float("nan"))
    assert not [record for record in caplog.records if "training goes on" in record.getMessage()]
