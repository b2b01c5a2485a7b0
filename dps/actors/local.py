"""The nodes of this process, by their addresses: for reads in place."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dps.transport.endpoint import Runtime

if TYPE_CHECKING:
    from dps.actors.actor import Actor
    from dps.actors.system import Node

local_nodes: WeakKeyDictionary[Runtime, dict[str, Node]] = WeakKeyDictionary()


def local_actor(runtime: Runtime, address: str, name: str) -> Actor | None:
    """An actor on a node of this process; None if its node is in another process."""
    node = local_nodes.get(runtime, {}).get(address)
    return None if node is None else node.actors.get(name)
