"""Runs one task of the cluster in this process: a node with the actors of its job."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from dps import config
from dps import update as update_modes
from dps.actors.system import Node
from dps.cluster.address import check_address
from dps.cluster.device import Device
from dps.cluster.environment import arguments_found, server_arguments, trusts_network
from dps.cluster.filters import DeviceFilters
from dps.cluster.identity import Identity
from dps.cluster.spec import ClusterSpec
from dps.errors import CANCELLED, ConfigError, DeadlineExceeded, DpsError, TaskLost, Unavailable
from dps.protocol import AGENT, CHIEF, PS
from dps.transport.address import Binding
from dps.transport.current import runtime
from dps.transport.endpoint import Runtime
from dps.worker.agent import Agent

if TYPE_CHECKING:
    from dps.actors.actor import Actor
    from dps.chief.server import ChiefActor
    from dps.ps.server import PsActor

log = logging.getLogger("dps")

STOP_S = 5.0
INDEX_S = 60.0
REPORT_S = 10.0
LOOK_S = 0.2
PLAIN = "plain sockets without keys (--trusted-network): whoever reaches them can read and change the run"

_open: WeakSet[Server] = WeakSet()


@atexit.register
def _stop_open_servers() -> None:
    """Stop all servers when the program ends without stopping them, so that it leaves the run in order."""
    for server in list(_open):
        server.stop()


class Home(NamedTuple):
    """The task that a session belongs to, as the session knows it."""

    runtime: Runtime
    name: str
    job: str
    task: int
    address: str
    process: int
    chief: str
    """The address of the chief's node."""
    over: Callable[[], tuple[int, str] | None]
    """Exit code and reason once this node was told to end, else None."""
    joined: Callable[[int], None]
    """Is told each run epoch that a session takes part in."""


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
        update: The run's update mode: an instance, or "async", "sync", "bounded:S". None: the sessions choose it.
        bind: Where this task listens: an address, a host name, an interface, "0.0.0.0" or "[::]", with a port or with 0
            (a free one). "": the cluster's address of this task, or the interface that reaches the chief.
        advertise: "HOST" or "HOST:PORT" that others are told. "": the address of `bind`; where that is a wildcard, the
            one of the interface that reaches the chief.
        ports: The ports to choose a free one from, such as "5000-5100". "": any.
        trusted_network: Whether this task may listen beyond this machine without keys. None: as DPS_TRUSTED_NETWORK
            says (1 or 0).
        device: A ps's device, such as "gpu:0", for variables that name none.
        threads: How many threads share a ps's updates of 8 MB and more. "auto": as many as there are free cores at that
            moment, at most 4.
        device_filters: The other tasks that this one may use, such as `["/job:ps"]`. It always sees itself and the
            chief.
        owned: Whether only `stop` ends this chief's run; otherwise the run ends with its last worker.
        restarted: Whether this chief replaces one that died.

    Raises:
        Unavailable: The address to bind is taken.
        NotAuthenticated: The address to bind is beyond this machine, and the network is not trusted.
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
        device: str = "",
        threads: int | str = "auto",
        device_filters: Sequence[str | Device] | None = None,
        owned: bool = False,
        restarted: bool = False,
    ) -> None:
        # More than 9 parameters: this is a public signature, and each is a setting that people give by its name.
        self.runtime: Runtime = runtime()
        self._device, self._threads = device, config.parse_threads(threads)
        self.cluster = ClusterSpec(cluster or {})
        self._filters = DeviceFilters.parse(device_filters, self.cluster)
        self.exit_code: int | None = None
        self.reason = ""
        self.stop_requested = False
        """Whether the loops of this task must stop after their step: `should_stop` is true in its sessions."""
        self._agent: Agent | None = None
        self._ends_with = 0
        self._over = threading.Event()
        self._joined = threading.Event()
        self._process = self.runtime.random.getrandbits(61)
        self._update = update_modes.parse(update) if isinstance(update, str) else update
        self._session_epoch = 0
        """The highest run epoch that a session of this process took part in."""
        self._ps_actor: PsActor | None = None
        self._chief_actor: ChiefActor | None = None
        if self.cluster:
            own = Identity.in_cluster(self.cluster, job, task, bind)
        else:
            own = Identity.joining(job, task, chief, bind)
        self.job, self.task, self._chief = own.job, own.task, own.chief
        trusted = trusts_network(os.environ) if trusted_network is None else trusted_network
        towards = "" if own.hosts_chief else own.chief
        binding = Binding(own.bind, advertise or own.told, ports, towards, trusted)
        self._start(own, binding, workers, ps, owned, restarted)
        if not self.runtime.simulated:  # real threads, which a real exit has to end
            _open.add(self)

    # -- construction -----------------------------------------------------------------------------------------

    def _start(
        self, own: Identity, binding: Binding, workers: int | None, ps: int | None, owned: bool, restarted: bool
    ) -> None:
        expected = own.expected("ps", ps), own.expected("worker", workers)
        if not self.runtime.simulated:  # real descriptors
            jobs = {self.job} | ({"chief"} if own.hosts_chief else set())
            counts = len(expected[0]), len(expected[1])
            from dps import descriptors

            descriptors.check(self.name, sum(descriptors.needed(job, *counts) for job in jobs))
        try:
            self._node = Node(self.runtime, binding, self.name, self._process)
        except Unavailable as error:
            error.exit_code = 2  # the task's own address is configured wrongly
            raise
        self._node.failed = self._node_failed
        self.address = self._node.address
        if self._node.exposed:
            log.warning("%s: %s has %s", self.name, self.address, PLAIN)
        if own.listens_as_chief:
            self._chief = self.address
        wire = None if self._update is None else update_modes.to_wire(self._update)
        if own.hosts_chief:
            from dps.chief.examiner import EXAMINER, Examiner
            from dps.chief.server import ChiefActor
            from dps.queues.actor import QueuesActor
            from dps.queues.directory import DIRECTORY, Directory
            from dps.queues.messages import QUEUES

            self._chief_actor = ChiefActor(
                *expected,
                wire,
                self._end_chief,
                owned,
                restarted,
                self._where(),
                config.launched.is_set(),
                frozenset(self.cluster.task_address(task.job, task.index) for task in self.cluster.tasks()),
            )
            self._node.host(CHIEF, self._chief_actor)
            self._node.host(QUEUES, QueuesActor())
            self._node.host(DIRECTORY, Directory())
            self._node.host(EXAMINER, Examiner())
        if self.job == "ps":
            from dps.ps.server import PsActor  # imports numba, which only a ps needs

            self._ps_actor = PsActor(self._device, self._threads)
            self._node.host(PS, self._ps_actor)
        if self.job == "evaluator":  # the chief does not count it, and so does not tell it of the run's end
            from dps.queues.directory import Announcer

            self._node.host("announcer", Announcer(self.job, self._chief))
        if self.job == "chief":
            self._joined.set()
        else:
            told = self._seen_epoch, self._has_joined, self._end, self._drain
            self._agent = Agent(
                self.job, self.task, self._chief, self._process, wire or {}, *told, self._start_the_chief()
            )
            self._node.host(AGENT, self._agent)
        self._node.start()

    def _where(self) -> str:
        """The flags by which other tasks find the cluster; "" if people do not start them."""
        if config.launched.is_set() or self._chief.startswith("inproc://"):
            return ""
        plain = " --trusted-network" if self._node.exposed else ""
        return ("--cluster CLUSTER" if self.cluster else f"--chief {self._chief}") + plain

    def _start_the_chief(self) -> str:
        """The command that starts the chief, or the worker that hosts it; "" as in `_where`."""
        from dps.cluster.command import start_command

        where, lead = self._where(), self.cluster.chief_task() if self.cluster else None
        return where and start_command(lead.job if lead else "chief", lead.index if lead else None, where)

    # -- what actors tell, on the node's thread ---------------------------------------------------------------

    def _seen_epoch(self) -> int:
        return self._session_epoch if self._ps_actor is None else self._ps_actor.epoch

    def _session_joined(self, epoch: int) -> None:
        """Note that a session of this process takes part in a run epoch. Called on the session's thread."""
        self._session_epoch = max(self._session_epoch, epoch)

    def _has_joined(self, task: int, cluster: dict[str, Any]) -> None:
        if self.task < 0:
            self.task = task
            self._node.name = self.name
        self._joined.set()

    def _drain(self, reason: str) -> None:
        """The run should end: make `should_stop` true in this task's sessions."""
        if self.job == "worker" and not self.stop_requested:
            self.stop_requested = True
            log.warning("%s: stopping after this step: %s", self.name, reason)

    def _end(self, code: int, reason: str) -> None:
        """This task's part is over, because the chief said so or is gone."""
        if self.exit_code is None:
            self.exit_code, self.reason = code, reason
            self._over.set()
            if self._chief_actor is None and self.job in ("ps", "chief"):
                self._node.stop()

    def _node_failed(self, error: Exception) -> None:
        """The node's thread has ended by an error; this task cannot continue."""
        if self.exit_code is None:
            code = error.exit_code if isinstance(error, DpsError) else 1
            self.exit_code, self.reason = code, f"{self.name}: {error}"
            self._over.set()

    def _end_chief(self, code: int, reason: str) -> None:
        """The run is over. The chief still answers for a moment, so that every task hears the reason."""
        if self.exit_code is None:
            self.exit_code, self.reason = code or self._ends_with, reason
            linger_s = 0.2 if code == 0 else 1.0
            self._node.after(linger_s, self._node.stop if self.job == "chief" else lambda: None)
            self._over.set()

    # -- for the program --------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The task's name, such as "worker:0"; "worker:?" until the chief has given it an index."""
        return self.job if self.job == "chief" else f"{self.job}:{self.task if self.task >= 0 else '?'}"

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
        deadline = None if timeout is None else self.runtime.now() + timeout
        while self.exit_code is None:
            if deadline is not None and self.runtime.now() >= deadline:
                return None
            self._pause(0.05 if self.runtime.simulated else 0.2)
        self._node.join(STOP_S) if self.job in ("ps", "chief") else None
        return self.exit_code

    def stop(self) -> None:
        """End this task; a chief ends the run with it. Blocks up to 5 s.

        A worker that hosts the chief first waits for the other workers to finish, and logs every 10 s which.
        """
        for server in self._beside:
            server.stop()
        if self._chief_actor is not None and self.exit_code is None:
            if self.job == "worker":
                chief, self._chief_actor = self._chief_actor, None  # an interrupted wait is not repeated
                self._node.post(lambda: chief.left(self.name, "its program is over"))
                self._wait_for_the_others(chief)
            else:
                self._node.post(self._chief_actor.stop_run)
                self._wait_over(STOP_S)
        if self.exit_code is None:
            self.exit_code = 0
        self._node.stop()
        self._node.join(STOP_S)
        _open.discard(self)

    def _wait_for_the_others(self, chief: ChiefActor) -> None:
        """Wait for the other workers, because the run needs its chief. After SIGTERM or Ctrl-C, tell them to stop."""
        report_at, drained = self.runtime.now() + REPORT_S, False
        while not self._wait_over(LOOK_S):
            if config.stop_requested.is_set() and not drained:
                drained = True
                self._node.post(lambda: chief.drain("the worker that hosts the chief was told to end"))
            if self.runtime.now() >= report_at:
                report_at += REPORT_S
                there = [live.name for live in chief.members.live.values()] + chief.members.waiting()
                log.warning("%s hosts the chief and waits for %s", self.name, ", ".join(there) or "the ps to end")

    def _wait_over(self, seconds: float) -> bool:
        """Wait until the run is over; returns whether it is."""
        deadline = self.runtime.now() + seconds
        while self.exit_code is None and self.runtime.now() < deadline:
            self._pause(0.02)
        return self.exit_code is not None

    def end_in_order(self, why: str) -> None:
        """Make this task end in order. Returns at once; `join` returns when it has ended.

        A chief stops the workers after their step and saves the last step. A ps asks the chief for permission to leave:
        with a checkpoint_dir its values are saved first, else the run ends with it.
        """
        if self._chief_actor is not None:
            chief = self._chief_actor
            self._node.post(lambda: chief.drain(f"the chief {why}"))
        elif self._agent is not None and self.job == "ps":
            agent = self._agent
            self._node.post(lambda: agent.leave(why))
        else:
            self._end(0, "")

    def cancel(self, reason: str) -> None:
        """End this worker's sessions from outside: their current or next call raises dps.Cancelled."""
        self._end(CANCELLED, reason)

    def end_now(self, code: int = 0) -> None:
        """Make this task, and the run if it is the chief, end with an exit code, without saving. Returns at once."""
        if self._chief_actor is None:
            self._end(code, "")
        else:
            self._ends_with = code
            self._node.post(self._chief_actor.stop_run)

    def host(self, name: str, actor: Actor) -> None:
        """Give a further actor a name on this task's node, which runs already."""

        def begin() -> None:
            self._node.host(name, actor)
            actor.started()

        self._node.post(begin)

    def _pause(self, seconds: float) -> None:
        if self.runtime.simulated:  # an event is for real threads
            self.runtime.sleep(seconds)
        else:
            self._over.wait(seconds)

    def wait_joined(self, deadline: float) -> None:
        """Block until the chief has answered this task; `deadline` is on the runtime's clock."""
        while not self._joined.is_set():
            if self.exit_code is not None:
                raise TaskLost(self.reason or "the run has ended")
            if self.runtime.now() >= deadline:
                raise DeadlineExceeded(
                    f"{self.name}: the chief at {self._chief} did not answer; is it started, and is the address right?"
                )
            if self.runtime.simulated:  # as above
                self.runtime.sleep(0.01)
            else:
                self._joined.wait(0.05)

    @property
    def is_first(self) -> bool:
        """Whether this task logs for all workers: it is not a worker, or has the lowest index."""
        if self.job != "worker":
            return True
        known = self.cluster.task_indices("worker") if "worker" in self.cluster.jobs else [0]
        return self.task == known[0]

    def check_sees(self, job: str, tasks: Sequence[int]) -> None:
        """Raise ConfigError if the device filters leave out one of these tasks."""
        hidden = [task for task in tasks if not self._filters.sees(job, task)]
        if hidden:
            names = ", ".join(f"{job}:{task}" for task in hidden)
            raise ConfigError(
                f"{self.name} needs {names} for the run's plan, but its device_filters name {self._filters} only; "
                f"add '/job:{job}'"
            )

    def home(self) -> Home:
        """The arguments with which a session connects."""
        told = self._is_over, self._session_joined
        return Home(self.runtime, self.name, self.job, self.task, self.address, self._process, self._chief, *told)

    def _is_over(self) -> tuple[int, str] | None:
        return None if self.exit_code is None else (self.exit_code, self.reason)

    # -- other ways to make one -------------------------------------------------------------------------------

    @staticmethod
    def client(target: str) -> Server:
        """A node for a session of any process. It only shows the chief that the session is alive.

        It listens on the interface that reaches the target, on a port of DPS_PORTS. Beyond this machine it needs
        DPS_TRUSTED_NETWORK=1.
        """
        check_address(target)
        bind = ""
        if target.startswith("inproc://"):
            bind = f"inproc://dps-client-{os.getpid()}-{runtime().random.getrandbits(48):x}"
        return Server(None, "client", None, chief=target, bind=bind, ports=os.environ.get("DPS_PORTS", ""))

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
        """Make a chief, one ps and one worker in this process, on free ports.

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
        chief = Server(None, "chief", 0, bind="127.0.0.1:0", ps=1, workers=1, update=update, owned=True)
        ps = Server(None, "ps", 0, chief=chief.address)
        worker = Server(None, "worker", 0, chief=chief.address)
        worker._beside = (chief, ps)
        return worker

    _beside: tuple[Server, ...] = ()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
