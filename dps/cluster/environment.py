"""Reads from the environment which task a process is: launcher variables, TF_CONFIG and similar ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dps.cluster.spec import ClusterSpec
from dps.errors import ConfigError


def server_arguments(environ: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of `dps.Server` by name.

    Reads DPS_JOB, DPS_TASK, DPS_CHIEF or else DPS_CLUSTER, DPS_BIND, DPS_ADVERTISE, DPS_PORTS, DPS_TRUSTED_NETWORK,
    DPS_KEYS, DPS_WORKERS, DPS_PS, DPS_UPDATE, DPS_DEVICE, DPS_THREADS, DPS_CHECKPOINT_ROOT; without DPS_JOB, the
    variables that `resolve` reads and the five of where to listen. Raises ConfigError if no task is named.
    """
    found = arguments_found(environ)
    if found is None:
        raise ConfigError(
            "this program was not started as a task: neither DPS_JOB nor TF_CONFIG is set; start it with "
            "`dps launch` or `python -m dps.role --program`, or use Server.from_env(local=True) to run it alone, too"
        )
    return found


def arguments_found(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """Like `server_arguments`, but None if the environment names no cluster."""
    if "DPS_JOB" not in environ:
        return _resolved(environ)
    cluster: ClusterSpec | None = None
    if environ.get("DPS_CLUSTER") and not environ.get("DPS_CHIEF"):
        from dps.cluster.resolve import load_cluster

        cluster = load_cluster(environ["DPS_CLUSTER"])
    return {
        "cluster": cluster,
        "job": environ["DPS_JOB"],
        "task": _number(environ, "DPS_TASK"),
        "chief": environ.get("DPS_CHIEF") or None,
        "workers": _number(environ, "DPS_WORKERS"),
        "ps": _number(environ, "DPS_PS"),
        "update": environ.get("DPS_UPDATE") or None,
        "device": environ.get("DPS_DEVICE", ""),
        "threads": environ.get("DPS_THREADS") or "auto",
        "checkpoint_root": environ.get("DPS_CHECKPOINT_ROOT") or None,
        **_addresses(environ),
    }


def tf_config_of(environ: Mapping[str, str]) -> dict[str, str]:
    """TF_CONFIG and DPS_CLUSTER for a program that runs as the task that these variables name; {} if cluster or task is
    not known.

    Tasks of a cluster that is joined by the chief's address choose their ports themselves; they are listed with port 0.
    """
    if not environ.get("DPS_TASK"):
        return {}
    if environ.get("DPS_CLUSTER"):
        cluster = json.loads(environ["DPS_CLUSTER"])
    elif environ.get("DPS_WORKERS") and environ.get("DPS_PS") and environ.get("DPS_CHIEF"):
        counts = {"ps": int(environ["DPS_PS"]), "worker": int(environ["DPS_WORKERS"])}
        cluster = {job: ["127.0.0.1:0"] * count for job, count in counts.items()}
        cluster = {"chief": [environ["DPS_CHIEF"]], **cluster}
    else:
        return {}
    task = {"type": environ["DPS_JOB"], "index": int(environ["DPS_TASK"])}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task}), "DPS_CLUSTER": json.dumps(cluster)}


def _resolved(environ: Mapping[str, str]) -> dict[str, Any] | None:
    from dps.cluster.resolve import resolve

    cluster, found = resolve(environ)
    if found is None and not cluster:
        return None
    if found is None or not cluster:
        got, wanted = ("a cluster", "task of it") if cluster else (f"the task {found}", "cluster")
        raise ConfigError(f"the environment names {got} and no {wanted}; give TF_CONFIG both `cluster` and `task`")
    return {"cluster": cluster, "job": found.job, "task": found.index, **_addresses(environ)}


def _addresses(environ: Mapping[str, str]) -> dict[str, Any]:
    names = {"bind": "DPS_BIND", "advertise": "DPS_ADVERTISE", "ports": "DPS_PORTS"}
    found = {argument: environ.get(name, "") for argument, name in names.items()}
    return {**found, "trusted_network": trusts_network(environ), "keys": environ.get("DPS_KEYS") or None}


def trusts_network(environ: Mapping[str, str]) -> bool:
    """Whether DPS_TRUSTED_NETWORK lets tasks listen beyond this machine without keys. ConfigError for a value that is
    neither 1 nor 0."""
    value = environ.get("DPS_TRUSTED_NETWORK", "").strip()
    if value not in ("", "0", "1"):
        raise ConfigError(f"got DPS_TRUSTED_NETWORK={value!r}, wanted 1 (listen beyond this machine without keys) or 0")
    return value == "1"


def _number(environ: Mapping[str, str], name: str) -> int | None:
    return int(environ[name]) if environ.get(name) else None
