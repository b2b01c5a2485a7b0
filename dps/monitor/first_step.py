"""A program that takes one step and prints when, on the clock that all processes of a machine share; see goals.py."""

from __future__ import annotations

import numpy as np

import dps
from dps.transport.current import runtime

if __name__ == "__main__":
    with dps.Session(dps.Server.from_env(), {"w": np.zeros(1024, np.float32)}, optimizer=dps.optim.SGD(0.1)) as session:
        session.step({"w": np.ones(1024, np.float32)})
        print("first step at", runtime().now(), flush=True)
