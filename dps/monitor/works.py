"""The works that `dps bench` measures, and the variables that they transfer."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dps.client.session import Session
from dps.errors import ConfigError
from dps.messages.replies import Version
from dps.monitor import loops
from dps.training import optimizers as optim
from dps.transport.limits import read
from dps.variables.tree import Rows, Variable


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
    "4k": [(1024,)], "small": [(2560,)] * 10, "1m": [(262_144,)], "64m": [(16_777_216,)], "256m": [(67_108_864,)],
    "resnet": resnet50(), "mlp": list(loops.SHAPES.values()),
}  # fmt: skip
WORKS = ("pull", "push", "step", "sparse", "sync", "loop")
"""W1, W2, W3, W4 (a pull and a push of rows), W5, W6 (a training loop) of the goals."""
OPTIMIZERS: dict[str, optim.Optimizer] = {"sgd": optim.SGD(0.01), "adagrad": optim.Adagrad(0.01)}
IN_PLACE = " in place"
APPLIED = " applied"
"""Suffix of a push that also waits for the pass that applies it. A large push over a socket is answered before its pass
(decision 19); elsewhere the difference is one small message each way."""
REPEATED = " repeated"
"""Suffix of sparse works whose row lists repeat, so that each is sorted once (decision 14)."""
FRESH_LISTS, REPEATED_LISTS = 48, 4
"""How many row lists the sparse works use in turn. A session remembers 32 lists, so with 48 it has forgotten each list
before it is used again."""
NEVER = 1 << 60
"""A version that no ps reaches. A pull that asks for newer values takes one message each way and no values."""
EXACT = 1_000_000
"""Up to this number of rows Zipf weights are computed one by one."""


@dataclass(frozen=True)
class Table:
    """The sparse work: a table of `rows` x `dim` float32, of which `taken` distinct rows are transferred at a time."""

    rows: int = 1_000_000
    taken: int = 8192
    dim: int = 64

    @property
    def nbytes(self) -> int:
        """Bytes in one direction."""
        return self.taken * self.dim * 4

    def params(self, optimizer: str) -> dict[str, Any]:
        values = np.zeros((self.rows, self.dim), np.float32)
        return {"table": Variable(values, sparse=True, optimizer=OPTIMIZERS[optimizer])}

    def drawn(self, seed: int) -> Any:
        """Distinct row numbers, drawn by Zipf weights (exponent 1.1), int64, in the order they were drawn."""
        draw = np.random.default_rng(seed)
        return self._about(draw) if self.rows > EXACT else self._exactly(draw)

    def _exactly(self, draw: np.random.Generator) -> Any:
        """Draw without replacement: draw with replacement and keep the first of equal rows."""
        reached = _zipf(self.rows)
        if self.taken > self.rows // 2:  # otherwise the last rows would take very many draws
            return draw.choice(self.rows, self.taken, replace=False, p=np.diff(reached, prepend=0) / reached[-1])
        drawn = first = np.empty(0, np.int64)
        while len(first) < self.taken:
            more = draw.random(max(4 * self.taken, len(drawn))) * reached[-1]
            found = np.minimum(np.searchsorted(reached, more, side="right"), self.rows - 1)
            drawn = np.concatenate([drawn, found])
            first = np.unique(drawn, return_index=True)[1]
        return drawn[np.sort(first)[: self.taken]]

    def _about(self, draw: np.random.Generator) -> Any:
        """The same for large tables, by the inverse of the continuous distribution, without arrays of size `rows`."""
        found = np.empty(0, np.int64)
        while len(found) < self.taken:
            ranks = (1 - draw.random(4 * self.taken) * (1 - self.rows**-0.1)) ** -10
            found = np.unique(np.concatenate([found, np.minimum(ranks, self.rows).astype(np.int64) - 1]))
        return draw.permutation(found)[: self.taken]

    def calls(self, session: Session) -> dict[str, Callable[[], object]]:
        """One lookup and one push, of different rows each time: with lists that the session has forgotten, and with few
        lists that it remembers."""
        lists = [self.drawn(seed) for seed in range(FRESH_LISTS)]
        values = np.ones((self.taken, self.dim), np.float32)
        found: dict[str, Callable[[], object]] = {}
        for ending, used in (("", lists), (REPEATED, lists[:REPEATED_LISTS])):
            in_turn = itertools.cycle(used)
            found["sparse pull" + ending] = lambda rows=in_turn: session.lookup("table", next(rows))  # type: ignore[misc]
            found["sparse push" + ending] = lambda rows=in_turn: session.push({"table": Rows(next(rows), values)})  # type: ignore[misc]
        return found


@functools.cache
def _zipf(rows: int) -> Any:
    """Sums of Zipf weights up to each row, float64 (rows,)."""
    return np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -1.1)


def shapes(size: str) -> list[tuple[int, ...]]:
    """The shapes of a size: a name of SIZES, or "COUNTxELEMENTS" such as "1000x64". ConfigError for anything else."""
    if size in SIZES:
        return SIZES[size]
    count, _, elements = size.partition("x")
    if not (count.isdigit() and elements.isdigit() and int(count) and int(elements)):
        raise ConfigError(f"size {size!r} is not known; wanted one of {', '.join(SIZES)}, or COUNTxELEMENTS as 1000x64")
    return [(int(elements),)] * int(count)


def nbytes(size: str) -> int:
    """Bytes of a size, in one direction."""
    return 4 * sum(math.prod(shape) for shape in shapes(size))


def params(size: str) -> dict[str, Any]:
    """float32 zeros of a size."""
    return {f"v{i}": np.zeros(shape, np.float32) for i, shape in enumerate(shapes(size))}


def dense(session: Session, size: str) -> dict[str, Callable[[], object]]:
    """One call of each dense work, by name. "sync" is a step, for sessions of a run in sync mode.

    Copied: gradients are in the caller's arrays, and values come in arrays that the caller owns. In place: gradients
    are in memory that the ps reads, and every value is read in the ps's memory.
    """
    own = {name: np.ones(array.shape, np.float32) for name, array in params(size).items()}
    shared = session.gradients()
    for gradient in shared.values():
        gradient[...] = 1.0

    def view() -> None:
        with session.view() as values:
            for array in values.values():
                read(array)

    def step_in_place() -> None:
        with session.step_in_place(shared) as values:
            for array in values.values():
                read(array)

    @functools.cache
    def latest() -> Version:
        session.pull()
        return Version(session.version.epoch, tuple((ps, NEVER) for ps, _ in session.version.counters))

    def push_applied() -> None:
        session.push(own)
        session.pull(if_newer_than=latest())  # a ps handles messages in order, so it answers this one after the pass

    return {
        "pull": session.pull, "pull" + IN_PLACE: view,
        "push": lambda: session.push(own), "push" + IN_PLACE: lambda: session.push(shared),
        "push" + APPLIED: push_applied,
        "step": lambda: session.step(own), "step" + IN_PLACE: step_in_place,
        "sync": lambda: session.step(own), "sync" + IN_PLACE: step_in_place,
    }  # fmt: skip
