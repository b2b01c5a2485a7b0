"""The actor on the chief's node that decides who is in each group of workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dps.actors.actor import Actor
from dps.actors.ref import Ref, Sender
from dps.actors.tickets import Unproven
from dps.collectives.messages import LEFT, SUMS, JoinGroup, LeaveGroup, Serve
from dps.collectives.roster import Roster
from dps.errors import ConfigError, NotAuthenticated

GRACE_S = 1.0
"""How long a member's node may be disconnected before the group goes on without it."""
SERVE_S = 20.0
"""How long a ps is told of a generation; then another one has been formed, because it is lost."""


class Groups(Actor):
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
        self.rosters: dict[str, Roster] = {}
        self._told: dict[str, tuple[int, bool]] = {}
        """The generation that the ps of each group knows, and whether the group is over."""

    def on_JoinGroup(self, message: JoinGroup, sender: Sender) -> None:
        self._check(message.task, sender)
        if not self._expected:
            raise ConfigError(
                f"group {message.group!r}: how many workers take part is not known; start the chief with --workers N, "
                "or list them in the cluster"
            )
        if not message.through:
            self._begun()
        roster = self.rosters.setdefault(message.group, Roster(message.group, self._expected))
        address, through = self.node.dials(message.address), (list[Any](), "")
        if message.through:
            through = self._ps(roster.ps), self._lacks(self.node.now())
        answer = roster.join(message, address, self.node.user, *through)
        for entry in roster.here.values():  # of an earlier chief's members, too
            self.node.watch(entry.address, GRACE_S)
        self._tell_ps(roster)
        self.node.answer(sender, answer)

    def on_LeaveGroup(self, message: LeaveGroup, sender: Sender) -> None:
        self._check(message.task, sender)
        roster = self.rosters.get(message.group)
        if roster is not None:
            may_go = roster.leave(message.task, message.member, message.completed)
            if not may_go and not message.final:
                self.node.answer(sender, roster.answer(message.task))
                return
            self._left(roster, message)
        self.node.answer(sender)

    def _left(self, roster: Roster, message: LeaveGroup) -> None:
        entry = roster.here.get(message.task)
        if entry is not None and entry.member == message.member:
            why = f"{LEFT} after {message.completed} operations"
            roster.lost(message.task, why, message.completed)
            self.node.unwatch(entry.address)
            self._tell_ps(roster)
            self._finished(f"worker:{message.task}")

    def _tell_ps(self, roster: Roster) -> None:
        """Tell the ps that sums for a group of its newest generation, or of its end."""
        now = roster.generation, not roster.members
        if roster.ps and self._told.get(roster.name) != now:
            self._told[roster.name] = now
            message = Serve(roster.name, roster.generation, roster.members)
            self.node.ask(Ref(roster.ps[-1], SUMS), message, SERVE_S, lambda answer: None)

    def _check(self, task: int, sender: Sender) -> None:
        """Raise NotAuthenticated for a message of another process than the worker's, and Unproven for one that nobody
        has admitted yet: it may have been lost, and has not registered again."""
        if sender.peer.name != f"worker:{task}":
            who, error = sender.peer.name or "a stranger", NotAuthenticated if sender.peer.name else Unproven
            raise error(f"got a message in the name of worker:{task} of {who}; wanted it with its ticket")

    def lost(self, address: str, silent_s: float) -> None:
        for roster in self.rosters.values():
            for entry in list(roster.here.values()):
                if entry.address == address:
                    roster.lost(entry.task, f"was silent for {silent_s:.1f} s")
                    self.node.unwatch(address)
            self._tell_ps(roster)
