"""Finds the runtime of the calling task: the simulated one inside a simulation, else the real one; and its keys."""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import TYPE_CHECKING

from dps.transport.endpoint import Runtime

if TYPE_CHECKING:
    from dps.transport.keys.keyring import Credentials

current_runtime: ContextVar[Runtime | None] = ContextVar("dps_runtime", default=None)
"""The simulated runtime of the task that runs now; None outside the simulator."""


def runtime() -> Runtime:
    """The calling task's runtime. The real one is made at its first use."""
    simulated = current_runtime.get()
    if simulated is not None:
        return simulated
    from dps.transport.runtime import real_runtime

    return real_runtime()


def keys_for(
    chief: str, *roles: str, path: str | os.PathLike[str] | None = None, trusted: bool | None = None
) -> Credentials | None:
    """The keys for a run with its chief at this address, in the first of these roles that there is; None for no keys.

    They are those of the folder at `path`, else those of DPS_KEYS, else those of `own_keys.of_run`. `trusted`: whether
    the network is; None: as DPS_TRUSTED_NETWORK says. Raises what `own_keys.of_run` and `keys.credentials` raise."""
    path = path or os.environ.get("DPS_KEYS")
    if runtime().simulated or (not path and chief.startswith(("ipc://", "inproc://"))):
        return None
    from dps.cluster.identity import trusts_network
    from dps.transport.keys.files import of_run
    from dps.transport.keys.keyring import credentials

    trusted = trusts_network(os.environ) if trusted is None else trusted
    return credentials(path or of_run(chief, trusted), *roles)


def others_may_join(chief: str, keys: Credentials | None) -> bool:
    """Whether other accounts may join the run of a chief that listens at this address, with these keys: a plain port
    lets them in, or keys that are not only this user's."""
    if runtime().simulated or chief.startswith("inproc://"):
        return False
    if keys is None:
        return not chief.startswith("ipc://")
    from dps.transport.keys.files import is_own

    return not is_own(keys.folder.path)
