"""Hooks run code around a training loop. Subclass `Hook` and pass instances to `dps.Session(hooks=[...])`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dps.parts import at_first_use

if TYPE_CHECKING:
    from dps.hooks.chain import Chain
    from dps.hooks.counter import StepCounter
    from dps.hooks.final import FinalOps
    from dps.hooks.hook import Hook
    from dps.hooks.listener import CheckpointSaverListener
    from dps.hooks.metrics import LogMetrics
    from dps.hooks.nan import NanGuard
    from dps.hooks.profiler import Profiler
    from dps.hooks.saver import CheckpointSaver
    from dps.hooks.stop import StopAtStep
    from dps.hooks.summary import SummarySaver
    from dps.hooks.timer import Timer
    from dps.hooks.waiter import GlobalStepWaiter
    from dps.hooks.writer import SummaryWriter

__all__ = [
    "Chain",
    "CheckpointSaver",
    "CheckpointSaverListener",
    "FinalOps",
    "GlobalStepWaiter",
    "Hook",
    "LogMetrics",
    "NanGuard",
    "Profiler",
    "StepCounter",
    "StopAtStep",
    "SummarySaver",
    "SummaryWriter",
    "Timer",
]

if not TYPE_CHECKING:
    __getattr__ = at_first_use(
        __name__,
        {
            "Chain": "chain",
            "StepCounter": "counter",
            "FinalOps": "final",
            "Hook": "hook",
            "CheckpointSaverListener": "listener",
            "LogMetrics": "metrics",
            "NanGuard": "nan",
            "Profiler": "profiler",
            "CheckpointSaver": "saver",
            "StopAtStep": "stop",
            "SummarySaver": "summary",
            "SummaryWriter": "writer",
            "Timer": "timer",
            "GlobalStepWaiter": "waiter",
        },
    )  # fmt: skip
