"""Steps over slow connections: values come while gradients leave, whatever comes in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.transport.current import runtime
from dps.transport.sim import Compute, Network

SIZE = 1 << 14
SLOW: dict[str, Any] = {
    "compute": Compute(0.0), "network": Network(latency_s=1e-4, bytes_per_s=1e6), "piece_nbytes": 2048,
    "shared_memory": False,
}  # fmt: skip
"""A shard takes 64 ms one way."""


def session(server: Any, **settings: Any) -> dps.Session:
    params = {f"v{i}": np.zeros(SIZE // 16, np.float32) for i in range(16)}
    optimizer = settings.pop("optimizer", dps.optim.SGD(1.0))
    return dps.Session(server, params, optimizer=optimizer, timeout=100, **settings)


def gradients(value: float) -> dict[str, Any]:
    return {f"v{i}": np.full(SIZE // 16, value, np.float32) for i in range(16)}


def seconds_of_steps(server: Any, together: bool, **settings: Any) -> list[float]:
    """How long some steps take, after which the values are those of as many."""
    found = []
    with session(server, **settings) as s:
        for number in range(1, 6):
            began = runtime().now()
            if together:
                values = s.step(gradients(1.0))
            else:
                s.push(gradients(1.0))
                values = s.pull()
            found.append(runtime().now() - began)
            assert {float(x) for array in values.values() for x in array} == {-1.0 * number}
    return found


@pytest.mark.parametrize("ps", [1, 2])
def test_both_directions_of_a_slow_connection_are_full_at_once(ps: int) -> None:
    apart, together = (
        min(dps.simulate(seconds_of_steps, both, ps=ps, **SLOW, calibration=None).results[0]) for both in (False, True)
    )  # fmt: skip
    one_way = 4 * SIZE / 1e6
    assert apart > 1.9 * one_way / ps
    assert together < 1.1 * one_way / ps, "the first piece and the last one move alone"


@pytest.mark.parametrize("ps", [1, 2])
def test_pieces_are_as_short_as_a_slow_connection_needs_them(ps: int) -> None:
    slow = {**SLOW, "network": Network(latency_s=1e-4, bytes_per_s=1e5), "piece_nbytes": 1 << 14}
    first, *others = dps.simulate(seconds_of_steps, True, ps=ps, **slow, calibration=None).results[0]
    one_way = 4 * SIZE / 1e5 / ps
    assert first > 1.9 * one_way, "a push of that few pieces is applied when it is whole"
    assert max(others) < 1.1 * one_way


def pushed_meanwhile(server: Any, count: int) -> list[tuple[float, float]]:
    """Steps of the first worker, while the others push one variable after the other, which takes less time; of what
    each step brought the least and the greatest value of each variable."""
    found = []
    with session(server) as s:
        if server.task:
            for number in range(200):
                s.push({f"v{number % 16}": np.full(SIZE // 16, 1.0, np.float32)})
            return []
        for _ in range(count):
            values = s.step(gradients(1.0))
            found += [(float(array.min()), float(array.max())) for array in values.values()]
    return found


def test_what_others_push_meanwhile_is_never_seen_in_half() -> None:
    from dps.ps.serving.streaming_pull import StreamingPull

    dropped: list[StreamingPull] = []
    drop = StreamingPull.dropped
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamingPull, "dropped", lambda self: (dropped.append(self), drop(self)))
        found = dps.simulate(
            pushed_meanwhile, 8, workers=3, **{**SLOW, "compute": Compute(0.04)}, calibration=None
        ).results[0]
    assert sum(early._begun is not None for early in dropped) >= 2, "some answers had begun, and came to nothing"
    assert found and all(least == most for least, most in found)


def bad_gradients(server: Any) -> list[Any]:
    found: list[Any] = []
    with session(server) as s:
        wrong = gradients(1.0)
        wrong["v15"][-1] = np.nan
        for given in (gradients(1.0), wrong, gradients(2.0)):
            try:
                found.append({float(x) for array in s.step(given).values() for x in array})
            except ValueError as error:
                found.append(str(error))
        found.append({float(x) for array in s.pull().values() for x in array})
    return found


def test_a_bad_element_at_the_end_of_a_step_means_that_nothing_was_applied() -> None:
    first, refused, second, last = dps.simulate(bad_gradients, **SLOW, calibration=None).results[0]
    assert (first, second, last) == ({-1.0}, {-3.0}, {-3.0})
    assert refused.startswith("the gradient of v15 has NaN or infinite values (first at element 1023): nothing was")


def steps(server: Any) -> list[float]:
    with session(server, checkpoint_dir="run") as s:
        found = []
        while s.global_step < 12:
            values = s.step(gradients(1.0))
            found.append({float(x) for array in values.values() for x in array})
        return found


@pytest.mark.parametrize("at", [0.3, 0.35, 0.4, 0.45])
def test_a_ps_that_is_killed_in_the_middle_of_a_step_is_rolled_back_from(at: float) -> None:
    """And the values of a step are always those of some number of pushes."""
    found = dps.simulate(
        steps, faults=[dps.sim.Kill("ps:0", at=at, restart_after=0.1)], **SLOW, calibration=None
    ).results[0]
    assert all(len(values) == 1 for values in found) and found[-1] == {-12.0}
