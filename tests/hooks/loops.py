"""A small training loop in a simulated cluster, where a step takes a second and everything else next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import dps
from dps.transport.sim import Compute, Network

EXACT: dict[str, Any] = {"compute": Compute(1.0), "network": Network(latency_s=1e-4), "calibration": None}


def session(server: Any, hooks: Sequence[dps.Hook] = (), **settings: Any) -> dps.Session:
    return dps.Session(server, {"a": np.zeros(2)}, optimizer=dps.optim.SGD(1.0), hooks=hooks, timeout=100, **settings)


def ones() -> dict[str, Any]:
    return {"a": np.ones(2)}


def loop(server: Any, pushes: int, hooks: Sequence[dps.Hook] = (), losses: Sequence[float] = (), **more: Any) -> int:
    """Push until a hook stops it, at most so often; the global step at the end."""
    with session(server, hooks, **more) as s:
        for index in range(pushes):
            if s.should_stop():
                break
            s.push(ones(), loss=losses[index] if losses else 0.5)
    return s.global_step
