"""A loss that is no number ends the loop: with an error, or quietly."""

from __future__ import annotations

import math
from typing import Any

import pytest

import dps
from tests.hooks.loops import EXACT, loop
from tests.in_process import cluster

LOSSES = [1.0, 0.5, math.inf, 0.5, 0.5]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_an_error_with_the_step(loss: float) -> None:
    with cluster(1, 1, "inproc") as (server,):
        with pytest.raises(dps.NotFinite, match=rf"hook NanGuard\.after_run: the loss is {loss} at step 2; lower"):
            loop(server, 5, [dps.NanGuard()], [1.0, loss, 1.0])
        with pytest.raises(ValueError, match="at step 3"):
            loop(server, 5, [dps.NanGuard()], [loss])


def test_fail_false_stops_the_loop_and_nothing_else() -> None:
    ended: list[Any] = []

    class End(dps.Hook):
        def end(self, session: Any) -> None:
            ended.append(session.global_step)

    run = dps.simulate(loop, 5, [dps.NanGuard(fail=False), End()], LOSSES, **EXACT)
    assert run.results == [3] and ended == [3] and not run.errors


def test_a_push_without_a_loss_is_not_looked_at() -> None:
    with cluster(1, 1, "inproc") as (server,):
        assert loop(server, 2, [dps.NanGuard()], [None, None]) == 2  # type: ignore[list-item]
