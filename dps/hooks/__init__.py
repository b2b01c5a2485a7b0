"""Hooks run code around a training loop. Subclass `Hook` and pass instances to `dps.Session(hooks=[...])`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dps.process.lazy_imports import at_first_use

if TYPE_CHECKING:
    from dps.hooks.ending import FinalOps, NanGuard, StopAtStep
    from dps.hooks.hook import Chain, Hook
    from dps.hooks.metrics import LogMetrics, StepCounter
    from dps.hooks.profiler import Profiler
    from dps.hooks.saver import CheckpointSaver, CheckpointSaverListener
    from dps.hooks.summary import SummarySaver, SummaryWriter
    from dps.hooks.timer import Timer
    from dps.hooks.waiting import GlobalStepWaiter

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
            "Chain": "hook",
            "StepCounter": "metrics",
            "FinalOps": "ending",
            "Hook": "hook",
            "CheckpointSaverListener": "saver",
            "LogMetrics": "metrics",
            "NanGuard": "ending",
            "Profiler": "profiler",
            "CheckpointSaver": "saver",
            "StopAtStep": "ending",
            "SummarySaver": "summary",
            "SummaryWriter": "summary",
            "Timer": "timer",
            "GlobalStepWaiter": "waiting",
        },
    )  # fmt: skip
