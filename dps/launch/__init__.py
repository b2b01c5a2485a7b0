"""Starts the tasks of a run: on this machine, over SSH, on Slurm and on Ray."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dps.launch.clusters.elsewhere import RayCluster as RayCluster
    from dps.launch.clusters.elsewhere import SlurmCluster as SlurmCluster
    from dps.launch.clusters.elsewhere import SSHCluster as SSHCluster

ELSEWHERE = ("RayCluster", "SSHCluster", "SlurmCluster")


def __getattr__(name: str) -> Any:
    """Load the clusters on other machines where they are used."""
    if name in ELSEWHERE:
        return getattr(importlib.import_module("dps.launch.clusters.elsewhere"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
