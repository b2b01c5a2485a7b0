"""Checks the name of a task that joins a run, and whether the role of its key may take the part that it asks for."""

from __future__ import annotations

from dps.errors import ConfigError, PermissionDenied
from dps.transport.roles import roles_of

HIGHEST, LONGEST = 65535, 64
"""The highest index of a task, and the longest name of a job: the chief remembers all names that it has heard."""


def check_name(job: str, task: int) -> None:
    """Raise ConfigError for a job and an index (-1: any) that no task can have."""
    if len(job) > LONGEST or not -1 <= task <= HIGHEST:
        raise ConfigError(f"got task {task} of job {job!r:.80}; wanted an index from 0 to {HIGHEST}")


def check_claim(role: str, job: str, name: str, trains: bool = False) -> None:
    """Raise PermissionDenied for what a role may not be. `role` "": this process, or there are no keys. `trains`: it
    brings variables, so that it takes part in steps."""
    may_be = roles_of(job)
    if role and role not in may_be:
        raise PermissionDenied(f"got {name} with the key of {role}; wanted that of {' or '.join(may_be)}")
    if trains and role not in ("", "worker"):
        raise PermissionDenied(
            f"got variables of {name}, whose key is that of {role}; wanted a session without params, as it only reads, "
            "or the key of worker"
        )
