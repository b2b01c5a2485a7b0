"""Makes the node of a task: with its keys, at its address; and says what other tasks need to reach it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dps.actors.node import Node
from dps.cluster.identity import Identity
from dps.errors import Unavailable
from dps.process import config
from dps.process.telemetry import log
from dps.transport.current import keys_for
from dps.transport.endpoint import Runtime
from dps.transport.message import roles_of

if TYPE_CHECKING:
    from dps.transport.keys.keyring import Credentials
    from dps.transport.sockets.addresses import Binding


PLAIN = "plain sockets without keys (--trusted-network): whoever reaches them can read and change the run"


def node_keys(own: Identity, binding: Binding, path: str | os.PathLike[str] | None) -> Credentials | None:
    """The keys of a task's node. A worker that hosts the chief has the chief's; its sessions have a worker's."""
    roles = ("chief",) if own.hosts_chief else roles_of(own.job)
    chief = str(binding.asked()) if own.hosts_chief else own.chief
    found = keys_for(chief, *roles, path=path, trusted=binding.trusted)
    if found is not None:
        from dps.transport.keys.files import is_own

        if is_own(found.folder.path):
            binding.check_trusted(binding.asked())  # nobody on another machine has the user's own keys
    return found


def session_keys(job: str, keys: Credentials | None) -> Credentials | None:
    """The keys with which the sessions of a task of this job connect."""
    roles = roles_of(job if job in ("worker", "evaluator", "dataset") else "client")
    return None if keys is None else keys.as_role(*roles)


def make_node(
    runtime: Runtime, own: Identity, name: str, binding: Binding, expected: tuple[Sequence[int], Sequence[int]],
    keys: Credentials | None,
) -> Node:  # fmt: skip
    """A node that does not run yet. `expected`: the ps and the workers of the run.

    Raises Unavailable if the address is taken, and ConfigError if this process may open too few descriptors."""
    from dps.process import descriptors

    jobs = {own.job} | ({"chief"} if own.hosts_chief else set())
    runtime.check_descriptors(name, sum(descriptors.needed(job, *map(len, expected)) for job in jobs))
    try:
        node = Node(runtime, binding, name, runtime.random.getrandbits(61), keys)
    except Unavailable as error:
        error.exit_code = 2  # the task's own address is configured wrongly
        raise
    if node.exposed and keys is None:
        log.warning("%s: %s has %s", name, node.address, PLAIN)
    return node


def root_and_default(given: str | os.PathLike[str] | None) -> tuple[str, str]:
    """The checkpoint root that a chief was given, and the one it has without if others may join its run; "": none."""
    root = os.environ.get("DPS_CHECKPOINT_ROOT", "") if given is None else os.fspath(given)
    return root, os.environ.get("OUTPUT_DIR", "") if config.launched.is_set() else ""


def network_flags(node: Node) -> str:
    """The flags that tasks on other machines need to reach this one."""
    if node.keys is None:
        return "--trusted-network" if node.exposed else ""
    from dps.transport.keys.files import is_own

    path = node.keys.folder.path
    return "" if is_own(path) else f"--keys {path}"
