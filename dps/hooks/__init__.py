"""Hooks run code around a training loop. Subclass `Hook` and pass instances to `dps.Session(hooks=[...])`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dps.parts import at_first_use

if TYPE_CHECKING:
    from dps.hooks.chain import Chain
    from dps.hooks.counter import StepCounter
    from dps.hooks.hook import Hook
    from dps.hooks.metrics import LogMetrics
    from dps.hooks.nan import NanGuard
    from dps.hooks.saver import CheckpointSaver
    from dps.hooks.stop import StopAtStep
    from dps.hooks.summary import SummarySaver
    from dps.hooks.timer import Timer

__all__ = [
    "Chain",
    "CheckpointSaver",
    "Hook",
    "LogMetrics",
    "NanGuard",
    "StepCounter",
    "StopAtStep",
    "SummarySaver",
    "Timer",
]

if not TYPE_CHECKING:
    __getattr__ = at_first_use(
        __name__,
        {
            "Chain": "chain",
            "StepCounter": "counter",
            "Hook": "hook",
            "LogMetrics": "metrics",
            "NanGuard": "nan",
            "CheckpointSaver": "saver",
            "StopAtStep": "stop",
            "SummarySaver": "summary",
            "Timer": "timer",
        },
    )  # fmt: skip
