"""Values pulled ahead: the next pull is on its way while the loop computes with the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dps.client.pulling import PullOp, Pulls
from dps.errors import ConfigError


def prefetched(
    pulls: Pulls, names: Sequence[str] | None, should_stop: Callable[[], bool], flush: Callable[[], None]
) -> Iterator[Any]:
    """Values again and again, each asked for before the loop began to compute with those before.

    Blocks for as long as the next ones are not there. Raises ConfigError in sync mode, where a gradient belongs to the
    step it was computed from.
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
