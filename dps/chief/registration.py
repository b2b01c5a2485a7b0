"""Decides whether a process that registers gets its place in the cluster, has to wait for it, or is refused."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from dps.actors.answers import Waiting
from dps.actors.node import Node
from dps.actors.ref import Sender
from dps.chief.cluster import Cluster
from dps.chief.members import RunMembers
from dps.errors import ConfigError, PermissionDenied
from dps.messages.runs import Register, StopTask
from dps.process.telemetry import log
from dps.transport.message import roles_of

MORE_S = 2.0
"""How much longer than `Runtime.silence_s` a connection must stay up until its process certainly lives: heartbeats have
intervals, and a process that waits asks every 2 s."""
LONGEST_S = 60.0
"""How long a process waits at most, also if the connections to the others break and come back all the time."""
MOST = 4096
"""The most waiting processes that are remembered; the oldest goes."""
LISTED = 8
"""The most tasks that a message names."""


class _Wait(NamedTuple):
    """Why a process has to wait."""

    text: str
    """What it is told."""
    news: str
    """What the chief logs of it, once."""
    doubtful: bool = True
    """Whether one of those that hold the places may be gone."""
    refusal: str = ""
    """What it is told when all of them certainly live; "": it does not wait any longer then."""


class Registration:
    """Who waits for a place, and since when.

    A process without an index gets a free one. Where the run's number of ps is known and all have come, it waits until
    one of them is lost; it is refused when all of them certainly live. So is a second process of one name. A worker
    waits only while the connection to another one is broken, and then becomes one more.
    """

    def __init__(self, node: Node, cluster: Cluster, members: RunMembers) -> None:
        self._node, self._cluster, self._members = node, cluster, members
        self._began_at = node.now()
        self._waiting: dict[str, tuple[float, Sender]] = {}
        """Since when processes wait, and their last requests, by their tickets."""

    def must_wait(self, message: Register, address: str, sender: Sender) -> bool:
        """Whether the sender has to wait, and has been told so. Raises ConfigError if its place is certainly taken."""
        ticket, now = sender.peer.ticket, self._node.now()
        why = self._reason_to_wait(message, address, ticket)
        if why is None:
            self._waiting.pop(ticket, None)
            return False
        if ticket not in self._waiting:
            log.warning("%s: %s", self._node.name, why.news)
            if len(self._waiting) >= MOST:
                del self._waiting[next(iter(self._waiting))]
        since, _ = self._waiting.get(ticket, (now, sender))
        self._waiting[ticket] = since, sender
        certain_s = LONGEST_S if why.doubtful else self._node.runtime.silence_s + MORE_S
        if now - since <= certain_s:
            self._node.answer(sender, Waiting(why.text))
            return True
        if why.refusal:
            self._refuse(address, why.refusal)
        return False

    def tell_waiting(self, message: StopTask) -> None:
        """The run is over: tell the processes that wait, which nobody watches."""
        for _, sender in self._waiting.values():
            self._node.answer(sender, message)
        self._waiting.clear()

    def check_index(self, message: Register, address: str) -> None:
        """Raise ConfigError for a ps with an index that is not one of those which the chief was told to expect."""
        task, expected = message.task, self._cluster.ps.expected
        if message.job == "ps" and task >= 0 and expected and task not in expected:
            self._refuse(
                address,
                f"this cluster has {len(expected)} ps, and ps:{task} is not one of them; give another --task, or none, "
                f"or start the chief with --ps {task + 1}",
            )

    def holder(self, job: str, task: int, address: str, ticket: str) -> str:
        """The task of the living process that has this place and is not that of the ticket; "" if nobody has it."""
        return self._cluster.holder_of(job, task, address, ticket, self._node.up)

    def _reason_to_wait(self, message: Register, address: str, ticket: str) -> _Wait | None:
        """Why a process has to wait now; None if it may have its place."""
        job, task, nodes = message.job, message.task, self._cluster.jobs.get(message.job)
        if task < 0 and nodes is not None:
            task = nodes.number_of(address, message.process)
        if other := self.holder(job, task, address, ticket):
            held, _, number = other.partition(":")
            at = self._cluster.jobs[held].known[int(number)].told
            refusal = (
                f"{other} is taken: another process is {other}, at {at}, and answers; give another --task, or none, or "
                "stop the other process first"
            )
            return self._wait_of_second(other, f" at {at}")._replace(doubtful=False, refusal=refusal)
        if nodes is None:  # a client
            return None
        name, since_s = f"{job}:{task}", self._node.now() - self._began_at
        if self._cluster.is_open(job, task) and self._members.is_awaited(name, ticket, since_s):
            return self._wait_of_second(name)
        return None if task >= 0 else self._wait_of_further(job)

    def _refuse(self, address: str, refusal: str) -> NoReturn:
        log.warning("%s: refused the process at %s: %s", self._node.name, address, refusal)
        raise ConfigError(refusal)

    def _wait_of_second(self, other: str, at: str = "") -> _Wait:
        return _Wait(
            f"another process is {other}{at}; this one waits until that has ended",
            f"a second process wants to be {other}; it waits for the first one's end",
        )

    def _wait_of_further(self, job: str) -> _Wait | None:
        """Why a process without an index has to wait: all places are held."""
        known, fixed = self._cluster.jobs[job].known, self._cluster.fixed_tasks(job)
        held = [task for task in fixed or known if task in known and known[task].alive]
        if len(held) < len(fixed):
            return None
        up = self._node.up
        doubtful = [task for task in held if known[task].connection not in (0, up.get(known[task].address))]
        refuses = job == "ps" and bool(fixed)
        if not (doubtful or refuses):
            return None
        names = ", ".join(f"{job}:{task} at {known[task].told}" for task in (doubtful or held)[:LISTED])
        whom = names + (", ..." if len(doubtful or held) > LISTED else "")
        text = f"this cluster has {len(held)} {job}; this one waits to see whether one of them is gone: {whom}"
        refusal = (
            f"this cluster has {len(held)} ps, all are there ({whom}); more are not used; start the chief with --ps "
            f"{len(held) + 1}"
        )
        return _Wait(text, f"one more {job} has come; {text}", bool(doubtful), refusal if refuses else "")


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
