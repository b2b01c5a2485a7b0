"""The actor on a ps that sums for groups of workers: it takes the parts of all members, and gives all of them the sum.

It asks for nothing by itself: a member that waits asks it, and then it asks those members whose parts it has not. When
a ps or a member is lost, a new generation is formed, and what nobody has completed is done again.
"""

from __future__ import annotations

import numpy as np

from dps.actors.actor import Actor
from dps.actors.ref import Ref, Sender
from dps.collectives.messages import MEMBER, Other, Phase, Piece, Serve
from dps.errors import NotAuthenticated, ProtocolError
from dps.transport.wire import Array


class SumOperation:
    """One operation: the parts that have come, and the sums that are made, by piece."""

    def __init__(self, what: str, first: int) -> None:
        """`first`: the rank of the member that came first."""
        self.what, self.first = what, first
        self.made: dict[int, Array] = {}
        self._parts: dict[int, dict[int, Array]] = {}

    def add_part(self, message: Piece, size: int) -> bool:
        """A member's part of a piece has come; whether that makes the sum of `size` members."""
        parts, part = self._parts.setdefault(message.index, {}), message.arrays[0]
        other = next(iter(parts.values()), part)
        if part.ndim != 1 or part.shape != other.shape or part.dtype != other.dtype:
            raise ProtocolError(f"{self.what}: got {part.dtype} {part.shape}, others sent {other.dtype} {other.shape}")
        parts[message.rank] = part
        if len(parts) < size:
            return False
        self._sum_piece(message.index)
        return True

    def _sum_piece(self, index: int) -> None:
        """All parts of a piece are here: add them in the order of ranks."""
        from dps.kernels.gradients import total  # loads numba

        parts = self._parts.pop(index)
        out = np.empty_like(parts[0])
        total(out, [parts[rank] for rank in sorted(parts)])
        self.made[index] = out

    def missing_members(self, index: int, size: int) -> list[int]:
        """The members whose part of a piece has not come."""
        return [rank for rank in range(size) if rank not in self._parts.get(index, ())]


class ServedGroup:
    """One generation of a group, and its operations: the last complete one and the one under way."""

    def __init__(self, message: Serve) -> None:
        self.generation, self.group = message.generation, message.group
        self.members = [Other(*member) for member in message.members]
        self.sums: dict[int, SumOperation] = {}

    @property
    def age(self) -> tuple[int, bool]:
        """A later one is larger; one without members is the end of the group."""
        return self.generation, not self.members

    def find_operation(self, message: Piece) -> SumOperation | None:
        """The operation of a message; None for one that all have completed. Whoever begins an operation knows that all
        have begun the one before, and so have completed the one before that."""
        newest = max(self.sums, default=message.op)
        if message.op < newest - 1:
            return None
        for number in [number for number in self.sums if number < message.op - 1]:
            del self.sums[number]
        return self.sums.setdefault(message.op, SumOperation(message.what, message.rank))


class Sums(Actor):
    """All groups that sum through this ps."""

    def __init__(self) -> None:
        self._groups: dict[str, ServedGroup] = {}
        self._by_ticket: dict[str, ServedGroup] = {}

    def on_Serve(self, message: Serve, sender: Sender) -> None:
        served, before = ServedGroup(message), self._groups.get(message.group)
        if before is None or served.age > before.age:
            self._groups[message.group] = served
            self._replace_members(before, served)
        self.node.answer(sender)

    def _replace_members(self, before: ServedGroup | None, now: ServedGroup) -> None:
        kept = {member.address for member in now.members}
        for member in before.members if before is not None else ():
            self._by_ticket.pop(member.ticket, None)
            if member.address not in kept:
                self.node.unwatch(member.address)
        for member in now.members:
            self._by_ticket[member.ticket] = now
            self.node.expect(member.address, member.key)
            self.node.present(member.address)
        tickets = [[member.ticket, member.name, "worker", ()] for member in now.members]
        self.node.tickets.admit(f"group {now.group}", tickets)

    def on_Piece(self, message: Piece, sender: Sender) -> None:
        ticket = sender.peer.ticket
        served = self._by_ticket.get(ticket)
        if served is None or message.generation != served.generation:
            return  # the chief's word is on its way, or the generation is over: the member asks again
        if [member.ticket for member in served.members].index(ticket) != message.rank:
            who = sender.peer.name
            raise NotAuthenticated(f"got a piece of rank {message.rank} from {who}, wanted it with its ticket")
        found = served.find_operation(message)
        if found is None:
            return
        if message.what != found.what:
            self._send(served, message, message.rank, found.first, Phase.ASK, found.what)
            self._send(served, message, found.first, message.rank, Phase.ASK, message.what)
        elif message.index in found.made:  # the member has missed it
            self._send_sum(served, message, message.rank, found)
        elif message.phase == Phase.ASK:
            for rank in found.missing_members(message.index, len(served.members)):
                self._send(served, message, rank, len(served.members), Phase.ASK, found.what)
        elif message.phase == Phase.UP and found.add_part(message, len(served.members)):
            for rank in range(len(served.members)):
                self._send_sum(served, message, rank, found)

    def _send_sum(self, served: ServedGroup, of: Piece, to: int, found: SumOperation) -> None:
        arrays = (found.made[of.index],)
        self._send(served, of, to, len(served.members), Phase.DOWN, found.what, arrays)

    def _send(
        self, served: ServedGroup, of: Piece, to: int, rank: int, phase: Phase, what: str,
        arrays: tuple[Array, ...] = (),
    ) -> None:  # fmt: skip
        """`rank`: of whom it is."""
        piece = Piece(of.generation, of.op, of.index, rank, int(phase), what, [], arrays)
        self.node.tell(Ref(served.members[to].address, MEMBER), piece)
