"""Finds the runtime of the calling task: the simulated one inside a simulation, else the real one; and its keys."""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import TYPE_CHECKING

from dps.transport.endpoint import Runtime

if TYPE_CHECKING:
    from dps.transport.keys import Credentials

current_runtime: ContextVar[Runtime | None] = ContextVar("dps_runtime", default=None)
"""The simulated runtime of the task that runs now; None outside the simulator."""


def runtime() -> Runtime:
    """The calling task's runtime. The real one is made at its first use."""
    simulated = current_runtime.get()
    if simulated is not None:
        return simulated
    from dps.transport.real import real_runtime

    return real_runtime()


def environment_keys(*roles: str) -> Credentials | None:
    """The keys of the folder that DPS_KEYS names, in the first of these roles that it has; None without a folder.

    Raises what `dps.transport.keys.credentials` raises."""
    path = os.environ.get("DPS_KEYS")
    if not path:
        return None
    from dps.transport.keys import credentials

    return credentials(path, *roles)
