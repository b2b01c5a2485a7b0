"""Strategies: one training text on one device, on several, or on a cluster with ps. The line that makes one changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dps.process.lazy_imports import at_first_use

if TYPE_CHECKING:
    from dps.strategy.context import ReplicaContext as ReplicaContext
    from dps.strategy.default import get_replica_context as get_replica_context
    from dps.strategy.default import get_strategy as get_strategy
    from dps.strategy.default import has_strategy as has_strategy
    from dps.strategy.default import in_cross_replica_context as in_cross_replica_context
    from dps.strategy.input import Distributed as Distributed
    from dps.strategy.input import InputContext as InputContext
    from dps.strategy.local import Local as Local
    from dps.strategy.multi_worker import MultiWorkerMirrored as MultiWorkerMirrored
    from dps.strategy.one_machine import CentralStorage as CentralStorage
    from dps.strategy.one_machine import Mirrored as Mirrored
    from dps.strategy.one_machine import OneDevice as OneDevice
    from dps.strategy.parameter_server import ParameterServer as ParameterServer
    from dps.strategy.reduction import average_loss as average_loss
    from dps.strategy.strategy import Strategy as Strategy
    from dps.strategy.strategy import Variables as Variables
    from dps.strategy.values import MirroredValue as MirroredValue
    from dps.strategy.values import PerReplica as PerReplica

_NAMES = {
    "Strategy": "strategy", "OneDevice": "one_machine", "Mirrored": "one_machine", "CentralStorage": "one_machine",
    "ReplicaContext": "context", "get_strategy": "default", "has_strategy": "default",
    "in_cross_replica_context": "default", "get_replica_context": "default", "PerReplica": "values",
    "MirroredValue": "values", "Variables": "strategy", "Distributed": "input", "InputContext": "input",
    "ParameterServer": "parameter_server", "Local": "local",
    "average_loss": "reduction", "MultiWorkerMirrored": "multi_worker",
}  # fmt: skip

__all__ = [*_NAMES]  # noqa: PLE0604
__getattr__ = at_first_use(__name__, _NAMES)
