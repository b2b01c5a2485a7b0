"""Reads the cluster from a listing of the instances of Google Compute Engine groups."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from dps.cluster.resolvers.ranks import PORT, Jobs, deal
from dps.cluster.spec import ClusterSpec, Task
from dps.errors import ConfigError

_WANTED = (
    "the JSON of `gcloud compute instances list --format=json` or `gcloud compute instance-groups managed "
    "list-instances GROUP --format=json`"
)


def gce(
    listing: str | Sequence[Mapping[str, Any]] | Mapping[str, Any], jobs: Jobs | None = None, port_base: int = PORT,
    name: str | None = None, environ: Mapping[str, str] | None = None,
) -> tuple[ClusterSpec, Task | None]:  # fmt: skip
    """The cluster of the running instances of a listing, one task on each, and this instance's task in it.

    Instances that do not run are left out. The others take ranks by name, so that each task gets the same cluster
    whatever the order of its listing. Google is not asked. For several groups, concatenate their lists.

    Args:
        listing: Instances as `gcloud compute instances list` or `gcloud compute instance-groups managed list-instances`
            print them with `--format=json`, or as the API returns them: JSON text, or the parsed objects. Those with
            network interfaces have their internal IP as address, others their name.
        jobs: The number of tasks of each job, or the one job of all tasks. Jobs take consecutive instances, sorted by
            name. None: one ps and workers for the rest.
        port_base: The port of each task.
        name: This instance's name. None: HOSTNAME, up to the first dot.
        environ: The environment to read; any mapping. None: the process's environment.

    Returns:
        The cluster and the task; None if this instance is not listed or has no job.

    Raises:
        ConfigError: Something else than such a listing, an instance without a name, two of one name, none that runs.

    Example:
        ```pycon
        >>> listing = [{"instance": "https://.../instances/g-b", "instanceStatus": "RUNNING"},
        ...            {"instance": "https://.../instances/g-a", "instanceStatus": "RUNNING"}]
        >>> cluster, task = dps.cluster.resolve.gce(listing, name="g-b")
        >>> cluster.as_dict(), str(task)
        ({'ps': ['g-a:8888'], 'worker': ['g-b:8888']}, 'worker:0')
        ```
    """
    environ = os.environ if environ is None else environ
    own = environ.get("HOSTNAME", "").partition(".")[0] if name is None else name
    hosts: dict[str, str] = {}
    for instance in _instances(listing):
        known, host, status = _read(instance)
        if known in hosts:
            raise ConfigError(f"GCE: got the instance {known!r} twice, wanted each once; list each group once")
        if status == "RUNNING":
            hosts[known] = host
    if not hosts:
        raise ConfigError(
            "GCE: got no instance with the status RUNNING, wanted at least one; wait until the group runs"
        )
    names = sorted(hosts)
    rank = names.index(own) if own in hosts else None
    return deal("GCE", [hosts[name] for name in names], rank, jobs, port_base)


def _instances(listing: object) -> Sequence[Any]:
    found = listing
    if isinstance(listing, str):
        try:
            found = json.loads(listing)
        except ValueError as error:
            raise ConfigError(f"GCE: got the listing {listing[:80]!r}, wanted {_WANTED}; {error}") from error
    if isinstance(found, Mapping):
        found = found.get("items", found.get("managedInstances"))
    if isinstance(found, str) or not isinstance(found, Sequence):
        raise ConfigError(f"GCE: got the listing {listing!r:.80}, wanted {_WANTED}")
    return found


def _read(instance: object) -> tuple[str, str, str]:
    """Name, host and status of one instance."""
    try:
        assert isinstance(instance, Mapping)
        name = instance.get("name") or str(instance["instance"]).rpartition("/")[2]
        interfaces = instance.get("networkInterfaces")
        host = interfaces[0]["networkIP"] if interfaces else name
        status = instance.get("status") or instance.get("instanceStatus") or ""
    except (AssertionError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(
            f"GCE: got the instance {instance!r:.80}, wanted one with `name` or `instance`; {_WANTED}"
        ) from error
    return str(name), str(host), str(status)
