"""The works that `dps bench` measures, and the variables that they move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dps import optim
from dps.session import Session
from dps.variables.tree import Rows, Variable

TABLE_ROWS, DIM, ROWS = 1_000_000, 64, 8192


def resnet50() -> list[tuple[int, ...]]:
    """161 shapes, 25.6 M elements: those of a ResNet-50 without its moving averages."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    into = 64
    for blocks, mid in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            out = mid * 4
            shapes += [
                (mid, into, 1, 1),
                (mid,),
                (mid,),
                (mid, mid, 3, 3),
                (mid,),
                (mid,),
                (out, mid, 1, 1),
                (out,),
                (out,),
            ]
            shapes += [(out, into, 1, 1), (out,), (out,)] if block == 0 else []
            into = out
    return [*shapes, (1000, 2048), (1000,)]


SIZES: dict[str, list[tuple[int, ...]]] = {
    "4k": [(1024,)], "1m": [(262_144,)], "64m": [(16_777_216,)], "256m": [(67_108_864,)], "resnet": resnet50(),
    "small": [(2560,)] * 10,
}  # fmt: skip
WORKS = ("pull", "push", "step", "sparse", "sync")


def params(size: str) -> dict[str, Any]:
    """float32 zeros of a named size."""
    return {f"v{i}": np.zeros(shape, np.float32) for i, shape in enumerate(SIZES[size])}


def table() -> dict[str, Any]:
    """The embedding table of the sparse work."""
    return {"table": Variable(np.zeros((TABLE_ROWS, DIM), np.float32), sparse=True, optimizer=optim.Adagrad(0.01))}


def zipf_rows(seed: int) -> Any:
    """8,192 distinct rows, drawn by Zipf weights."""
    draw = np.random.default_rng(seed)
    weights = np.arange(1, TABLE_ROWS + 1, dtype=np.float64) ** -1.1
    return draw.choice(TABLE_ROWS, ROWS, replace=False, p=weights / weights.sum()).astype(np.int64)


def dense(work: str, session: Session, size: str) -> Callable[[], object]:
    """One call of pull, push or step (or sync, which is step on a cluster in sync mode)."""
    gradients = session.gradients()
    for gradient in gradients.values():
        gradient[...] = 1.0
    session.pull()
    if work == "pull":
        return session.pull
    if work == "push":
        return lambda: session.push(gradients)
    return lambda: session.step(gradients)


def sparse(work: str, session: Session) -> Callable[[], object]:
    """One lookup or one push of 8,192 rows, other rows each time."""
    lists = [zipf_rows(seed) for seed in range(4)]
    values = np.ones((ROWS, DIM), np.float32)
    turn = [0]

    def rows() -> Any:
        turn[0] += 1
        return lists[turn[0] % 4]

    if work == "pull":
        return lambda: session.lookup("table", rows())
    return lambda: session.push({"table": Rows(rows(), values)})
