"""Pulls ahead: the next pull is in flight while the loop computes with the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dps.client.pulling import PullOp, Pulls


def prefetched(
    pulls: Pulls, names: Sequence[str] | None, should_stop: Callable[[], bool], flush: Callable[[], None],
    saw: Callable[[Any], Any],
) -> Iterator[Any]:  # fmt: skip
    """Yields values, which `saw` gets first. Each pull is sent before the values of the one before are handed out. Each
    turn blocks until its values are there."""

    def asked() -> PullOp:
        operation = pulls.start(names, None, after=False)
        operation.start()
        flush()
        return operation

    ahead = asked()
    try:
        while not should_stop():
            values = pulls.finish(ahead, None)
            ahead = asked()
            yield saw(values)
    finally:
        ahead.drop()
