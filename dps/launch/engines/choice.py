"""Makes the engine that a run names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dps.errors import ConfigError
from dps.launch.engines.engine import Engine
from dps.launch.supervision.plan import RunPlan

LOCAL = "local"
NAMES = (LOCAL, "ssh", "slurm", "ray")


def engine(settings: Mapping[str, Any]) -> Engine:
    """The engine for the settings of a run: `on`, its name, and what an experiment file says for it."""
    on = settings.get("on", LOCAL)
    if on == LOCAL:
        from dps.launch.engines.local import LocalEngine

        return LocalEngine()
    if on == "ssh":
        from dps.launch.engines.ssh import SSHEngine

        return SSHEngine(settings)
    if on == "slurm":
        from dps.launch.engines.slurm import SlurmEngine

        return SlurmEngine(settings)
    if on == "ray":
        from dps.launch.engines.ray import RayEngine

        return RayEngine(settings)
    raise ConfigError(f"--on {on}: no such engine; wanted {', '.join(NAMES[:-1])} or {NAMES[-1]}")


def makes_keys(settings: Mapping[str, Any], plan: RunPlan) -> bool:
    """Whether a run needs keys of its own: its tasks are on several hosts, and it names neither keys nor trust."""
    named = plan.env.keys() & {"DPS_KEYS", "DPS_TRUSTED_NETWORK"} or os.environ.get("DPS_KEYS")
    return settings.get("on", LOCAL) != LOCAL and not named
