"""dps: a parameter server for Python. Names are imported when they are first used, so that `import dps` is fast."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_NAMES = {
    "ClusterSpec": "dps.cluster.spec", "Device": "dps.cluster.device", "device": "dps.cluster.device",
    "replica_device_setter": "dps.cluster.setter", "resolve": "dps.cluster.resolve",
    "Server": "dps.task.server", "Session": "dps.client.session", "FOREVER": "dps.client.session",
    "Variable": "dps.variables.tree", "Rows": "dps.variables.tree",
    "Async": "dps.training.update_modes", "SyncReplicas": "dps.training.update_modes",
    "Bounded": "dps.training.update_modes", "Local": "dps.training.update_modes",
    "Push": "dps.messages.replies", "Reply": "dps.messages.replies", "Version": "dps.messages.replies",
    "Published": "dps.messages.replies",
    "Hook": "dps.hooks", "StopAtStep": "dps.hooks", "CheckpointSaver": "dps.hooks", "StepCounter": "dps.hooks",
    "LogMetrics": "dps.hooks", "NanGuard": "dps.hooks", "SummarySaver": "dps.hooks",
    "CheckpointSaverListener": "dps.hooks", "FinalOps": "dps.hooks", "GlobalStepWaiter": "dps.hooks",
    "Profiler": "dps.hooks",
    "SummaryWriter": "dps.hooks", "follow": "dps.client.following", "Follower": "dps.client.follower",
    "Coordinator": "dps.coordinator.coordinator", "RemoteValue": "dps.coordinator.coordinator",
    "LocalCluster": "dps.launch.clusters.local", "simulate": "dps.launch.commands.simulate",
    "DpsError": "dps.errors", "DeadlineExceeded": "dps.errors", "TaskLost": "dps.errors",
    "Unavailable": "dps.errors", "Aborted": "dps.errors", "Cancelled": "dps.errors", "ProtocolError": "dps.errors",
    "NotAuthenticated": "dps.errors", "PermissionDenied": "dps.errors", "CheckpointError": "dps.errors",
    "PlacementError": "dps.errors",
    "ConfigError": "dps.errors", "RemoteError": "dps.errors", "HookError": "dps.errors", "NotFinite": "dps.errors",
    "MissingExtra": "dps.errors", "OutOfDescriptors": "dps.errors", "DataError": "dps.errors",
    "QueueClosed": "dps.errors",
}  # fmt: skip
_MODULES = {
    "optim": "dps.optim",
    "layers": "dps.layers",
    "nn": "dps.nn",
    "compress": "dps.compress",
    "init": "dps.init",
    "data": "dps.data",
    "cluster": "dps.cluster",
    "launch": "dps.launch",
    "strategy": "dps.strategy",
    "placement": "dps.cluster.placement",
    "partition": "dps.cluster.partition",
    "sim": "dps.transport.sim",
}
_ADAPTERS = {
    "torch": "dps.torch",
    "jax": "dps.jax",
}
"""Modules that need the library of an extra. `from dps import *` leaves them out."""
_OF_TENSORFLOW = {
    "train": "tf.train.ClusterSpec and Server are those of dps itself, MonitoredTrainingSession is dps.Session, "
    "StopAtStepHook is dps.StopAtStep",
    "MonitoredTrainingSession": "it is dps.Session here", "SyncReplicasOptimizer": "it is dps.SyncReplicas here",
    "StopAtStepHook": "it is dps.StopAtStep here", "CheckpointSaverHook": "it is dps.CheckpointSaver here",
    "StepCounterHook": "it is dps.StepCounter here", "LoggingTensorHook": "it is dps.LogMetrics here",
    "NanTensorHook": "it is dps.NanGuard here", "SummarySaverHook": "it is dps.SummarySaver here",
    "SessionRunHook": "it is dps.Hook here", "IndexedSlices": "it is dps.Rows here",
    "distribute": "tf.distribute is dps.strategy here", "keras": "it is dps.nn here, with optimizers in dps.optim",
    "get_or_create_global_step": "the step is session.global_step here",
}  # fmt: skip
"""TensorFlow's names that people look for here."""

__all__ = [*_NAMES, *_MODULES]  # noqa: PLE0604

if TYPE_CHECKING:
    from types import ModuleType

    from dps import compress as compress
    from dps import init as init
    from dps import jax as jax
    from dps import optim as optim
    from dps import torch as torch
    from dps.client.follower import Follower as Follower
    from dps.client.following import follow as follow
    from dps.client.session import FOREVER as FOREVER
    from dps.client.session import Session as Session
    from dps.cluster import partition as partition
    from dps.cluster import placement as placement
    from dps.cluster.device import Device as Device
    from dps.cluster.device import device as device
    from dps.cluster.resolve import resolve as resolve
    from dps.cluster.setter import replica_device_setter as replica_device_setter
    from dps.cluster.spec import ClusterSpec as ClusterSpec
    from dps.coordinator.coordinator import Coordinator as Coordinator
    from dps.coordinator.coordinator import RemoteValue as RemoteValue
    from dps.errors import Aborted as Aborted
    from dps.errors import Cancelled as Cancelled
    from dps.errors import CheckpointError as CheckpointError
    from dps.errors import ConfigError as ConfigError
    from dps.errors import DataError as DataError
    from dps.errors import DeadlineExceeded as DeadlineExceeded
    from dps.errors import DpsError as DpsError
    from dps.errors import HookError as HookError
    from dps.errors import MissingExtra as MissingExtra
    from dps.errors import NotAuthenticated as NotAuthenticated
    from dps.errors import NotFinite as NotFinite
    from dps.errors import OutOfDescriptors as OutOfDescriptors
    from dps.errors import PermissionDenied as PermissionDenied
    from dps.errors import PlacementError as PlacementError
    from dps.errors import ProtocolError as ProtocolError
    from dps.errors import QueueClosed as QueueClosed
    from dps.errors import RemoteError as RemoteError
    from dps.errors import TaskLost as TaskLost
    from dps.errors import Unavailable as Unavailable
    from dps.hooks import CheckpointSaver as CheckpointSaver
    from dps.hooks import CheckpointSaverListener as CheckpointSaverListener
    from dps.hooks import FinalOps as FinalOps
    from dps.hooks import GlobalStepWaiter as GlobalStepWaiter
    from dps.hooks import Hook as Hook
    from dps.hooks import LogMetrics as LogMetrics
    from dps.hooks import NanGuard as NanGuard
    from dps.hooks import Profiler as Profiler
    from dps.hooks import StepCounter as StepCounter
    from dps.hooks import StopAtStep as StopAtStep
    from dps.hooks import SummarySaver as SummarySaver
    from dps.hooks import SummaryWriter as SummaryWriter
    from dps.messages.replies import Published as Published
    from dps.messages.replies import Push as Push
    from dps.messages.replies import Reply as Reply
    from dps.messages.replies import Version as Version
    from dps.task.server import Server as Server
    from dps.training.update_modes import Async as Async
    from dps.training.update_modes import Bounded as Bounded
    from dps.training.update_modes import Local as Local
    from dps.training.update_modes import SyncReplicas as SyncReplicas
    from dps.transport import sim as sim
    from dps.variables.tree import Rows as Rows
    from dps.variables.tree import Variable as Variable


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(_loaded(_NAMES[name]), name)
    elif name in _MODULES or name in _ADAPTERS:
        value = _loaded(_MODULES.get(name) or _ADAPTERS[name])
    else:
        here = _OF_TENSORFLOW.get(name)
        hint = f": {here}; docs/coming-from-tensorflow.md has all names" if here else ""
        told = f"module 'dps' has no attribute {name!r}{hint}"
        raise AttributeError(told, name=name, obj=sys.modules[__name__])  # of which Python makes "Did you mean"
    globals()[name] = value
    return value


def _loaded(module: str) -> ModuleType:
    from dps.process.config import importing

    with importing():
        return importlib.import_module(module)


def __dir__() -> list[str]:
    return sorted([*__all__, *_ADAPTERS])
