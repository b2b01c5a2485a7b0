"""Runs one task of the cluster in this process: a node with the actors of its job."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from dps import config
from dps import update as update_modes
from dps.actors.system import Node
from dps.cluster.address import check_address, is_token
from dps.cluster.device import Device
from dps.cluster.identity import Identity
from dps.cluster.spec import ClusterSpec
from dps.errors import CANCELLED, ConfigError, Unavailable
from dps.protocol import PS
from dps.run_protocol import AGENT
from dps.standing import Home, Standing
from dps.transport.current import keys_for, runtime
from dps.transport.endpoint import Runtime

if TYPE_CHECKING:
    from dps.actors.actor import Actor
    from dps.hosting import HostedChief
    from dps.ps.server import PsActor
    from dps.transport.address import Binding
    from dps.transport.keys import Credentials
    from dps.worker.agent import Agent

log = logging.getLogger("dps")

STOP_S = 5.0
INDEX_S = 60.0
CLIENTS = {"client": ("worker", "reader")}
"""The roles of a job that has no keys of its own: the first of which there is a key."""
PLAIN = "plain sockets without keys (--trusted-network): whoever reaches them can read and change the run"

_open: WeakSet[Server] = WeakSet()


@atexit.register
def _stop_open_servers() -> None:
    """Stop all servers when the program ends without stopping them, so that it leaves the run in order."""
    for server in list(_open):
        server.stop()


class Beside(NamedTuple):
    """What a local server has beside its worker, and ends with it."""

    servers: tuple[Server, ...] = ()
    folder: str = ""
    """The folder of their sockets."""


class Server:
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
    ) -> None:
        # More than 9 parameters: this is a public signature, and each is a setting that people give by its name.
        from dps.cluster.environment import trusts_network
        from dps.cluster.filters import DeviceFilters
        from dps.transport.address import Binding

        self.runtime: Runtime = runtime()
        self.cluster = ClusterSpec(cluster or {})
        self._filters = DeviceFilters.parse(device_filters, self.cluster)
        self._standing = Standing(self.runtime)
        self._agent: Agent | None = None
        self._ps_actor: PsActor | None = None
        self._hosted: HostedChief | None = None
        if self.cluster:
            own = Identity.in_cluster(self.cluster, job, task, bind)
        else:
            own = Identity.joining(job, task, chief, bind)
        self.job, self.task, self._chief = own.job, own.task, own.chief
        mode = update_modes.parse(update) if isinstance(update, str) else update
        wire = None if mode is None else update_modes.to_wire(mode)
        expected = own.expected("ps", ps), own.expected("worker", workers)
        trusted = trusts_network(os.environ) if trusted_network is None else trusted_network
        towards = "" if own.hosts_chief else own.chief
        binding = Binding(own.bind, advertise or own.told, ports, towards, trusted)
        self.binding = binding
        """How this task listens; for a further node of it."""
        self._make_node(own, binding, expected, self._keys(own, binding, keys))
        if own.hosts_chief:
            from dps.cluster.command import where_flags
            from dps.hosting import HostedChief

            where, is_task = where_flags(self.cluster, self._chief, self._network_flags()), self.job == "chief"
            told = expected, wire, where, owned, restarted, is_task
            self._hosted = HostedChief(self._node, self._standing, self.cluster, *told)
            if ps == 0:
                self._hosted.without_ps()
        if self.job == "ps":
            from dps.ps.server import PsActor  # imports numba, which only a ps needs

            self._ps_actor = PsActor(device, config.parse_threads(threads))
            self._node.host(PS, self._ps_actor)
        if self.job == "evaluator":  # the chief does not count it, and so does not tell it of the run's end
            from dps.queues.directory import Announcer

            self._node.host("announcer", Announcer(self.job, self._chief))
        if self.job == "chief":
            self._standing.join()
        else:
            self._host_agent(wire or {})
        self._node.start()
        if not self.runtime.simulated:  # real threads, which a real exit has to end
            _open.add(self)

    def _make_node(
        self, own: Identity, binding: Binding, expected: tuple[Sequence[int], Sequence[int]], keys: Credentials | None
    ) -> None:
        if not self.runtime.simulated:  # real descriptors
            from dps import descriptors

            jobs = {self.job} | ({"chief"} if own.hosts_chief else set())
            descriptors.check(self.name, sum(descriptors.needed(job, *map(len, expected)) for job in jobs))
        try:
            self._node = Node(self.runtime, binding, self.name, self.runtime.random.getrandbits(61), keys)
        except Unavailable as error:
            error.exit_code = 2  # the task's own address is configured wrongly
            raise
        self._node.failed = lambda error: self._standing.fail(self.name, error)
        if self._node.exposed and keys is None:
            log.warning("%s: %s has %s", self.name, self.address, PLAIN)
        if own.listens_as_chief:
            self._chief = self.address
        self._node.expect(self._chief, "chief")

    def _keys(self, own: Identity, binding: Binding, path: str | os.PathLike[str] | None) -> Credentials | None:
        """The keys of this node. A worker that hosts the chief has the chief's; its sessions have a worker's."""
        roles = ("chief",) if own.hosts_chief else CLIENTS.get(own.job, (own.job,))
        chief = str(binding.asked()) if own.hosts_chief else own.chief
        found = keys_for(chief, *roles, path=path, trusted=binding.trusted)
        if found is not None:
            from dps.transport.own_keys import is_own

            if is_own(found.folder.path):
                binding.check_trusted(binding.asked())  # nobody on another machine has the user's own keys
        return found

    def _network_flags(self) -> str:
        """The flags that tasks on other machines need to reach this one."""
        if self._node.keys is None:
            return "--trusted-network" if self._node.exposed else ""
        from dps.transport.own_keys import is_own

        path = self._node.keys.folder.path
        return "" if is_own(path) else f"--keys {path}"

    def _host_agent(self, update: dict[str, Any]) -> None:
        from dps.cluster.command import chief_command
        from dps.worker.agent import Agent, Told  # here: `import dps` stays quick

        told = Told(self._seen_epoch, self._has_joined, self._end, self._drain, self._led)
        who = self.job, self.task, self._chief, self._node.incarnation
        self._agent = Agent(*who, update, told, chief_command(self.cluster, self._chief, self._network_flags()))
        self._node.host(AGENT, self._agent)
        if self._node.keys is not None and self._hosted is None and self.job != "client":  # only the chief calls that
            from dps.worker.joined import JoinedKeys

            self._node.host("joined", JoinedKeys(self._chief, self._node.keys.accepted))

    # -- what actors tell, on the node's thread ---------------------------------------------------------------

    def _seen_epoch(self) -> int:
        return self._standing.session_epoch if self._ps_actor is None else self._ps_actor.epoch

    def _has_joined(self, task: int, cluster: dict[str, Any]) -> None:
        if self.task < 0:
            self.task = task
            self._node.name = self.name
        self._standing.join()

    def _led(self, chief: str, job: str, task: int) -> None:
        """This client was given the address of another task, which has told it the chief's."""
        self._chief = chief
        self._standing.named = task if job == "worker" else -1

    def _drain(self, reason: str) -> None:
        """The run should end: make `should_stop` true in this task's sessions."""
        if self.job == "worker" and not self.stop_requested:
            self._standing.stop_requested = True
            log.warning("%s: stopping after this step: %s", self.name, reason)

    def _end(self, code: int, reason: str) -> None:
        """This task's part is over, because the chief said so or is gone."""
        if self._standing.end(code, reason) and self._hosted is None and self.job in ("ps", "chief"):
            self._node.stop()

    # -- for the program --------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The task's name, such as "worker:0"; "worker:?" until the chief has given it an index."""
        return self.job if self.job == "chief" else f"{self.job}:{self.task if self.task >= 0 else '?'}"

    @property
    def address(self) -> str:
        """This task's own address."""
        return self._node.address

    @property
    def exit_code(self) -> int | None:
        """The task's exit code; None while its part in the run is not over."""
        return self._standing.exit_code

    @property
    def reason(self) -> str:
        """Why the task's part is over; "" if there is nothing to say."""
        return self._standing.reason

    @property
    def stop_requested(self) -> bool:
        """Whether the loops of this task must stop after their step: `should_stop` is true in its sessions."""
        return self._standing.stop_requested

    @property
    def target(self) -> str:
        """The chief's address, to which clients connect."""
        return self._chief

    def join(self, timeout: float | None = None) -> int | None:
        """Block until this task's part in the run is over.

        Args:
            timeout: Seconds; None: no limit.

        Returns:
            The task's exit code; None if it still runs after `timeout` seconds.
        """
        if not self._standing.wait_over(timeout, 0.2):
            return None
        self._node.join(STOP_S) if self.job in ("ps", "chief") else None
        return self.exit_code

    def stop(self) -> None:
        """End this task; a chief ends the run with it. Blocks up to 5 s.

        A worker that hosts the chief first waits for the other workers to finish, and logs every 10 s which.
        """
        for server in self._beside.servers:
            server.stop()
        if self._hosted is not None and self.exit_code is None:
            if self.job == "worker":
                hosted, self._hosted = self._hosted, None  # an interrupted wait is not repeated
                hosted.wait(self.name)
            else:
                self._hosted.stop_run()
                self._standing.wait_over(STOP_S)
        self._standing.end(0, "")
        self._node.stop()
        self._node.join(STOP_S)
        _open.discard(self)
        if self._beside.folder:
            from dps.transport.private import remove

            remove(self._beside.folder)

    def end_in_order(self, why: str) -> None:
        """Make this task end in order. Returns at once; `join` returns when it has ended.

        A chief stops the workers after their step and saves the last step. A ps asks the chief for permission to leave:
        with a checkpoint_dir its values are saved first, else the run ends with it.
        """
        if self._hosted is not None:
            self._hosted.drain(f"the chief {why}")
        elif self._agent is not None and self.job == "ps":
            agent = self._agent
            self._node.post(lambda: agent.leave(why))
        else:
            self._end(0, "")

    def ask_to_stop(self, whether: bool = True) -> None:
        """Have the loops of this task stop after their step, or (False) not stop any more."""
        self._standing.stop_requested = whether

    def cancel(self, reason: str) -> None:
        """End this worker's sessions from outside: their current or next call raises dps.Cancelled."""
        self._end(CANCELLED, reason)

    def end_now(self, code: int = 0) -> None:
        """Make this task, and the run if it is the chief, end with an exit code, without saving. Returns at once."""
        if self._hosted is None:
            self._end(code, "")
        else:
            self._hosted.stop_run(code)

    def host(self, name: str, actor: Actor) -> None:
        """Give a further actor a name on this task's node, which runs already."""
        actor.node = self._node  # it may be posted to at once

        def begin() -> None:
            self._node.host(name, actor)
            actor.started()

        self._node.post(begin)

    def wait_joined(self, deadline: float) -> None:
        """Block until the chief has answered this task; `deadline` is on the runtime's clock."""
        self._standing.wait_joined(deadline, self.name, self._chief)

    @property
    def is_first(self) -> bool:
        """Whether this task logs for all workers: it is not a worker, or has the lowest index."""
        if self.job != "worker":
            return True
        known = self.cluster.task_indices("worker") if "worker" in self.cluster.jobs else [0]
        return self.task == known[0]

    def check_sees(self, job: str, tasks: Sequence[int]) -> None:
        """Raise ConfigError if the device filters leave out one of these tasks."""
        self._filters.check(self.name, job, tasks)

    def home(self) -> Home:
        """The arguments with which a session connects."""
        who = self.runtime, self.name, self.job, self.task, self.address, self._node.incarnation
        calls = (self.job,) if self.job in ("worker", "evaluator", "dataset") else CLIENTS["client"]
        keys = None if self._node.keys is None else self._node.keys.as_role(*calls)
        told = self._chief, self._standing.how, self._standing.session_joined, self._standing.hooks
        return Home(*who, *told, keys, self._standing.named, self._node.ticket)

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
            from dps.worker.enrolling import enrol

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
        from dps.cluster.environment import arguments_found, server_arguments

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
        """Make a chief, one ps and one worker in this process, which only this user can reach.

        Args:
            update: The run's update mode, as in `Server`.

        Returns:
            The worker. Its `stop` ends all three.

        Example:
            ```pycon
            >>> with dps.Server.create_local_server() as server:
            ...     server.name
            'worker:0'
            ```
        """
        from dps.transport import private

        folder, bind = ("", "127.0.0.1:0") if runtime().simulated else private.private_chief()
        try:
            chief = Server(None, "chief", 0, bind=bind, ps=1, workers=1, update=update, owned=True)
            ps = Server(None, "ps", 0, chief=chief.address)
            worker = Server(None, "worker", 0, chief=chief.address)
        except BaseException:
            private.remove(folder)
            raise
        worker._beside = Beside((chief, ps), folder)
        return worker

    _beside = Beside()

    def __enter__(self) -> Server:
        return self

    def __repr__(self) -> str:
        chief = "" if self.job == "chief" else f"; the chief is at {self.target}"
        return f"<Server {self.name} at {self.address}: {self._standing}{chief}>"

    def __exit__(self, *_: object) -> None:
        self.stop()
