"""Who is in a cluster and where things go: specs, devices, placement, partitioning, resolvers.

`device` and `resolve` are modules here; the functions of those names are `dps.device` and `dps.resolve`.
"""

from __future__ import annotations

from dps.cluster import device, partition, placement, resolve
from dps.cluster.address import check_address
from dps.cluster.device import Device, Setter
from dps.cluster.setter import ReplicaDeviceSetter, replica_device_setter
from dps.cluster.spec import ClusterSpec, Task

__all__ = [
    "ClusterSpec",
    "Device",
    "ReplicaDeviceSetter",
    "Setter",
    "Task",
    "check_address",
    "device",
    "partition",
    "placement",
    "replica_device_setter",
    "resolve",
]
