"""The actor on the chief's node that decides who is in each group of workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dps.actors.actor import Actor
from dps.actors.authorization import Unproven
from dps.actors.ref import Ref, Sender
from dps.collectives.messages import LEFT, SUMS, GroupIs, JoinGroup, LeaveGroup, Serve
from dps.errors import ConfigError, NotAuthenticated, TaskLost


@dataclass
class Candidate:
    """A worker that has come, and its last report."""

    task: int
    member: int
    address: str
    about: list[Any] = field(default_factory=list)
    """[ticket, key, replicas, memory], as other members get them."""
    frozen: int = 0
    completed: int = 0
    doing: str = ""
    leaving: bool = False


class SummingPs:
    """The ps through which members sum, if they do, as `Cluster.helper` gives it; [] for none."""

    def __init__(self) -> None:
        self.wanted = False
        self.now: list[Any] = []
        """The ps of the current generation."""
        self._there: list[Any] = []
        self.lacks = ""
        """The names of the ps that are missing."""

    def set_wanted(self, wanted: bool, there: Sequence[Any], lacks: str) -> None:
        """A member wants one or not; and which one is there now, where it wants one."""
        if wanted:
            self.wanted, self._there, self.lacks = True, list(there), lacks

    def begin_generation(self) -> None:
        """A generation begins."""
        self.now = self._there if self.wanted else []

    @property
    def is_missing(self) -> bool:
        """Whether a generation cannot begin for lack of one."""
        return self.wanted and not self._there

    @property
    def is_another(self) -> bool:
        """Whether that of the generation is lost, or has another process."""
        return self.wanted and self._there != self.now


class GroupRoster:
    """One group, of the workers that are wanted for it."""

    def __init__(self, name: str, expected: Sequence[int]) -> None:
        """`expected`: the tasks of the workers."""
        self.name, self.expected = name, sorted(expected)
        self.generation, self.forming, self.base, self.source = 0, 1, 0, -1
        self.members: list[list[Any]] = []
        self.left: tuple[int, str] = 0, ""
        """The most operations that one who has left in order had completed, and who."""
        self.gone: list[list[str]] = []
        self._through = SummingPs()
        self._reset_members()

    def _reset_members(self) -> None:
        self.wanted = set(self.expected)
        self.here: dict[int, Candidate] = {}
        self._through.wanted = False
        self.left = 0, ""

    # -- events -------------------------------------------------------------------------------------------------

    def join_member(self, said: JoinGroup, address: str, key: str, ps: Sequence[Any] = (), lacks: str = "") -> GroupIs:
        """A worker has come, or says how far it is. `address`: where its node is reached. `ps`: the one that is there,
        as of `Cluster.helper`; `lacks`: the names of those that are not. Raises TaskLost for a worker without which
        the group has gone on, and ConfigError for one that the cluster does not have."""
        if said.generation > self.generation:
            self._adopt_generation(said)
        self._check_member(said)
        entry = self.here.get(said.task)
        if entry is None or entry.member != said.member:
            entry = self.here[said.task] = Candidate(said.task, said.member, address)
        entry.about = [said.ticket, key, said.replicas, said.memory]
        entry.frozen, entry.completed, entry.doing = said.frozen, said.completed, said.doing
        self._through.set_wanted(said.through, ps, lacks)
        if self._through.is_another and self.members:
            self.forming = self.forming or self.generation + 1
        self._form_generation()
        if self.members and not self.forming and self.base < self.left[0]:
            number, name = self.left
            raise TaskLost(f"{name} has left group {self.name!r} with the only result of operation {number}")
        return self.make_answer(said.task)

    def _check_member(self, said: JoinGroup) -> None:
        name = f"worker:{said.task}"
        if said.task not in self.expected:
            wanted = ", ".join(f"worker:{task}" for task in self.expected) or "none"
            raise ConfigError(f"{name} is none of the workers of group {self.name!r}, which are {wanted}")
        entry = self.here.get(said.task)
        known = entry is not None and entry.member == said.member
        if known or (self.generation == 0 or not self.members):
            return
        if said.task in self.wanted:
            raise ConfigError(f"{name} has one {self.name} open already; close that first (its with block, or close())")
        raise self.lost_error(name)

    def lost_error(self, name: str) -> TaskLost:
        """What a worker is told that was taken for lost."""
        why = next((why for gone, why in self.gone if gone == name), "was not there")
        return TaskLost(f"group {self.name!r} has gone on without {name}, which {why}; start all of its workers again")

    def _adopt_generation(self, said: JoinGroup) -> None:
        """A member of a generation of which only an earlier chief knew."""
        self.generation, self.forming, self.members = said.generation, 0, said.known
        self.wanted = {member[0] for member in said.known}
        self.here = {task: Candidate(task, number, address, about) for task, number, address, *about in said.known}

    def remove_member(self, task: int, why: str, after: int = 0) -> None:
        """A worker is gone: lost, or `after` it has completed so many operations."""
        entry = self.here.pop(task, None)
        if entry is None:
            return
        if not self.members:  # it may come again
            return
        self.left = max(self.left, (after, f"worker:{task}"))
        self.wanted.discard(task)
        self.gone.append([f"worker:{task}", why])
        if not self.wanted:
            self.members, self.forming = [], self.generation + 1
            self._reset_members()
            return
        self.forming = self.forming or self.generation + 1
        self._form_generation()

    def request_leave(self, task: int, member: int, completed: int) -> bool:
        """A worker wants to leave; returns whether no other one can need a result of it. Raises TaskLost for one that
        was taken for lost."""
        entry, name = self.here.get(task), f"worker:{task}"
        if entry is None or entry.member != member:
            if any(gone == name and not why.startswith(LEFT) for gone, why in self.gone):
                raise self.lost_error(name)
            return True
        entry.completed, entry.leaving = max(completed, entry.completed), True
        entry.frozen = self.forming or entry.frozen
        self._form_generation()
        return all(other.completed >= completed for other in self.here.values())

    def _form_generation(self) -> None:
        """Begin the next generation, if all are ready for it."""
        ready = self.wanted == set(self.here) and all(entry.frozen == self.forming for entry in self.here.values())
        if not self.forming or not ready or self._through.is_missing:
            return
        self.generation, self.forming = self.forming, 0
        self._through.begin_generation()
        self.base = max(entry.completed for entry in self.here.values())
        self.source = min(task for task, entry in self.here.items() if entry.completed == self.base)
        self.gone = self.gone if self.members else []
        self.members = [[e.task, e.member, e.address, *e.about] for _, e in sorted(self.here.items())]

    @property
    def ps(self) -> list[Any]:
        """The ps of the generation, as `Cluster.helper` gives it; [] if it needs none."""
        return self._through.now

    # -- answers ------------------------------------------------------------------------------------------------

    def make_answer(self, task: int) -> GroupIs:
        """What a worker is told."""
        state = self.generation, self.forming, self.members, self.base, self.source
        return GroupIs(*state, self.gone, self.ps[:4], self.waiting_text(task))

    def waiting_text(self, task: int) -> str:
        """For whom the group waits; the answer to a worker that waits."""
        absent, missing = sorted(self.wanted - set(self.here)), list[str]()
        if absent:
            missing.append(f"{_worker_names(absent)} {'have' if len(absent) > 1 else 'has'} not come to the group")
        if self._through.is_missing:
            missing.append(f"the group sums through a ps, and waits for {self._through.lacks}")
        if missing:
            return "; ".join(missing)
        asker = self.here.get(task)
        if asker is None or self.forming:
            late = [entry.task for entry in self.here.values() if entry.frozen != self.forming and entry.task != task]
            return f"the group is formed anew, and waits for {_worker_names(late)}" if late else ""
        late = [
            other for other, entry in sorted(self.here.items())
            if other != task and not (entry.doing and entry.completed >= asker.completed)
        ]  # fmt: skip
        return f"{_worker_names(late)} {'have' if len(late) > 1 else 'has'} not come to it" if late else ""


def _worker_names(tasks: Sequence[int]) -> str:
    return ", ".join(f"worker:{task}" for task in tasks)


GRACE_S = 1.0
"""How long a member's node may be disconnected before the group goes on without it."""
SERVE_S = 20.0
"""How long a ps is told of a generation; then another one has been formed, because it is lost."""


class GroupsActor(Actor):
    """All groups of the run, by name."""

    def __init__(
        self, expected: Sequence[int], begun: Callable[[], None], finished: Callable[[str], None],
        ps: Callable[[list[Any]], list[Any]], lacks: Callable[[float], str],
    ) -> None:  # fmt: skip
        """`expected`: the tasks of the workers. `begun` is called when a worker wants a group that needs no ps,
        `finished` gets the name of each that has left. `ps`, `lacks`: as `helper` and `waits_for` of
        `Cluster`."""
        self._expected, self._begun, self._finished = list(expected), begun, finished
        self._ps, self._lacks = ps, lacks
        self.rosters: dict[str, GroupRoster] = {}
        self._told: dict[str, tuple[int, bool]] = {}
        """The generation that the ps of each group knows, and whether the group is over."""

    def on_JoinGroup(self, message: JoinGroup, sender: Sender) -> None:
        self._check_sender(message.task, sender)
        if not self._expected:
            raise ConfigError(
                f"group {message.group!r}: how many workers take part is not known; start the chief with --workers N, "
                "or list them in the cluster"
            )
        if not message.through:
            self._begun()
        roster = self.rosters.setdefault(message.group, GroupRoster(message.group, self._expected))
        address, through = self.node.dial_address(message.address), (list[Any](), "")
        if message.through:
            through = self._ps(roster.ps), self._lacks(self.node.now())
        answer = roster.join_member(message, address, self.node.user, *through)
        for entry in roster.here.values():  # of an earlier chief's members, too
            self.node.watch(entry.address, GRACE_S)
        self._tell_ps(roster)
        self.node.answer(sender, answer)

    def on_LeaveGroup(self, message: LeaveGroup, sender: Sender) -> None:
        self._check_sender(message.task, sender)
        roster = self.rosters.get(message.group)
        if roster is not None:
            may_go = roster.request_leave(message.task, message.member, message.completed)
            if not may_go and not message.final:
                self.node.answer(sender, roster.make_answer(message.task))
                return
            self._remove_member(roster, message)
        self.node.answer(sender)

    def _remove_member(self, roster: GroupRoster, message: LeaveGroup) -> None:
        entry = roster.here.get(message.task)
        if entry is not None and entry.member == message.member:
            why = f"{LEFT} after {message.completed} operations"
            roster.remove_member(message.task, why, message.completed)
            self.node.unwatch(entry.address)
            self._tell_ps(roster)
            self._finished(f"worker:{message.task}")

    def _tell_ps(self, roster: GroupRoster) -> None:
        """Tell the ps that sums for a group of its newest generation, or of its end."""
        now = roster.generation, not roster.members
        if roster.ps and self._told.get(roster.name) != now:
            self._told[roster.name] = now
            message = Serve(roster.name, roster.generation, roster.members)
            self.node.ask(Ref(roster.ps[-1], SUMS), message, SERVE_S, lambda answer: None)

    def _check_sender(self, task: int, sender: Sender) -> None:
        """Raise NotAuthenticated for a message of another process than the worker's, and Unproven for one that nobody
        has admitted yet: it may have been lost, and has not registered again."""
        if sender.peer.name != f"worker:{task}":
            who, error = sender.peer.name or "a stranger", NotAuthenticated if sender.peer.name else Unproven
            raise error(f"got a message in the name of worker:{task} of {who}; wanted it with its ticket")

    def lost(self, address: str, silent_s: float) -> None:
        for roster in self.rosters.values():
            for entry in list(roster.here.values()):
                if entry.address == address:
                    roster.remove_member(entry.task, f"was silent for {silent_s:.1f} s")
                    self.node.unwatch(address)
            self._tell_ps(roster)
