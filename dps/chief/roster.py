"""Sends the newest list of members to every ps of a run epoch until each has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dps.actors.ref import Ref
from dps.actors.system import Node
from dps.chief.members import Membership
from dps.errors import Aborted
from dps.run_protocol import Members, MembersKnown
from dps.transport.message import Message

MEMBERS_S = 5.0
"""Timeout of one attempt to tell a ps."""


class Roster:
    """Belongs to one run epoch. `heard` is called when a ps has a newer version, with what it says in MembersKnown,
    `refused` when it lost the epoch."""

    def __init__(
        self,
        node: Node,
        epoch: int,
        ps: dict[int, Ref],
        members: Membership,
        heard: Callable[[int, list[Any]], None],
        refused: Callable[[int], None],
    ) -> None:
        self.node, self.epoch, self.ps, self.members = node, epoch, ps, members
        self._heard, self._refused = heard, refused
        self._known = dict.fromkeys(ps, -1)
        self._telling: set[int] = set()
        self.over = False
        """Set when the run epoch ends; nothing more is sent."""

    @property
    def known(self) -> int:
        """The version of the members that every ps has."""
        return min(self._known.values(), default=-1)

    def behind(self) -> list[int]:
        """The ps that do not have the current members."""
        return [ps for ps, version in self._known.items() if version < self.members.version]

    def tell(self) -> None:
        """Send the members to each ps that is behind, unless a message to it is in flight."""
        for ps in self.behind():
            if ps not in self._telling:
                self._tell_one(ps)

    def _tell_one(self, ps: int) -> None:
        members, version = self.members, self.members.version
        live = [[incarnation, m.name, m.task, m.worker] for incarnation, m in members.live.items()]
        self._telling.add(ps)

        def told(answer: Message | Exception) -> None:
            self._telling.discard(ps)
            if self.over:
                return
            if isinstance(answer, Aborted):
                self._refused(ps)
                return
            if not isinstance(answer, Exception):
                self._known[ps] = max(version, self._known[ps])
                self._heard(ps, answer.ended if isinstance(answer, MembersKnown) else [])
            if not self.over:
                self.tell()

        who = live, members.waiting(), members.absent(), members.gone()
        message = Members(
            self.epoch, version, *who, members.notes(), members.tickets(), members.settles, self._known[ps]
        )
        self.node.ask(self.ps[ps], message, MEMBERS_S, told)
