"""The user's own keys: made on first use in the state folder, for tasks on this machine to which nobody gave others."""

from __future__ import annotations

import contextlib
import os

from dps.cluster.address import parse
from dps.config import state_folder
from dps.errors import ConfigError, Unavailable
from dps.transport.address import is_loopback, resolve


def of_run(chief: str, trusted: bool) -> str:
    """The folder of keys of a run with its chief at this address, where nobody named one; "" for no keys. It is the
    user's own for a chief on this machine's loopback interface, unless the network is `trusted`. May query DNS.

    Raises ConfigError if the folder cannot be made."""
    where = parse(chief)
    if trusted or where.scheme != "tcp":
        return ""
    try:
        return folder() if is_loopback(resolve(where.host)) else ""
    except Unavailable:  # whoever connects there says so
        return ""


def is_own(path: str) -> bool:
    """Whether this is the folder of the user's own keys."""
    return path == _path()


def _path() -> str:
    return os.path.join(state_folder(), "keys")


def folder() -> str:
    """The folder of the user's own keys, which is made if it is not there. Raises ConfigError if it cannot be made."""
    path = _path()
    if not os.path.lexists(path):
        _make(path)
    return path


def _make(path: str) -> None:
    """Make the folder whole or not at all: tasks that start at the same time find the keys of the first one."""
    from dps.transport import key_files

    made = f"{path}.{os.urandom(8).hex()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.mkdir(made, 0o700)
        key_files.new(made)
        os.rename(made, path)
    except (OSError, ConfigError) as error:
        if not os.path.isdir(path):
            why = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(
                f"cannot make this user's own keys in {path}, which keep other accounts out: {why}; set "
                "XDG_STATE_HOME to a folder that this user may write, or give every task --keys DIR (DPS_KEYS)"
            ) from None
    finally:
        with contextlib.suppress(OSError):
            for name in os.listdir(made):
                os.unlink(os.path.join(made, name))
            os.rmdir(made)
