"""Values that stay where a socket's messages brought them are the caller's, as copied ones are: no later pull or push
touches them, and what is written to them is seen by nobody."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.client.transfers import PullTransfer
from dps.transport.runtime import RealRuntime
from tests.in_process import cluster
from tests.tuned import tune

SHAPES = {"a": (300, 400), "b": (7,), "c": (1000, 100)}


def values() -> dict[str, Any]:
    return {name: np.full(shape, 2.0, np.float32) for name, shape in SHAPES.items()}


def gradients() -> dict[str, Any]:
    return {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}


@pytest.fixture(params=[True, False], ids=["kept", "copied"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether this process is one whose malloc keeps large blocks."""
    monkeypatch.setattr(RealRuntime, "keeps_blocks", request.param)
    return bool(request.param)


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each answer over a socket whether its values stay where they came."""
    found: list[bool] = []
    take = PullTransfer._take

    def noted(self: PullTransfer, piece: Any) -> bool:
        over = take(self, piece)
        if over:
            found.append(isinstance(self.values, list))
        return over

    monkeypatch.setattr(PullTransfer, "_take", noted)
    return found


@pytest.mark.thinned
@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.parametrize("piece_nbytes", [1 << 20, 1 << 16])
def test_pulled_values_are_the_callers(
    ps: int, piece_nbytes: int, kept: bool, brought: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, piece_nbytes=piece_nbytes)
    optimizer = dps.optim.SGD(0.5)
    with cluster(ps, 1) as (server,), dps.Session(
        server, values(), optimizer=optimizer, shared_memory=False, timeout=60
    ) as s:  # fmt: skip
        pulled = []
        for step in range(4):
            pulled.append(s.pull())
            assert s.push(gradients()).accepted
            if step == 2:
                for array in pulled[1].values():
                    array[...] = 100.0
        pulled.append(s.step(gradients()))
        for number, tree in enumerate(pulled):
            wanted = 100.0 if number == 1 else 2.0 - 0.5 * min(number, 5) - (0.5 if number == 4 else 0.0)
            for name, shape in SHAPES.items():
                assert tree[name].shape == shape and tree[name].flags.writeable
                np.testing.assert_array_equal(tree[name], np.float32(wanted))
        with s.view() as seen:
            np.testing.assert_array_equal(seen["c"], np.float32(-0.5))
            assert not seen["c"].flags.writeable
        newer = s.pull(if_newer_than=s.version)
        assert newer is None
        out = values()
        assert s.pull(out=out) is out
        np.testing.assert_array_equal(out["a"], np.float32(-0.5))
    assert any(brought) == kept
    if piece_nbytes == 1 << 16:
        assert not brought[0], "cut small, for nothing was known of the connection"
