"""Small training functions that worker processes import by their path."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import dps
from dps.transport.current import runtime


def count(server: Any, steps: int, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """Push ones until the global step; what this worker saw."""
    settings = dict(settings or {})
    update = {"async": dps.Async(), "sync": dps.SyncReplicas(), "backup": dps.SyncReplicas(2, 3), None: None}
    slow = float(settings.pop("slow", 0.0))
    seen = {"pushes": 0, "accepted": 0, "pid": os.getpid(), "rolled_back": 0}

    class Rollbacks(dps.Hook):
        def rolled_back(self, session: Any, step: int, lost: int) -> None:
            seen["rolled_back"] += 1

    hooks: list[dps.Hook] = [dps.StopAtStep(last_step=steps), Rollbacks()]
    if settings.get("checkpoint_dir"):
        hooks.append(dps.CheckpointSaver(steps=20))
    mode = update[settings.pop("update", None)]
    params = {"a": np.zeros(1000, np.float32), "b": np.zeros(10)}
    settings |= {"update": mode, "hooks": hooks, "timeout": 30}
    with dps.Session(server, params, optimizer=dps.optim.SGD(1.0), **settings) as session:
        while not session.should_stop():
            session.pull()
            if slow:
                runtime().sleep(slow)
            push = session.push({"a": -np.ones(1000, np.float32), "b": -np.ones(10)}, loss=0.5)
            seen["pushes"] += 1
            seen["accepted"] += push.accepted
        values = session.pull()
        seen["a"], seen["step"] = values["a"], session.global_step
    return seen


def fail_untold(server: Any, of_file: bool) -> None:
    """Fail with an error that has no message, or one that is no UTF-8."""

    class Untold(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    raise FileNotFoundError(b"data \xff".decode(errors="surrogateescape")) if of_file else Untold


def fail(server: Any) -> None:
    raise RuntimeError(f"worker {server.task} does not want to")


def echo(server: Any, *values: Any) -> Any:
    return [server.task, *values]


def endless(server: Any, obeys: bool) -> str:
    """Push until told to stop, or for ever."""
    params = {"a": np.zeros(1000, np.float32), "b": np.zeros(10)}
    with dps.Session(server, params, optimizer=dps.optim.SGD(1.0)) as session:
        while not (obeys and session.should_stop()):
            session.push({"b": np.ones(10)}, loss=0.5)
            runtime().sleep(0.001)
    return "ended by itself"


def deaf(server: Any) -> None:
    """Compute for ever, without a session."""
    while True:
        runtime().sleep(0.01)


def assigns(server: Any, update: str) -> list[float]:
    """Each worker assigns its number after the first step, the others see what counts; two values of the end."""
    params = {"w": np.zeros(1000, np.float32), "n": dps.Variable(np.int64(-1)), "mean": np.zeros(3, np.float32)}
    with dps.Session(server, params, optimizer=dps.optim.SGD(1.0), update=update, timeout=30) as session:
        session.push({"w": np.full(1000, -1, np.float32)})
        session.assign({"n": np.int64(server.task), "mean": np.full(3, 4, np.float32)})
        values = session.step({"w": np.full(1000, -1, np.float32)})
        return [float(values["n"]), float(values["mean"].sum())]


def trains(server: Any, optimizer: Any = None, steps: int = 5) -> float:
    """Push ones until the global step; the value of the end."""
    params = {"a": np.zeros(2, np.float32), "b": np.zeros(3, np.float32)}
    hooks = [dps.StopAtStep(num_steps=steps)]
    with dps.Session(server, params, optimizer=_optimizer(optimizer), hooks=hooks, timeout=30) as session:
        while not session.should_stop():
            session.push({"a": -np.ones(2, np.float32), "b": np.ones(3, np.float32)}, loss=0.5)
        return float(session.pull()["a"][0])


def _optimizer(name: Any) -> Any:
    return dps.optim.Adam(0.1) if name == "adam" else dps.optim.SGD(1.0)
