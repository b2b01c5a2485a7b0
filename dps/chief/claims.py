"""Checks that who joins a run with a key names a job, and asks for a part in it, that the key's role may have."""

from __future__ import annotations

from dps.errors import PermissionDenied


def check_claim(role: str, job: str, name: str, trains: bool = False) -> None:
    """Raise PermissionDenied for what a role may not be. `role` "": this process, or there are no keys. `trains`: it
    brings variables, so that it takes part in steps."""
    may_be = ("worker", "reader") if job == "client" else (job,)
    if role and role not in may_be:
        raise PermissionDenied(f"got {name} with the key of {role}; wanted that of {' or '.join(may_be)}")
    if trains and role not in ("", "worker"):
        raise PermissionDenied(
            f"got variables of {name}, whose key is that of {role}; wanted a session without params, as it only reads, "
            "or the key of worker"
        )
