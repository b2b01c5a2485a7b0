"""Makes folders for the `ipc://` sockets of one run, into which only this user can look."""

from __future__ import annotations

import contextlib
import os

from dps.errors import ConfigError

LONGEST = 103 - len("/worker-0123456789abcdef")
"""Bytes of a folder's path, so that the paths of sockets in it are not too long for the system."""


def private_folder() -> str:
    """A new folder of mode 700 in TMPDIR, or else in /tmp. Raises ConfigError if neither can be written."""
    for parent in filter(None, (os.environ.get("TMPDIR"), "/tmp")):
        path = os.path.join(os.path.abspath(parent), f"dps-{os.urandom(8).hex()}")
        if len(os.fsencode(path)) > LONGEST:
            continue
        with contextlib.suppress(OSError):
            os.mkdir(path, 0o700)
            return path
    raise ConfigError("no folder for this run's sockets: neither TMPDIR nor /tmp can be written; set TMPDIR to one")


def private_chief() -> tuple[str, str]:
    """A new folder, and the address in it at which the chief of a run listens."""
    folder = private_folder()
    return folder, f"ipc://{folder}/chief"


def neighbour(path: str) -> str:
    """The path of a new socket in the folder of another one."""
    return os.path.join(os.path.dirname(path), f"node-{os.urandom(8).hex()}")


def remove(path: str) -> None:
    """Remove such a folder, with the sockets that ended processes have left there."""
    with contextlib.suppress(OSError):
        for name in os.listdir(path):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)
