"""A worker of uneven.py, in the namespace of its machine: dps, or `Training`, which all systems share.

    uneven_sides.py {"task": 0, "chief": "10.78.0.1:2220", "keys": "...", "update": "sync:3 of 4", "rate": 0.2, ...}

A worker says `ready` and waits for a line. Then it trains, and sleeps after each batch for as long as its machine would
compute. Worker 0 tests its values every few steps, and ends with a line of JSON when they are good enough.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

BATCH, TESTED = 100, 5
"""Images of a batch, and after how many of its steps worker 0 tests."""


class Training:
    """The batches of one worker, and the test of worker 0. Values: hidden weights (784, 128) and biases, then those of
    the output (128, 10), float32."""

    def __init__(self, about: dict[str, Any]) -> None:
        """`about`: the worker's `task`, a `seed`, the accuracy that is the `goal`, and how many seconds a batch takes:
        `computes_s`."""
        import mnist  # type: ignore[import-not-found]  # the example
        import numpy as np

        self._about, self._forward = about, mnist.forward
        self._images, self._labels, self._test_images, self._test_labels = mnist.images_and_labels()
        self._draw = np.random.default_rng([about["seed"], about["task"]])
        self._began = 0.0
        self._curve: list[tuple[float, float]] = []
        self._steps = 0

    def batches(self) -> Iterator[tuple[Any, Any]]:
        """Images and labels, from when the order comes; after each batch the machine has computed."""
        print("ready", flush=True)
        sys.stdin.readline()
        self._began = time.monotonic()
        while True:
            chosen = self._draw.integers(len(self._images), size=BATCH)
            time.sleep(self._about["computes_s"])
            yield self._images[chosen], self._labels[chosen]

    def has_reached(self, values: Any) -> bool:
        """A step has been made. Worker 0: whether the values, nested as those of the example, are good enough."""
        self._steps += 1
        if self._about["task"] or self._steps % TESTED:
            return False
        scores = self._forward(values, self._test_images)[1]
        accuracy = float((scores.argmax(axis=1) == self._test_labels).mean())
        self._curve.append((round(time.monotonic() - self._began, 3), accuracy))
        if accuracy < self._about["goal"]:
            return False
        print(json.dumps({"seconds": self._curve[-1][0], "steps": self._steps, "curve": self._curve}), flush=True)
        return True


def mode_of(text: str) -> Any:
    """An update mode: async, bounded:S, sync, sync:3 of 4, local:H."""
    import dps

    name, _, number = text.partition(":")
    if name == "sync" and number:
        wanted, _, total = number.partition(" of ")
        return dps.SyncReplicas(replicas_to_aggregate=int(wanted), total_num_replicas=int(total))
    if name in ("async", "sync"):
        return {"async": dps.Async(), "sync": dps.SyncReplicas()}[name]
    return {"bounded": dps.Bounded, "local": dps.Local}[name](int(number))


def train(about: dict[str, Any]) -> None:
    """A worker of dps."""
    import mnist

    import dps

    training, params = Training(about), mnist.initial_params()
    server = dps.Server(None, "worker", about["task"], chief=about["chief"], keys=about["keys"])
    settings = {"optimizer": dps.optim.SGD(about["rate"]), "update": mode_of(about["update"]), "timeout": 600}
    with dps.Session(server, params, **settings) as session:
        values = session.pull()
        for images, labels in training.batches():
            _, gradients = mnist.loss_and_gradients(values, images, labels)
            values = session.step(gradients)
            if training.has_reached(values):
                break
    server.stop()


def main(argv: Sequence[str]) -> int:
    """Run one worker."""
    train(json.loads(argv[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
