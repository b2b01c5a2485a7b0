"""What a worker of the tests runs: steps of a small model, or of a network for MNIST, then a line of what came of it.

The gradient of "count" is -1 and the rate is 1, so that "count" tells how many pushes were applied.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import dps

Gradient = Callable[[Any, int], Any]
"""Of the parameters at a step."""


def small(task: int) -> tuple[dict[str, Any], Gradient]:
    """The parameters of a linear model, and its gradient by them."""
    rng = np.random.default_rng(0)
    mine = rng.normal(size=(64, 300)).astype(np.float32)[task::2]
    params = {"w": rng.normal(size=(300, 200)).astype(np.float32)}
    return params, lambda values, step: {"w": 1e-3 * mine.T @ (mine @ values["w"])}


def mnist(task: int) -> tuple[dict[str, Any], Gradient]:
    """The network of examples/mnist.py and its real images, of which each worker has every second one."""
    from examples.mnist import images_and_labels, initial_params, loss_and_gradients

    images, labels, _, _ = images_and_labels()
    images, labels = images[task::2], labels[task::2]

    def gradient(values: Any, step: int) -> Any:
        chosen = np.arange(50 * step, 50 * step + 50) % len(images)
        _, found = loss_and_gradients(values, images[chosen], labels[chosen])
        return {layer: {name: np.float32(0.1) * g for name, g in by.items()} for layer, by in found.items()}

    return initial_params(), gradient


def main(update: str, steps: int, pause_s: float, pull_s: float, timeout_s: float, model: str = "small") -> None:
    acknowledged, late = 0, []
    with dps.Server.from_env() as server:
        params, gradient = {"small": small, "mnist": mnist}[model](server.task)
        params["count"] = np.zeros((), np.float32)
        with dps.Session(server, params, optimizer=dps.optim.SGD(1.0), update=update, timeout=timeout_s) as session:
            for step in range(steps):
                while True:
                    try:
                        values = session.pull(timeout=pull_s)
                        break
                    except dps.DeadlineExceeded as error:
                        late.append(str(error))
                        print(error, flush=True)
                    if len(late) > 20:
                        raise SystemExit(1)
                pushed = session.push_async({**gradient(values, step), "count": np.float32(-1)})
                while True:
                    try:
                        acknowledged += pushed.result(pull_s).accepted
                        break
                    except dps.DeadlineExceeded as error:
                        late.append(str(error))
                        print(error, flush=True)
                    if len(late) > 20:
                        raise SystemExit(1)
                print(f"acknowledged {acknowledged}", flush=True)
                time.sleep(pause_s)
            values = session.pull()
            lanes = [bool(peer.lane.on) for peer in session._connection.peers.values()]
            count = float(values.pop("count"))
            found = {
                "step": session.global_step, "acknowledged": acknowledged, "count": count, "bits": bits(values),
                "late": late, "lanes": lanes, "task": server.task,
            }  # fmt: skip
            print(f"RESULT {json.dumps(found)}", flush=True)


def bits(values: Any) -> str:
    """A digest of all arrays in nested dicts."""
    digest = hashlib.sha256()
    pending = [values]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            pending += [each[name] for name in sorted(each)]
        else:
            digest.update(each.tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]), *sys.argv[6:])
