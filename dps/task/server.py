"""Makes one task of the cluster in this process: a node with the actors of its job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from dps.actors.standing import OUTSIDE, Standing
from dps.cluster.address import check_address, is_token, parse, parse_target
from dps.cluster.device import Device
from dps.cluster.identity import Identity
from dps.cluster.spec import ClusterSpec
from dps.errors import ConfigError
from dps.messages.runs import AGENT
from dps.messages.sessions import PS
from dps.process import config
from dps.task.node import make_node, network_flags, node_keys, root_and_default
from dps.task.served_task import LocalTasks, ServedTask
from dps.training import update_modes
from dps.transport.current import runtime

INDEX_S = 60.0
T = TypeVar("T")


class Server(ServedTask):
    """One task of the cluster in this process: a chief, a ps or a worker.

    It begins to serve when it is constructed, on its own thread. There are two forms. With `cluster` all addresses are
    known; the chief is the chief job's task, or else the first worker. With `chief` only the chief's address is known:
    the chief tells this task the rest, and assigns an index if `task` is left out.

    Args:
        cluster: The addresses of all tasks: a `dps.ClusterSpec`, or a dict of that form. None: the task joins by
            `chief`.
        job: "chief" (or "master"), "ps" or "worker"; "evaluator" for a task outside of the training cluster, which
            only reads and need not be in `cluster`.
        task: The index within the job, from 0.
        job_name: Another name for `job`, and
        task_index: one for `task`, as TensorFlow has them.
        chief: The chief's address, "HOST:PORT", for a task that joins.
        workers: How many workers the chief expects.
        ps: How many ps the chief expects.
        update: The update mode: an instance, or "async", "sync", "sync:sum", "bounded:S", "local:H". None: the
            sessions choose it.
        bind: Where this task listens: an address, a host name, an interface, "0.0.0.0" or "[::]", with a port or with 0
            (a free one). "": the cluster's address of this task, or the interface that reaches the chief.
        advertise: "HOST" or "HOST:PORT" that others are told. "": the address of `bind`; where that is a wildcard, the
            one of the interface that reaches the chief.
        ports: The ports to choose a free one from, such as "5000-5100". "": any.
        trusted_network: Whether this task may listen beyond this machine without keys. None: as DPS_TRUSTED_NETWORK
            says (1 or 0).
        keys: The folder of keys that `dps keys new` or `dps keys export` wrote: every connection is encrypted, and only
            who has a key of it gets one. None: as DPS_KEYS says; or, where the chief listens on 127.0.0.1, this user's
            own keys, which are made on first use; or no keys.
        device: A ps's device, such as "gpu:0", for variables that name none.
        threads: How many threads share a ps's updates of 8 MB and more. "auto": as many as there are free cores at that
            moment, at most 4.
        device_filters: The other tasks that this one may use, such as `["/job:ps"]`. It always sees itself and the
            chief.
        owned: Whether only `stop` ends this chief's run; otherwise the run ends with its last worker.
        restarted: Whether this chief replaces one that died.
        checkpoint_root: On a chief: the folder below which sessions name their `checkpoint_dir`. None: as
            DPS_CHECKPOINT_ROOT says; or, if others than this account may join the run (by keys, or on a trusted
            network), OUTPUT_DIR under `dps launch` and else the one that a session in the chief's process names; if
            nobody else may, any folder.

    Raises:
        Unavailable: The address to bind is taken.
        NotAuthenticated: The address to bind is beyond this machine, there are no keys, and the network is not trusted;
            or the folder of keys may be read by others, or has none of this job.
        ConfigError: Arguments that contradict each other (also a ValueError).

    Example:
        ```pycon
        >>> chief = dps.Server(None, "chief", 0, ps=1, workers=1)
        >>> with chief, dps.Server(None, "ps", 0, chief=chief.address):
        ...     with dps.Server(None, "worker", 0, chief=chief.address) as worker:
        ...         params, sgd = {"w": np.zeros(3)}, dps.optim.SGD(0.1)
        ...         with dps.Session(worker, params, optimizer=sgd) as session:
        ...             session.push({"w": np.ones(3)}).step
        1
        ```
    """

    def __init__(
        self,
        cluster: ClusterSpec | Mapping[str, Any] | None = None,
        job: str | None = None,
        task: int | None = None,
        *,
        job_name: str | None = None,
        task_index: int | None = None,
        chief: str | None = None,
        workers: int | None = None,
        ps: int | None = None,
        update: update_modes.Update | str | None = None,
        bind: str = "",
        advertise: str = "",
        ports: str = "",
        trusted_network: bool | None = None,
        keys: str | os.PathLike[str] | None = None,
        device: str = "",
        threads: int | str = "auto",
        device_filters: Sequence[str | Device] | None = None,
        owned: bool = False,
        restarted: bool = False,
        checkpoint_root: str | os.PathLike[str] | None = None,
    ) -> None:
        # More than 9 parameters: this is a public signature, and each is a setting that people give by its name.
        from dps.cluster.device import DeviceFilters
        from dps.cluster.identity import check_number, trusts_network
        from dps.transport.sockets.addresses import Binding, check_advertised

        check_advertised(advertise)
        job = _one("job", job, "job_name", job_name)
        task = _one("task", task, "task_index", task_index)
        for what, number in (("task=", task), ("workers=", workers), ("ps=", ps)):
            check_number(what, number)
        if trusted_network not in (None, True, False):  # a text would count as true
            raise ConfigError(f"got trusted_network={trusted_network!r}, wanted True, False or None")
        self.runtime = runtime()
        self.cluster = ClusterSpec(cluster or {})
        self._filters = DeviceFilters.parse(device_filters, self.cluster)
        self._standing = Standing(self.runtime)
        if self.cluster:
            own = Identity.in_cluster(self.cluster, job, task, bind)
            if chief and parse(chief) != parse(own.chief):
                raise ConfigError(f"got chief={chief!r} and a cluster, whose chief is at {own.chief}; give one of them")
        else:
            own = Identity.joining(job, task, chief, bind)
        if not own.hosts_chief:
            parse_target(own.chief)
        self.job, self.task = own.job, own.task
        mode = update_modes.parse(update) if isinstance(update, str) else update
        wire = None if mode is None else update_modes.to_wire(mode)
        expected = own.expected("ps", ps), own.expected("worker", workers)
        trusted = trusts_network(os.environ) if trusted_network is None else trusted_network
        towards = "" if own.hosts_chief else own.chief
        self.binding = Binding(own.bind, advertise or own.told, ports, towards, trusted)
        """How this task listens; for a further node of it."""
        keyed = node_keys(own, self.binding, keys)
        self._node = make_node(self.runtime, own, self.name, self.binding, expected, keyed)
        self._chief = self.address if own.listens_as_chief else own.chief
        self._node.failed = lambda error: self._standing.end_failed(self.name, error)
        if self.job not in OUTSIDE:  # they may have been given the address of another task
            self._node.expect(self._chief, "chief")
        if own.hosts_chief:
            self._host_chief(expected, wire, owned, restarted)
            assert self._hosted is not None
            self._hosted.keep_checkpoints(*root_and_default(checkpoint_root))
        if ps == 0 and self._hosted is not None:
            self._hosted.without_ps()
        if self.job == "ps":
            from dps.collectives.messages import SUMS
            from dps.collectives.sums import Sums
            from dps.ps.server import PsActor  # imports numba, which only a ps needs

            self._ps_actor = PsActor(device, config.parse_threads(threads))
            self._node.host(PS, self._ps_actor)
            self._node.host(SUMS, Sums())
        if self.job == "chief":
            self._standing.mark_joined()
        else:
            self._host_agent(wire or {})
        self._serve()

    def _host_chief(
        self, expected: tuple[Sequence[int], Sequence[int]], wire: dict[str, Any] | None, owned: bool, restarted: bool
    ) -> None:
        from dps.cluster.spec import where_flags
        from dps.task.hosting import HostedChief

        where, is_task = where_flags(self.cluster, self._chief, network_flags(self._node)), self.job == "chief"
        told = expected, wire, where, owned, restarted, is_task
        self._hosted = HostedChief(self._node, self._standing, self.cluster, *told)
        if is_task:
            self._hosted.operators.trace_own = self._carry_out_trace

    def _host_agent(self, update: dict[str, Any]) -> None:
        from dps.cluster.spec import chief_command
        from dps.worker.agent import Agent, Told  # here: `import dps` stays quick

        told = Told(
            self._seen_epoch, self._has_joined, self._end_task, self._request_stop, self._follow_chief, self._progress,
            self._carry_out_trace,
            self._standing.sent,
        )  # fmt: skip
        who = self.job, self.task, self._chief, self._node.incarnation
        self._agent = Agent(*who, update, told, chief_command(self.cluster, self._chief, network_flags(self._node)))
        self._node.host(AGENT, self._agent)
        if self._hosted is None and self.job not in OUTSIDE:
            self._learn_keys(self._node.host)

    # -- other ways to make one -------------------------------------------------------------------------------

    @staticmethod
    def client(target: str, keys: str | os.PathLike[str] | None = None) -> Server:
        """A node for a session of any process. It only shows the chief that the session is alive.

        `target` is an address, or a join token of `dps token`, which is used once for each process.

        It listens on the interface that reaches the target, on a port of DPS_PORTS. Beyond this machine it needs keys
        (as of `Server`), a worker's or else a reader's, or DPS_TRUSTED_NETWORK=1.
        """
        if is_token(target):
            if keys is not None:
                raise ConfigError("got keys and a join token, which brings keys of its own; give one of them")
            from dps.worker.joining import enrol

            target, keys = enrol(target)
        check_address(target)
        bind = ""
        if target.startswith("inproc://"):
            bind = f"inproc://dps-client-{os.getpid()}-{runtime().random.getrandbits(48):x}"
        return Server(None, "client", None, chief=target, bind=bind, ports=os.environ.get("DPS_PORTS", ""), keys=keys)

    @staticmethod
    def from_env(
        environ: Mapping[str, str] | None = None,
        owned: bool = False,
        restarted: bool = False,
        device_filters: Sequence[str | Device] | None = None,
        local: bool = False,
    ) -> Server:
        """The task that `dps launch`, `dps.role --program`, TF_CONFIG or Slurm made of this process.

        If a worker's index is not given, blocks until the chief has assigned one (up to 60 s).

        Args:
            environ: The environment to read. None: the process's environment.
            owned: As in `Server`.
            restarted: As in `Server`.
            device_filters: As in `Server`.
            local: Whether to use `create_local_server` if the environment names no cluster. The same program then runs
                alone and as a task.

        Returns:
            The task's server.

        Raises:
            ConfigError: The environment names no task (and `local` is False), or is incomplete.

        Example:
            ```python
            with dps.Server.from_env(local=True) as server:
                assert server.job == "worker"
            ```
        """
        from dps.cluster.identity import arguments_found, server_arguments

        environ = os.environ if environ is None else environ
        if local and arguments_found(environ) is None:
            return Server.create_local_server()
        found = server_arguments(environ)
        server = Server(**found, device_filters=device_filters, owned=owned, restarted=restarted)
        if server.job == "worker" and found["task"] is None and not found["cluster"]:
            server.wait_joined(server.runtime.now() + INDEX_S)
        return server

    @staticmethod
    def create_local_server(update: update_modes.Update | str | None = None) -> Server:
        """Make a chief, one ps and one worker in this process, which only this user can reach. Blocks for a moment.

        Args:
            update: The run's update mode, as in `Server`.

        Returns:
            The worker. Its `stop` ends all three.

        Raises:
            ConfigError: An update mode that is not known, or no folder for the sockets can be made.

        Example:
            ```pycon
            >>> with dps.Server.create_local_server() as server:
            ...     server.name
            'worker:0'
            ```
        """
        from dps.transport import private_folders as private

        folder, bind = runtime().private_chief()
        with ExitStack() as undo:
            undo.callback(private.remove, folder)
            chief = Server(None, "chief", 0, bind=bind, ps=1, workers=1, update=update, owned=True)
            undo.callback(chief.stop)
            assert chief._hosted is not None
            chief._hosted.has_ps_beside()
            ps = Server(None, "ps", 0, chief=chief.address)
            worker = Server(None, "worker", 0, chief=chief.address)
            worker._beside = LocalTasks((chief, ps), folder)
            undo.pop_all()
        return worker


def _one(name: str, value: T | None, other: str, same: T | None) -> T | None:
    """The value of an argument that has two names. Raises ConfigError for two different values."""
    if value is not None and same is not None and value != same:
        raise ConfigError(f"got {name}={value!r} and {other}={same!r}, which mean the same; give one of them")
    return same if value is None else value
