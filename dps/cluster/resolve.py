"""Finds the cluster's definition: TF_CONFIG, DPS_CLUSTER, the environment of an engine, or a cluster file.

Each call reads everything again. `environ` is any mapping; None is the process's environment.
"""

from __future__ import annotations

import importlib
import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dps.cluster.resolvers.ranks import read_text
from dps.cluster.spec import ClusterSpec, Task, job_name
from dps.errors import ConfigError, MissingExtra
from dps.process.lazy_imports import at_first_use

if TYPE_CHECKING:
    from dps.cluster.resolvers.gce import gce
    from dps.cluster.resolvers.kubernetes import kubernetes
    from dps.cluster.resolvers.mpi import mpi
    from dps.cluster.resolvers.ranks import Jobs
    from dps.cluster.resolvers.sge import sge
    from dps.cluster.resolvers.skypilot import skypilot
    from dps.cluster.resolvers.slurm import expand_hostlist, slurm
    from dps.cluster.resolvers.torchrun import torchrun
    from dps.cluster.spec import union

__all__ = [
    "expand_hostlist",
    "gce",
    "kubernetes",
    "load_cluster",
    "master",
    "mpi",
    "resolve",
    "sge",
    "skypilot",
    "slurm",
    "tf_config",
    "torchrun",
    "union",
]

RESOLVERS = ("kubernetes", "mpi", "sge", "skypilot", "slurm", "torchrun")
"""The resolvers that need nothing but the environment: `--resolver`."""


def resolve(
    environ: Mapping[str, str] | None = None,
    *,
    job: str | None = None,
    task: int | None = None,
    slurm_jobs: Mapping[str, int] | None = None,
    port_base: int = 8888,
) -> tuple[ClusterSpec, Task | None]:
    """The cluster, and this process's task in it: from TF_CONFIG, else DPS_CLUSTER, else Slurm.

    A Slurm step of one task is not a cluster unless `slurm_jobs` is given.

    Args:
        environ: The environment to read; any mapping. None: the process's environment.
        job: The task's job, instead of the environment's.
        task: The task's index, instead of the environment's.
        slurm_jobs: As `jobs` of `slurm`.
        port_base: As in `slurm`.

    Returns:
        The cluster and the task. An empty cluster and None if the environment names none.

    Raises:
        ConfigError: The environment is invalid.

    Example:
        ```pycon
        >>> environ = {"DPS_CLUSTER": '{"ps": ["a:2222"], "worker": ["b:2230"]}'}
        >>> cluster, task = dps.resolve(environ, job="ps", task=0)
        >>> cluster.jobs, str(task)
        (['ps', 'worker'], 'ps:0')
        ```
    """
    environ = os.environ if environ is None else environ
    for variable in ("TF_CONFIG", "DPS_CLUSTER"):
        if environ.get(variable, "").strip():
            return _from_json(environ, variable, job, task)
    alone = environ.get("SLURM_STEP_NUM_TASKS") == "1" and slurm_jobs is None
    if not alone and ("SLURM_STEP_NUM_TASKS" in environ or "SLURM_STEP_NODELIST" in environ):
        cluster, own = run_resolver("slurm", environ, slurm_jobs, port_base)
        return cluster, _task(cluster, _override(own, job, task), "Slurm")
    return ClusterSpec({}), _task(ClusterSpec({}), _override(None, job, task), "task")


def run_resolver(
    name: str, environ: Mapping[str, str] | None = None, jobs: Jobs | None = None, port_base: int = 8888
) -> tuple[ClusterSpec, Task | None]:
    """The cluster and the task by the resolver with this name, one of `RESOLVERS`. Raises ConfigError as it does."""
    if name not in RESOLVERS:
        raise ConfigError(f"resolver: got {name!r}, wanted one of {', '.join(RESOLVERS)}")
    found: tuple[ClusterSpec, Task | None] = getattr(importlib.import_module(f"dps.cluster.resolvers.{name}"), name)(
        environ, jobs, port_base
    )
    return found


def tf_config(
    environ: Mapping[str, str] | None = None, *, job: str | None = None, task: int | None = None
) -> tuple[ClusterSpec, Task | None]:
    """The cluster and the task of TF_CONFIG: JSON with the keys `cluster` and `task` {type, index}.

    `master` is read as `chief`; an evaluator may be missing from the cluster.

    Args:
        environ: The environment to read; any mapping. None: the process's environment.
        job: The task's job, instead of TF_CONFIG's.
        task: The task's index, instead of TF_CONFIG's.

    Returns:
        The cluster and the task. An empty cluster and None if TF_CONFIG is unset or empty.

    Raises:
        ConfigError: Invalid JSON, an invalid cluster, or a task that the cluster does not have.
    """
    return _from_json(os.environ if environ is None else environ, "TF_CONFIG", job, task)


def master(cluster: ClusterSpec, task: Task | None) -> str:
    """The address to which a client of this task connects.

    Args:
        cluster: The cluster.
        task: The task.

    Returns:
        The task's own address; "" for a cluster of at most one task.

    Raises:
        ValueError: The cluster has several tasks and does not have this one, or none is given.
    """
    if len(cluster.tasks()) <= 1:
        return ""
    if task is None:
        tasks = ", ".join(map(str, cluster.tasks()))
        raise ValueError(f"master: got no task, wanted one of the cluster's: {tasks}; does TF_CONFIG name one?")
    return cluster.task_address(task.job, task.index)


def load_cluster(text_or_path: str | os.PathLike[str]) -> ClusterSpec:
    """The cluster in JSON text, or in a file. Reads the file, so this may block.

    Both `{"ps": [...]}` and `{"cluster": {"ps": [...]}}` are accepted.

    Args:
        text_or_path: JSON text, or the path of a .json, .toml, .yaml or .yml file.

    Returns:
        The cluster.

    Raises:
        ConfigError: No such file, another ending, text that does not parse, YAML without PyYAML, or a cluster of wrong
            shape.
    """
    given = os.fspath(text_or_path)
    if isinstance(text_or_path, str) and given.lstrip().startswith("{"):
        return _cluster(_json("cluster", given), "cluster")
    source = f"cluster file {given!r}"
    parse = {".json": _json, ".toml": _toml, ".yaml": _yaml, ".yml": _yaml}.get(Path(given).suffix.lower())
    if parse is None:
        raise ConfigError(f"cluster: got {given!r}, wanted JSON text or a file that ends in .json, .toml or .yaml")
    try:
        text = read_text(given)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: got {error}, wanted a file that can be read") from error
    return _cluster(parse(source, text), source)


def _from_json(
    environ: Mapping[str, str], variable: str, job: str | None, index: int | None
) -> tuple[ClusterSpec, Task | None]:
    text = environ.get(variable, "")
    found = _json(variable, text) if text.strip() else {}
    if not isinstance(found, Mapping):
        raise ConfigError(f'{variable}: got {found!r}, wanted an object {{"cluster": {{"ps": ["HOST:PORT"]}}}}')
    inner = found if variable == "DPS_CLUSTER" else found.get("cluster")
    cluster = _cluster({} if inner is None else inner, variable)
    entry = {} if found.get("task") is None else found["task"]
    if not isinstance(entry, Mapping):
        raise ConfigError(f'{variable}: got task {entry!r}, wanted {{"type": "worker", "index": 0}}')
    pair = (entry.get("type") if job is None else job, entry.get("index") if index is None else index)
    return cluster, _task(cluster, pair, variable)


def _override(own: Task | None, job: str | None, task: int | None) -> tuple[object, object]:
    found: tuple[object, object] = (None, None) if own is None else (own.job, own.index)
    return (found[0] if job is None else job, found[1] if task is None else task)


def _task(cluster: ClusterSpec, pair: tuple[object, object], source: str) -> Task | None:
    """The task that (type, index) names; without an index, the job's only task."""
    kind, index = pair
    if kind is None and index is None:
        return None
    if isinstance(kind, int | float) and not isinstance(kind, bool):
        kind = str(kind)  # as TensorFlow reads it
    if not isinstance(kind, str) or not kind:
        raise ConfigError(f"{source}: got task type {kind!r}, wanted a job name such as 'worker'")
    kind = job_name(kind)
    known = cluster.task_indices(kind) if kind in cluster.jobs else []
    if index is None and len(known) == 1:
        index = known[0]
    if isinstance(index, str) and index.isascii() and index.isdigit():
        index = int(index)
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise ConfigError(f"{source}: got task index {index!r} for {kind}, wanted a whole number from 0")
    if cluster and index not in known and kind != "evaluator":
        tasks = ", ".join(map(str, cluster.tasks()))
        raise ConfigError(f"{source}: got the task {kind}:{index}, wanted one of the cluster's: {tasks}")
    return Task(kind, index)


def _cluster(found: object, source: str) -> ClusterSpec:
    try:
        inner = found.get("cluster") if isinstance(found, Mapping) else None
        if isinstance(inner, Mapping) and all(isinstance(tasks, list | Mapping) for tasks in inner.values()):
            found = inner  # otherwise "cluster" is the name of a job
        return ClusterSpec(found)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{source}: {error}") from error


def _json(source: str, text: str) -> object:
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f'{source}: got {text[:80]!r}, wanted JSON such as {{"ps": ["HOST:PORT"]}}; {error}'
        ) from error
    return found


def _toml(source: str, text: str) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f'{source}: got no TOML, wanted lines such as ps = ["HOST:PORT"]; {error}') from error


def _yaml(source: str, text: str) -> object:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError as error:
        raise MissingExtra(
            f"{source}: got YAML, wanted the package PyYAML to read it; pip install 'dps[yaml]', or use .json or .toml"
        ) from error
    try:
        found: object = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: got no YAML, wanted lines such as ps: [HOST:PORT]; {error}") from error
    return found


if not TYPE_CHECKING:
    __getattr__ = at_first_use(
        "dps.cluster",
        {
            "gce": "resolvers.gce", "kubernetes": "resolvers.kubernetes", "mpi": "resolvers.mpi",
            "sge": "resolvers.sge", "skypilot": "resolvers.skypilot", "slurm": "resolvers.slurm",
            "expand_hostlist": "resolvers.slurm", "torchrun": "resolvers.torchrun", "union": "spec",
        },
        into=__name__,
    )  # fmt: skip
