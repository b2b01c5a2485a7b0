"""Finds the runtime of the calling task: the simulated one inside a simulation, else the real one."""

from __future__ import annotations

from contextvars import ContextVar

from dps.transport.endpoint import Runtime

current_runtime: ContextVar[Runtime | None] = ContextVar("dps_runtime", default=None)
"""The simulated runtime of the task that runs now; None outside the simulator."""


def runtime() -> Runtime:
    """The calling task's runtime. The real one is made at its first use."""
    simulated = current_runtime.get()
    if simulated is not None:
        return simulated
    from dps.transport.real import real_runtime

    return real_runtime()
