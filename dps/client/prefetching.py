"""Pulls ahead: the next pull is in flight while the loop computes with the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dps.client.pulling import PullOp, Pulls
from dps.errors import ConfigError


def prefetched(
    pulls: Pulls, names: Sequence[str] | None, should_stop: Callable[[], bool], flush: Callable[[], None]
) -> Iterator[Any]:
    """Yields values; each pull is sent before the values of the one before are handed out. Each turn blocks until its
    values are there.

    Raises ConfigError in sync mode, where a gradient belongs to the step that it was computed from.
    """
    if pulls.sync:
        raise ConfigError("prefetch in sync mode would take a step's gradients from the step before; use pull or step")
    return _prefetched(pulls, names, should_stop, flush)


def _prefetched(
    pulls: Pulls, names: Sequence[str] | None, should_stop: Callable[[], bool], flush: Callable[[], None]
) -> Iterator[Any]:
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
            yield values
    finally:
        ahead.drop()
