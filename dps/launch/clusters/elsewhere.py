"""Clusters on other machines, with the interface of `dps.LocalCluster`: over SSH, on Slurm, on Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from dps.launch.clusters.local import LocalCluster
from dps.launch.clusters.processes import ProcessTasks
from dps.launch.clusters.threads import ThreadTasks
from dps.launch.engines import make_engine
from dps.launch.supervision.plan import small_plan
from dps.training import update_modes as update
from dps.transport.private_folders import private_folder, remove

Serve = str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | None


class _RemoteCluster(LocalCluster):
    """A cluster whose tasks an engine starts on other machines."""

    _on: ClassVar[str]
    """The name of the engine."""
    _hosts: Sequence[str] | None = None
    """Those that were named, for an engine that wants some."""

    def __init__(
        self, ps: int = 1, workers: int = 2, update: update.Update | str | None = None,
        keys: str | os.PathLike[str] | None = None, trusted_network: bool = False, serve: Serve = None,
        checkpoint_root: str | os.PathLike[str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(ps, workers, update=update, serve=serve)
        self._checkpoint_root = os.path.abspath(checkpoint_root or "")
        self._engine = make_engine({"on": self._on} | ({} if self._hosts is None else {"hosts": self._hosts}))
        self._engine.check(small_plan(ps, workers))
        self._env = {"DPS_TRUSTED_NETWORK": "1"} if trusted_network else {}
        given = os.environ.get("DPS_KEYS") if keys is None else os.path.abspath(os.fspath(keys))
        if given:
            self._env["DPS_KEYS"] = given
        self._own, self._before = "", os.environ.get("DPS_KEYS")
        """A private folder with keys of this cluster's own, and what this process had for others."""

    def _start_tasks(self) -> ProcessTasks | ThreadTasks:
        self._forget_keys()  # of tasks that were ended for fresh ones
        env = dict(self._env)
        if not env:
            from dps.transport.keys import files as key_files

            self._own = private_folder()
            env["DPS_KEYS"] = os.path.join(self._own, "keys")
            key_files.new(env["DPS_KEYS"])
        env["DPS_CHECKPOINT_ROOT"] = self._checkpoint_root
        if "DPS_KEYS" in env:
            os.environ["DPS_KEYS"] = env["DPS_KEYS"]  # for the sessions of this process
        try:
            return ProcessTasks(self.ps, self.workers, self._update, False, self._engine, env)
        except BaseException:
            self._forget_keys()
            raise

    def stop(self) -> None:
        """End all tasks, and give the machines back. Blocks; a second call does nothing."""
        super().stop()
        self._forget_keys()

    def _forget_keys(self) -> None:
        if self._own:
            remove(self._own)
            self._own = ""
        if self._before is None:
            os.environ.pop("DPS_KEYS", None)
        else:
            os.environ["DPS_KEYS"] = self._before


class SSHCluster(_RemoteCluster):
    """Chief, ps and workers on hosts that are reached by ssh. It is used as `dps.LocalCluster` is.

    The hosts need the same Python and dps, and the program, at the same paths as here; ssh must reach them without
    asking anything. Functions travel by their paths, so `run` takes functions of modules and scripts.

    Args:
        hosts: Hosts as ssh names them, such as `["box1", "me@box2 slots=4"]`; the chief is on the first.
        ps: How many ps.
        workers: How many workers.
        update: As of `dps.LocalCluster`.
        keys: A folder of keys. None: as DPS_KEYS says, or keys that are made for this cluster.
        trusted_network: No keys, and plain sockets: every machine of the network is trusted.
        serve: As of `dps.LocalCluster`.
        checkpoint_root: The folder below which sessions name their `checkpoint_dir`. None: this process's working
            folder.

    Raises:
        ConfigError: No hosts, too few slots, or no ssh.
    """

    _on = "ssh"

    def __init__(
        self, hosts: Sequence[str], ps: int = 1, workers: int = 2, update: update.Update | str | None = None,
        keys: str | os.PathLike[str] | None = None, trusted_network: bool = False, serve: Serve = None,
        checkpoint_root: str | os.PathLike[str] | None = None,
    ) -> None:  # fmt: skip
        self._hosts = hosts
        super().__init__(ps, workers, update, keys, trusted_network, serve, checkpoint_root)


class SlurmCluster(_RemoteCluster):
    """Chief, ps and workers in a job of Slurm, or in the allocation around this process.

    It is used as `dps.LocalCluster` is.

    Args:
        ps: How many ps.
        workers: How many workers.
        update: As of `dps.LocalCluster`.
        keys: As of `SSHCluster`.
        trusted_network: As of `SSHCluster`.
        serve: As of `dps.LocalCluster`.
        checkpoint_root: As of `SSHCluster`.

    Raises:
        ConfigError: This machine has no Slurm, or the allocation is too small.
    """

    _on = "slurm"


class RayCluster(_RemoteCluster):
    """Chief, ps and workers in actors of Ray. It is used as `dps.LocalCluster` is.

    Args:
        ps: How many ps.
        workers: How many workers.
        update: As of `dps.LocalCluster`.
        keys: As of `SSHCluster`.
        trusted_network: As of `SSHCluster`.
        serve: As of `dps.LocalCluster`.
        checkpoint_root: As of `SSHCluster`.

    Raises:
        MissingExtra: Ray is not installed.
    """

    _on = "ray"
