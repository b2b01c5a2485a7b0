"""The nodes that have registered with the chief: each ps and worker, its address and its process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dps.actors.ref import Sender
from dps.chief.checkpoint_folder import CheckpointRoot
from dps.chief.sessions import check_same
from dps.cluster.address import parse
from dps.cluster.spec import start_command
from dps.errors import ConfigError, NotAuthenticated, Unavailable
from dps.messages.runs import Register
from dps.process.descriptors import check as check_descriptors
from dps.process.descriptors import needed

REACH_S = 10.0
"""How long the chief tries to reach a node that has come before it refuses it."""
MOST_DIALLED = 4096
"""The most addresses that are remembered; the oldest goes."""


class Reachability:
    """The addresses that the chief dials, each with the time since when it tries, until it has reached it once."""

    def __init__(self, named: frozenset[str] = frozenset()) -> None:
        """`named`: the addresses that the cluster spec names; they are dialled as they are."""
        self.named = named
        self._tried_since: dict[str, float] = {}
        self._reached: dict[str, None] = {}

    def begin_trying(self, address: str, now: float) -> None:
        """Note that a node at this address has come."""
        if address not in self._reached:
            self._tried_since.setdefault(address, now)
            if len(self._tried_since) > MOST_DIALLED:
                del self._tried_since[next(iter(self._tried_since))]

    def check_reached(self, address: str, now: float, chief: str, name: str) -> None:
        """Raise Unavailable if the node of a task came and could not be reached within REACH_S. `chief`: its address,
        for the message."""
        if now - self._tried_since.get(address, now) >= REACH_S:
            raise Unavailable(f"{name} {self.problem(address, chief, name)}")

    def mark_reached(self, address: str) -> None:
        """Note that a connection to this address is up."""
        self._tried_since.pop(address, None)
        self._reached[address] = None
        if len(self._reached) > MOST_DIALLED:
            del self._reached[next(iter(self._reached))]

    def problem(self, address: str, chief: str, name: str) -> str:
        """Why the node of a task counts as lost if it was never reached, for messages; "" if it was."""
        if address in self._reached or address not in self._tried_since:
            return ""
        source = "which the cluster spec names" if address in self.named else "from where it came"
        port = parse(address).port
        return (
            f"cannot be reached by the chief at {chief}: nobody answers at {address}, {source}; open port {port} in "
            f"the firewall of {name}'s machine, or start {name} with another --bind, --advertise or --ports"
        )


GRACE_S = 1.0
"""How long a node may be disconnected before it counts as lost."""
EXPOSED_GRACE_S = 4.0
"""The same if other machines reach the chief. So nobody is lost if a cable is out for 5 s: TCP sends again only after a
pause, and each pause is twice as long as the one before."""
LAUNCHED_GRACE_S = 5.0
"""The same for a worker under a launcher. It is longer, so that the launcher can first report how the process ended."""
MOST, SOME = 4096, 64
"""The most processes that a chief is connected to; from SOME on it looks whether it has descriptors for one more."""


@dataclass
class KnownNode:
    """A registered node. `alive` is false from the time when it is lost or has `left` until it registers again."""

    address: str
    """Where the chief dials it."""
    told: str
    """Where others are told that it is."""
    process: int
    alive: bool = True
    left: bool = False
    """Whether it has announced its end."""
    ticket: str = ""
    """The digest of what it presented when it registered."""
    user: str = ""
    """Whose key it has (`Accepted.user`)."""
    connection: int = 0
    """The number of the chief's connection to it (`Node.up`), as it was then; 0: there was none yet."""
    progress: Sequence[Any] = ()
    """As `Register` has it."""


class Nodes:
    """The tasks of one job."""

    def __init__(self, job: str, expected: Sequence[int]) -> None:
        """`expected`: task indices that the cluster names; empty if they are not known."""
        self.job, self.expected = job, list(expected)
        self.known: dict[int, KnownNode] = {}

    def register(
        self, task: int, address: str, process: int, told: str = "", ticket: str = "", user: str = ""
    ) -> tuple[int, bool]:
        """Note a node, which others are told is at `told` ("": at `address`); returns its task (chosen if -1) and
        whether it replaces another process of this task."""
        if task < 0:
            task = self.number_of(address, process)
        if task < 0:
            taken = [t for t, n in self.known.items() if n.alive]
            task = next((t for t in self.expected if t not in taken), -1)
            if task < 0:
                task = next(t for t in range(len(taken) + 1) if t not in taken)
        before = self.known.get(task)
        replaced = before is not None and before.process != process
        self.known[task] = KnownNode(address, told or address, process, ticket=ticket, user=user)
        return task, replaced

    def record_progress(self, task: int, connection: int, progress: Sequence[Any]) -> None:
        """Note over which connection a registered node is reached, and how far it says that it has come."""
        self.known[task].connection, self.known[task].progress = connection, progress

    def number_of(self, address: str, process: int) -> int:
        """The task of a process, or else of the one that listened at its address before; -1 if there is none."""
        own = next((t for t, n in self.known.items() if n.process == process), -1)
        return own if own >= 0 else next((t for t, n in self.known.items() if n.address == address), -1)

    def take_over_node(self, task: int, address: str, process: int) -> bool:
        """Take over a node that another chief knew; returns whether another process has replaced it since."""
        return self.known.setdefault(task, KnownNode(address, address, process)).process != process

    def task_at(self, address: str) -> int | None:
        """The task of the living node at an address, or None."""
        return next((t for t, n in self.known.items() if n.address == address and n.alive), None)

    def mark_lost(self, address: str) -> int | None:
        """Note that the node at an address is lost; returns its task."""
        task = self.task_at(address)
        if task is not None:
            self.known[task].alive = False
        return task

    def mark_left(self, task: int, ticket: str | None) -> str | None:
        """Note that a node announces its end; returns its address, or None if this was known. `ticket` None: its
        launcher announces it."""
        known = self.known.get(task)
        if known is None or not known.alive or ticket not in (None, known.ticket):
            return None
        known.alive, known.left = False, True
        return known.address

    def away(self) -> list[int]:
        """Expected tasks that are absent and have not announced their end."""
        return [t for t in self.missing() if t not in self.known or not self.known[t].left]

    def missing(self) -> list[int]:
        """Expected tasks that are absent, whether they have been there or not."""
        expected = self.expected or list(self.known)
        return [t for t in expected if t not in self.known or not self.known[t].alive]

    def addresses(self) -> dict[int, str]:
        """Where the chief dials each task."""
        return {t: n.address for t, n in sorted(self.known.items())}

    def told(self) -> dict[int, str]:
        """Where others are told that each task is."""
        return {t: n.told for t, n in sorted(self.known.items())}


class Cluster:
    """The ps and the workers, and since when a ps is away."""

    def __init__(self, ps: Sequence[int], workers: Sequence[int], named: frozenset[str] = frozenset()) -> None:
        """`ps`, `workers`: expected task indices, as for `Nodes`. `named`: the addresses of the cluster spec."""
        self.reachability = Reachability(named)
        self.ps, self.workers = Nodes("ps", ps), Nodes("worker", workers)
        self.jobs = {"ps": self.ps, "worker": self.workers}
        self.holders: tuple[int, ...] = ()
        """The ps of the run's plan; () while there is no run, when the chief waits for all ps."""
        self._away_since: dict[int, float] = {}
        self.where = ""
        """The flags by which a started task finds this cluster; "" if people do not start the tasks."""
        self.exposed = False
        """Whether other machines reach the chief's node."""
        self.launched = False
        """Whether a launcher has started the tasks, and reports those that end."""
        self.grouped = False
        """Whether workers train in a group, without a ps."""
        self.checkpoint_root = CheckpointRoot()
        self.has_no_ps = False
        """Whether the run is to have no ps."""

    def use_group(self) -> None:
        """Note that workers train in a group, so that no ps is missed."""
        self.grouped = True

    def use_no_ps(self) -> None:
        """The run is to have no ps."""
        self.grouped = self.has_no_ps = True

    @property
    def is_alone(self) -> bool:
        """Whether the run is of workers alone, which no launcher has started: the run has nothing but them."""
        return self.has_no_ps and not self.launched

    def expected(self) -> dict[str, list[int]]:
        """The tasks that the run is to have, by job; not of a job of which any number may come."""
        found = {job: nodes.expected for job, nodes in self.jobs.items() if nodes.expected}
        return {"ps": [], **found} if self.has_no_ps else found

    def helper(self, before: Sequence[Any]) -> list[Any]:
        """The ps through which a group sums: the one of `before` while it lives, else the first; [] if none is there.

        [task, where others are told that it is, ticket, whose key it has, where the chief dials it]. Raises ConfigError
        for a run without ps."""
        if self.grouped and not self.ps.known:
            raise ConfigError(
                "the group sums through a ps, and this run has none; start it with --ps 1, or sum in another way"
            )
        living = [
            [task, node.told, node.ticket, node.user, node.address]
            for task, node in sorted(self.ps.known.items()) if node.alive
        ]  # fmt: skip
        return next((ps for ps in living if ps == list(before)), living[0] if living else [])

    def grace_s(self, job: str) -> float:
        """How long a node of a job may be disconnected before it counts as lost, in seconds."""
        if self.launched and job == "worker":
            return LAUNCHED_GRACE_S
        return EXPOSED_GRACE_S if self.exposed else GRACE_S

    def is_needed(self, task: int) -> bool:
        """Whether the run needs this ps."""
        return not self.holders or task in self.holders

    def missing(self) -> list[int]:
        """The ps that are needed and absent."""
        unknown = [task for task in self.holders if task not in self.ps.known and task not in self.ps.expected]
        return [task for task in self.ps.missing() if self.is_needed(task)] + unknown

    def is_complete(self) -> bool:
        """Whether all needed ps are present."""
        return bool(self.ps.known) and not self.missing()

    def fixed_tasks(self, job: str) -> list[int]:
        """The tasks of a job if their number is known: those that are expected, or the ps once there is a plan."""
        nodes = self.jobs[job]
        return nodes.expected or (list(nodes.known) if job == "ps" and self.holders else [])

    def mark_ps_away(self, task: int, now: float) -> None:
        """Note that a ps was lost; it may come back within a time limit."""
        self._away_since.setdefault(task, now)

    def is_away(self, task: int) -> bool:
        """Whether the chief waits for this lost ps."""
        return task in self._away_since

    def mark_ps_back(self, task: int) -> None:
        self._away_since.pop(task, None)

    def away_s(self, task: int, now: float) -> float:
        """How long a lost ps has been away; 0 if it is back."""
        return now - self._away_since.get(task, now)

    def knows_process(self, job: str, task: int, process: int, ticket: str = "") -> bool:
        """Whether this process has registered as the task; true for jobs that do not register."""
        if job not in self.jobs:
            return True
        known = self.jobs[job].known.get(task)
        return known is not None and (known.process, known.ticket) == (process, ticket)

    # -- who is who ---------------------------------------------------------------------------------------------

    def holder_of(self, job: str, task: int, address: str, ticket: str, up: Mapping[str, int]) -> str:
        """The task whose living process has this place, as a job's task or at an address, and not the process of this
        ticket; "" if there is none. A process counts as living while the connection that the chief had to it when it
        registered is up (`Node.up`). One that only an earlier chief knew has no ticket here, and holds no place."""
        for other, nodes in self.jobs.items():
            for number, known in nodes.known.items():
                place = (other, number) == (job, task) or known.address == address
                lives = known.alive and known.connection == up.get(known.address, -1)
                if place and lives and known.ticket not in ("", ticket):
                    return f"{other}:{number}"
        return ""

    def check_room(self, address: str, others: Iterable[str] = ()) -> None:
        """Raise ConfigError if the chief cannot dial one more address. `others`: those beside the tasks'."""
        dialled = {*self.living(), *others}
        if address in dialled or len(dialled) < SOME:
            return
        if len(dialled) >= MOST:
            raise ConfigError(f"the chief is connected to {len(dialled)} processes, at most {MOST} are possible")
        check_descriptors("the chief", needed("chief", 0, len(dialled) + 1))

    def check_place(self, message: Register, address: str, sender: Sender, others: Callable[[], list[str]]) -> None:
        """Raise NotAuthenticated for a process that has another task already, and as `check_room`."""
        job, task, ticket = message.job, message.task, sender.peer.ticket
        before = self.jobs[job].known.get(task) if job in self.jobs else None
        if before is not None and before.alive and (before.ticket, before.address) == (ticket, address):
            return
        for other, nodes in self.jobs.items():
            for number, known in nodes.known.items():
                own = other == job and (number == task or (task < 0 and known.process == message.process))
                if ticket and known.ticket == ticket and known.alive and not own:
                    raise NotAuthenticated(f"this process is {other}:{number} already; a process is one task")
        self.check_room(address, others())

    def tickets(self) -> list[Any]:
        """The tickets of the living nodes, for `Tickets.admit`."""
        return [
            (known.ticket, f"{job}:{task}", job, ())
            for job, nodes in self.jobs.items() for task, known in nodes.known.items() if known.alive
        ]  # fmt: skip

    def is_open(self, job: str, task: int) -> bool:
        """Whether nobody has registered as this task yet."""
        return job in self.jobs and task not in self.jobs[job].known

    def connected(self, address: str, connection: int) -> None:
        """Note the first connection to a node that has registered."""
        for nodes in self.jobs.values():
            for known in nodes.known.values():
                if known.address == address and known.connection == 0:
                    known.connection = connection

    def has_registered(self, job: str, task: int, sender: Sender) -> bool:
        """Whether this task has registered; true for jobs that do not. Raises NotAuthenticated if it did with another
        ticket than the sender's."""
        known = self.jobs[job].known.get(task) if job in self.jobs else None
        if known is not None:
            check_same(known.ticket, sender, f"task {job}:{task}")
        return known is not None or job not in self.jobs

    def progress(self) -> dict[str, Sequence[Any]]:
        """How far each worker says that it has come, as `Register` has it."""
        return {f"worker:{task}": node.progress for task, node in self.workers.known.items() if node.progress}

    def living(self) -> list[str]:
        """Addresses of all living nodes."""
        return [n.address for nodes in self.jobs.values() for n in nodes.known.values() if n.alive]

    def missing_text(self, now: float) -> str:
        """The missing ps, each with the seconds since its loss, and how to start it."""
        away = [(t, f" ({now - self._away_since[t]:.0f} s)" if t in self._away_since else "") for t in self.missing()]
        names = ", ".join(f"ps:{task}{since}" for task, since in away) or "a ps"
        if not self.where:
            return names
        command = start_command("ps", away[0][0] if away else None, self.where)
        return f"{names}; start {'each, as' if len(away) > 1 else 'it with'}: {command}"

    def keys(self, jobs: Iterable[str]) -> dict[str, str]:
        """Whose key the task at an address has, for those of these jobs that have joined by tokens."""
        known = [known for job in jobs for known in self.jobs[job].known.values()]
        return {each.told: each.user for each in known if " " in each.user}

    def dialled(self, task: str) -> str:
        """Where the chief dials the node of a task, such as "ps:0"; "" if it has not registered."""
        job, _, number = task.partition(":")
        if job not in self.jobs or not number.isdecimal():
            return ""
        return self.jobs[job].addresses().get(int(number), "")

    def to_wire(self) -> dict[str, Any]:
        """Addresses by job and task, as others are told them, in their wire form."""
        return {job: {str(t): a for t, a in nodes.told().items()} for job, nodes in self.jobs.items()}
