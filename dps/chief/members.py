"""Tracks who takes part in the run, as a state machine: admissions, ends, and whether all are done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dps.actors.authorization import role_of
from dps.actors.node import Node
from dps.actors.ref import Ref
from dps.errors import Aborted
from dps.messages.runs import Members, MembersKnown
from dps.process.record import record
from dps.transport.message import Message

COME_S = 3.0
"""How long a restarted chief keeps the places of the processes that an earlier one knew. They register every 2 s."""


@record
class Live:
    """An admitted session."""

    session: int
    name: str
    """Its task, such as "worker:3"."""
    task: int
    worker: bool
    trains: bool = True
    """Whether it has variables."""
    address: str = ""
    """The address of its node."""
    process: int = 0
    """The number of its node's process."""
    ticket: str = ""
    """The digest of its process's ticket."""


class RunMembers:
    """The members of a run. Incarnations rise and are never reused. `version` counts the changes within a run epoch.

    A worker is *expected* if the cluster names it or, if the number is not known, from its first session on. It has
    *come* if its task has registered, it has had a session, or its program is known to be over. It is *finished* when
    its last session ended well, and *given up* when it was lost or never came.

    More than 12 attributes: all that another chief needs to continue the run is here.
    """

    def __init__(self, expected: Sequence[str] = (), next_incarnation: int = 1) -> None:
        self.expected = list(expected)
        self.next_incarnation = next_incarnation
        self.version = 0
        self.live: dict[int, Live] = {}
        self.joined: list[str] = []
        """Workers that have had a session."""
        self.settles = False
        """Whether all sessions are to complete their pushes and join again."""
        self._came: set[str] = set()
        self.finished: list[str] = []
        self.given_up: list[str] = []
        self.failed: list[str] = []
        """Workers whose last session closed with an error. They are in `finished`, too: nobody waits for them."""
        self.has_ended: Callable[[int], bool] = lambda incarnation: False
        """Whether the journal of an earlier chief says that an incarnation has ended."""
        self.expected_tickets: dict[str, str] = {}
        """The tickets of the members of an earlier chief, by their names."""
        self.run, self.published = "", 0
        """The name of the run, and the highest number that was used for a published version."""

    def mark_come(self, name: str) -> bool:
        """Note that a worker has come. If it had been given up, it is expected again; returns whether that is so."""
        expected_again = name in self.absent()
        self._came.add(name)
        if expected_again:
            self.given_up.remove(name)
            self.version += 1
        return expected_again

    def begin_epoch(self) -> None:
        """Begin a run epoch, which every session must join again."""
        self.live, self.settles = {}, False
        self.version += 1

    def settle_pushes(self) -> None:
        """Have all sessions complete their pushes and join again."""
        self.settles = True
        self.version += 1

    def admit_session(
        self, session: int, name: str, task: int, worker: bool, trains: bool = True, address: str = "",
        process: int = 0, ticket: str = "",
    ) -> int:  # fmt: skip
        """Give a session a new incarnation and end its old one. The arguments are those of `Live`."""
        for incarnation in [i for i, live in self.live.items() if live.session == session]:
            del self.live[incarnation]
        incarnation = self.next_incarnation
        self.next_incarnation += 1
        self.live[incarnation] = Live(session, name, task, worker, trains, address, process, ticket)
        if worker:
            if name not in self.joined:
                self.joined.append(name)
            self.finished = [n for n in self.finished if n != name]
            self.given_up = [n for n in self.given_up if n != name]
            self.failed = [n for n in self.failed if n != name]
        self.version += 1
        return incarnation

    def end_incarnation(self, incarnation: int, lost: bool, failed: bool = False) -> None:
        """Note that a session left or was lost. Its worker is done unless it has another session."""
        live = self.live.pop(incarnation, None)
        if live is None:
            return
        self.version += 1
        if not live.worker or any(other.name == live.name for other in self.live.values()):
            return
        (self.given_up if lost else self.finished).append(live.name)
        if failed and live.name not in self.failed:
            self.failed.append(live.name)

    def mark_finished(self, name: str) -> None:
        """Note that a worker that took part has left between two run epochs, when it had no incarnation."""
        if name in self.joined and name not in self.finished:
            self.finished.append(name)
            self.version += 1

    def give_up(self, name: str) -> None:
        """Stop waiting for a worker that is away or never came."""
        for incarnation in [i for i, live in self.live.items() if live.name == name]:
            self.end_incarnation(incarnation, lost=True)
        if name not in self.given_up and name not in self.finished and (name in self.expected or name in self.joined):
            self.given_up.append(name)
            self.version += 1

    def mark_finished_before(self, name: str) -> None:
        """Note that a worker whose session belonged to an earlier chief has finished."""
        if any(live.name == name for live in self.live.values()):
            return
        for names in (self.joined, self.finished):
            if name not in names:
                names.append(name)
        self.version += 1

    def notes(self) -> dict[str, Any]:
        """The whole state as plain values, from which another chief can continue (`take_over_notes`)."""
        live = [
            [i, m.session, m.name, m.task, m.worker, m.trains, m.address, m.process, m.ticket]
            for i, m in self.live.items()
        ]
        return {
            "version": self.version, "next": self.next_incarnation, "live": live, "joined": list(self.joined),
            "finished": list(self.finished), "given_up": list(self.given_up), "failed": list(self.failed),
            "came": sorted(self._came), "published": self.published,
        }  # fmt: skip

    def take_over_notes(self, notes: Mapping[str, Any]) -> None:
        """Continue from the `notes` of another chief. Workers that this chief saw finish stay finished. Incarnations
        that ended according to the journal stay ended, because it is written before the ps are told."""
        finished, given_up = self.finished, self.given_up
        self.version = int(notes["version"]) + 1
        self.next_incarnation = max(self.next_incarnation, int(notes["next"]))
        self.published = max(self.published, int(notes.get("published", 0)))
        self.live = {incarnation: Live(*rest) for incarnation, *rest in notes["live"]}
        self.expected_tickets |= {live.name: live.ticket for live in self.live.values()}
        self.joined, self.finished = list(notes["joined"]), list(notes["finished"])
        self.given_up, self.failed = list(notes["given_up"]), list(notes["failed"])
        ended = {self.live.pop(incarnation).name for incarnation in list(self.live) if self.has_ended(incarnation)}
        seen, self._came = self._came, set(notes["came"])
        for name in seen:
            self.mark_come(name)
        for name in finished:
            self.mark_finished_before(name)
        there = {live.name for live in self.live.values()}
        for name in given_up:
            if name not in there and (name in ended or name not in self.known_to_have_come()):
                self.give_up(name)

    def tickets(self) -> list[Any]:
        """For each process with sessions: the digest of its ticket, its task, its job, and its incarnations."""
        found: dict[str, list[Any]] = {}
        for incarnation, live in self.live.items():
            job = live.name.partition(":")[0]
            entry = found.setdefault(live.ticket, [live.ticket, live.name, role_of(job), []])
            entry[3].append(incarnation)
        return list(found.values())

    def is_awaited(self, name: str, ticket: str, since_s: float) -> bool:
        """Whether another process than that of this ticket had the name under an earlier chief, and may still come,
        because this chief began only `since_s` ago."""
        return since_s <= COME_S and self.expected_tickets.get(name, ticket) not in ("", ticket)

    def has_succeeded(self) -> bool:
        """Whether some worker has finished without an error."""
        return not set(self.finished) <= set(self.failed)

    def incarnation_of(self, session: int) -> int | None:
        """The live incarnation of a session, or None."""
        return next((i for i, live in self.live.items() if live.session == session), None)

    def waiting(self) -> list[str]:
        """Workers that are expected, or took part before, and have no live session now."""
        there = {live.name for live in self.live.values() if live.worker}
        gone = {*self.finished, *self.given_up}
        known = list(dict.fromkeys([*self.expected, *self.joined]))
        return [name for name in known if name not in there and name not in gone]

    def absent(self) -> list[str]:
        """Workers that were given up before they came."""
        return [name for name in self.given_up if name not in self.known_to_have_come()]

    def known_to_have_come(self) -> set[str]:
        """Workers that have come at some time."""
        return self._came.union(self.joined)

    def gone(self) -> int:
        """Workers that came, and then finished or were lost."""
        return len({*self.finished, *self.given_up}.difference(self.absent()))

    def is_all_done(self) -> bool:
        """Whether each worker has joined and left, or is given up, and there was at least one."""
        return (
            bool(self.joined or self.given_up)
            and not self.waiting()
            and not any(live.worker for live in self.live.values())
        )

    def leader(self) -> int | None:
        """The session of the lowest living worker task; if there are no workers, the first other session."""
        order = sorted((not live.worker, live.task, i) for i, live in self.live.items())
        return self.live[order[0][2]].session if order else None


MEMBERS_S = 5.0
"""Timeout of one attempt to tell a ps."""


class EpochRoster:
    """Belongs to one run epoch. `heard` is called when a ps has a newer version, with what it says in MembersKnown,
    `refused` when it lost the epoch."""

    def __init__(
        self,
        node: Node,
        epoch: int,
        ps: dict[int, Ref],
        members: RunMembers,
        heard: Callable[[int, list[Any]], None],
        refused: Callable[[int], None],
    ) -> None:
        self.node, self.epoch, self.ps, self.members = node, epoch, ps, members
        self._heard, self._refused = heard, refused
        self._known = dict.fromkeys(ps, -1)
        self._telling: set[int] = set()
        self.is_over = False
        """Set when the run epoch ends; nothing more is sent."""

    @property
    def known(self) -> int:
        """The version of the members that every ps has."""
        return min(self._known.values(), default=-1)

    def ps_behind(self) -> list[int]:
        """The ps that do not have the current members."""
        return [ps for ps, version in self._known.items() if version < self.members.version]

    def tell_members(self) -> None:
        """Send the members to each ps that is behind, unless a message to it is in flight."""
        for ps in self.ps_behind():
            if ps not in self._telling:
                self._tell_one(ps)

    def _tell_one(self, ps: int) -> None:
        members, version = self.members, self.members.version
        live = [[incarnation, m.name, m.task, m.worker] for incarnation, m in members.live.items()]
        self._telling.add(ps)

        def told(answer: Message | Exception) -> None:
            self._telling.discard(ps)
            if self.is_over:
                return
            if isinstance(answer, Aborted):
                self._refused(ps)
                return
            if not isinstance(answer, Exception):
                self._known[ps] = max(version, self._known[ps])
                self._heard(ps, answer.ended if isinstance(answer, MembersKnown) else [])
            if not self.is_over:
                self.tell_members()

        who = live, members.waiting(), members.absent(), members.gone()
        message = Members(
            self.epoch, version, *who, members.notes(), members.tickets(), members.settles, self._known[ps]
        )
        self.node.ask(self.ps[ps], message, MEMBERS_S, told)
