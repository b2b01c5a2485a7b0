"""Functions that the tests' workers serve."""

from __future__ import annotations

import sys
from asyncio import CancelledError
from collections.abc import Iterator
from typing import Any

import numpy as np

import dps
from dps.transport.current import runtime


def add(a: Any, b: Any) -> Any:
    return a + b


def who(pause_s: float = 0.0) -> str:
    runtime().sleep(pause_s)
    return runtime().name


def fail(text: str) -> None:
    raise KeyError(text)


class Untold(Exception):
    """An error without a message: its text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


ENDS = {
    "exit": SystemExit(3), "cancelled": CancelledError(), "untold": Untold(),
    "file": FileNotFoundError(b"data \xff".decode(errors="surrogateescape")),
}  # fmt: skip
"""Errors that could end a worker, or that could not be told as they are."""


def end_by(name: str) -> None:
    raise ENDS[name]


def make_by_exiting() -> None:
    sys.exit(4)


def give_what_cannot_travel() -> object:
    return object()


def gradients(session: dps.Session, x: float) -> float:
    """Pull, and push a gradient of ones: what a worker does in a step."""
    w = session.pull()["w"]
    session.push({"w": np.ones_like(w)})
    return float(w.sum() + x)


def pulled(session: dps.Session) -> Any:
    return session.pull()


def numbers(task: int) -> Iterator[int]:
    """A dataset of the worker: task * 100 and on."""
    yield from range(task * 100, task * 100 + 50)


def take(batches: Iterator[int]) -> int:
    return next(batches)


def box() -> dict[str, int]:
    return {"calls": 0}


def count(box: dict[str, int]) -> tuple[int, str]:
    box["calls"] += 1
    return box["calls"], runtime().name


def same(one: object, other: object) -> bool:
    return one is other


tries: list[str] = []


def no_ps(errors: int) -> str:
    """Fails so often as if a ps did not answer."""
    tries.append(runtime().name)
    if len(tries) <= errors:
        raise dps.Unavailable("ps:0 does not answer")
    return f"{len(tries)} tries"
