"""The members of a cluster and where things go: specs, devices, placement, partitioning, resolvers.

`device` and `resolve` are modules here; the functions with these names are `dps.device` and `dps.resolve`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dps.process.lazy_imports import at_first_use

if TYPE_CHECKING:
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

if not TYPE_CHECKING:
    __getattr__ = at_first_use(
        __name__,
        {
            "device": "", "partition": "", "placement": "", "resolve": "",
            "check_address": "address",
            "Device": "device", "Setter": "device",
            "ReplicaDeviceSetter": "setter", "replica_device_setter": "setter",
            "ClusterSpec": "spec", "Task": "spec",
        },
    )  # fmt: skip
