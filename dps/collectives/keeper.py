"""The actor on the chief's node that says who is in the groups of workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from dps.actors.actor import Actor
from dps.actors.ref import Sender
from dps.collectives.messages import LEFT, JoinGroup, LeaveGroup
from dps.collectives.roster import Roster
from dps.errors import ConfigError, NotAuthenticated

log = logging.getLogger("dps")

GRACE_S = 1.0
"""How long a member's node may be disconnected before the group goes on without it."""


class Groups(Actor):
    """All groups of the run, by name."""

    def __init__(self, expected: Sequence[int], begun: Callable[[], None], finished: Callable[[str], None]) -> None:
        """`expected`: the tasks of the workers. `begun` is called when a worker wants a group, `finished` gets the name
        of each that has left."""
        self._expected, self._begun, self._finished = list(expected), begun, finished
        self.rosters: dict[str, Roster] = {}

    def on_JoinGroup(self, message: JoinGroup, sender: Sender) -> None:
        self._check(message.task, sender)
        if not self._expected:
            raise ConfigError(
                f"group {message.group!r}: how many workers take part is not known; start the chief with --workers N, "
                "or list them in the cluster"
            )
        self._begun()
        roster = self.rosters.setdefault(message.group, Roster(message.group, self._expected))
        address = self.node.dials(message.address)
        answer = roster.join(message, address, self.node.user)
        for entry in roster.here.values():  # of an earlier chief's members, too
            self.node.watch(entry.address, GRACE_S)
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
            self._finished(f"worker:{message.task}")

    def _check(self, task: int, sender: Sender) -> None:
        """NotAuthenticated for a message of another process than the worker's."""
        if sender.peer.name != f"worker:{task}":
            who = sender.peer.name or "a stranger"
            raise NotAuthenticated(f"got a message in the name of worker:{task} of {who}; wanted it with its ticket")

    def lost(self, address: str, silent_s: float) -> None:
        for roster in self.rosters.values():
            for entry in list(roster.here.values()):
                if entry.address == address:
                    roster.lost(entry.task, f"was silent for {silent_s:.1f} s")
                    self.node.unwatch(address)
