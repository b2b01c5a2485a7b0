"""Which actors are in this process, by the addresses of their nodes."""

from __future__ import annotations

from collections.abc import Container
from weakref import WeakKeyDictionary

from dps.transport.endpoint import Runtime

local_nodes: WeakKeyDictionary[Runtime, dict[str, Container[str]]] = WeakKeyDictionary()
"""The names of the actors of each node."""


def is_local(runtime: Runtime, address: str, name: str) -> bool:
    """Whether a node of this process has this address and an actor of this name."""
    return name in local_nodes.get(runtime, {}).get(address, ())
