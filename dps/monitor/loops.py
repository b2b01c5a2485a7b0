"""The training loop that `dps bench` measures: a small network trained alone and through a ps (W6 of the goals).

The cost of a parameter server is the time of one step through it over the time of one step of plain local training. The
network is that of `examples/mnist.py` with batches of 128. The images are random, because they do not affect the time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from dps.client.session import Session
from dps.transport.limits import seconds
from dps.transport.wire import Array

SHAPES = {"hidden_w": (784, 128), "hidden_b": (128,), "out_w": (128, 10), "out_b": (10,)}
BATCH, IMAGES = 128, 4096
RATE = np.float32(0.01)
STEPS, LEAST_STEPS = 128, 8
"""Steps in one call if a step computes one batch, and the fewest steps in a call if it computes more."""
LOCAL = "local training"
FORMS = ("step", "pull and push", "in place", "overlapped", "overlapped in place")
"""Ways to write a loop: `step`; `pull`, then `push`; `step_in_place` with what `gradients()` gave; `prefetch` with
`push_async`; the same with values in place and what `gradients()` gave."""

Params = Mapping[str, Array]


@dataclass(frozen=True)
class MeasuredLoop:
    """A loop whose step computes `batches` batches and uses the gradients of the last: more computing, the same bytes.

    One call of a loop makes `steps` steps, and finally waits for pending pushes.
    """

    batches: int = 1
    steps: int = STEPS

    def params(self) -> dict[str, Any]:
        """The first values, float32."""
        draw = np.random.default_rng(1)
        return {name: draw.normal(0, 0.05, shape).astype(np.float32) for name, shape in SHAPES.items()}

    def local(self) -> Callable[[], object]:
        """Plain training in this process, with SGD."""
        params, computing = self.params(), Computing(self.batches)

        def steps() -> None:
            for _ in range(self.steps):
                grads = computing.gradients(params)
                for name, values in params.items():
                    values -= RATE * grads[name]

        return steps

    def calls(self, session: Session) -> dict[str, Callable[[], object]]:
        """Training through a session, by the names of `FORMS`."""
        loops = loops_through(session, Computing(self.batches))
        return {form: partial(loop, self.steps) for form, loop in loops.items()}


class Computes(Protocol):
    """What a step computes."""

    def gradients(self, params: Params, out: dict[str, Array] | None = None) -> dict[str, Array]:
        """Gradients by the names of the variables; `out`, where given, is filled."""


def loops_through(session: Session, computing: Computes) -> dict[str, Callable[[int], None]]:
    """Loops through a session that make so many steps, by the names of `FORMS`."""
    first, grads = session.pull(), session.gradients()

    def step(steps: int) -> None:
        params = first
        for _ in range(steps):
            params = session.step(computing.gradients(params))

    def pull_and_push(steps: int) -> None:
        for _ in range(steps):
            session.push(computing.gradients(session.pull()))

    def in_place(steps: int) -> None:
        with session.view() as params:
            computing.gradients(params, out=grads)
        for _ in range(steps - 1):
            with session.step_in_place(grads) as params:
                computing.gradients(params, out=grads)
        session.push(grads)

    def overlapped(steps: int) -> None:
        values, push = session.prefetch(), None
        for _ in range(steps):
            push = session.push_async(computing.gradients(next(values)))
        values.close()  # type: ignore[attr-defined]  # a generator: the pull that is on its way is dropped
        if push is not None:
            push.result()

    def overlapped_in_place(steps: int) -> None:
        values, push = session.prefetch(in_place=True), None
        for _ in range(steps):
            params, filled = next(values), session.gradients()
            computing.gradients(params, out=filled)
            push = session.push_async(filled)
        values.close()  # type: ignore[attr-defined]
        if push is not None:
            push.result()

    return dict(zip(FORMS, (step, pull_and_push, in_place, overlapped, overlapped_in_place), strict=True))


class Computing:
    """Gradients of a 784-128-10 network with softmax cross-entropy, on a new random batch each time."""

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._draw = np.random.default_rng(2)
        self._images = self._draw.random((IMAGES, SHAPES["hidden_w"][0]), np.float32)
        self._labels = self._draw.integers(0, SHAPES["out_w"][1], IMAGES)

    def gradients(self, params: Params, out: dict[str, Array] | None = None) -> dict[str, Array]:
        """Gradients of the last of the batches, float32, by the names of `SHAPES`; `out`, where given, is filled."""
        grads = {} if out is None else out
        for _ in range(self._batches):
            chosen = self._draw.integers(IMAGES, size=BATCH)
            grads = _gradients(params, self._images[chosen], self._labels[chosen], out)
        return grads


def _gradients(params: Params, images: Array, labels: Array, out: dict[str, Array] | None) -> dict[str, Array]:
    hidden = np.maximum(images @ params["hidden_w"] + params["hidden_b"], 0)
    scores = hidden @ params["out_w"] + params["out_b"]
    scores -= scores.max(axis=1, keepdims=True)
    by_scores = np.exp(scores)
    by_scores /= by_scores.sum(axis=1, keepdims=True)
    by_scores[np.arange(len(labels)), labels] -= 1
    by_scores /= np.float32(len(labels))
    by_hidden = by_scores @ params["out_w"].T * (hidden > 0)
    into: Mapping[str, Array | None] = dict.fromkeys(SHAPES) if out is None else out
    return {
        "hidden_w": np.matmul(images.T, by_hidden, out=into["hidden_w"]),
        "hidden_b": by_hidden.sum(axis=0, out=into["hidden_b"]),
        "out_w": np.matmul(hidden.T, by_scores, out=into["out_w"]),
        "out_b": by_scores.sum(axis=0, out=into["out_b"]),
    }


def loop_of(computing_s: float) -> MeasuredLoop:
    """A loop whose step computes for about `computing_s` on this machine: a whole number of batches, at least one."""
    computing, params = Computing(1), MeasuredLoop().params()
    batches = max(1, round(computing_s / statistics.median(seconds(lambda: computing.gradients(params), 0.1))))
    return MeasuredLoop(batches, max(LEAST_STEPS, STEPS // batches))
