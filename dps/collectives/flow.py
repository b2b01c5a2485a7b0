"""One operation of a group, as one member sees it: a state machine without clock, sockets or threads.

Pieces that come are events; pieces to send are put into `out`. A piece is OPEN, then SENT (this member's part has
left), then FINAL. It becomes FINAL once, and is the same on all members. All events may come again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dps.collectives.messages import Phase
from dps.collectives.routes import Algorithm, Route, RunSegment
from dps.errors import ProtocolError
from dps.transport.wire import Array

Bring = Callable[[int], Array]
"""Returns this member's part of a piece. If the part is to be sent, it also lies in `given` then."""
Total = Callable[[Array, Sequence[Array]], None]
"""Writes the sum of arrays, added in their order, to the first argument, which is not one of them."""


def read_only(array: Array) -> Array:
    """The array, read-only."""
    view: Array = array.view()
    view.flags.writeable = False
    return view


class Send(NamedTuple):
    """A piece to send, from `given` if it is `own`, else from `result`. ASK carries no data."""

    to: int
    piece: int
    phase: Phase
    own: bool


OPEN, SENT, FINAL = range(3)
ASKED = 4
"""This many pieces are asked for at a time. When they come, the others do, too."""


class Flow:
    """`given` has this member's part, and does not change. `result` gets the result. Both are 1-D.

    More than 12 attributes: six say what is done, and are never changed; the others are how far it is.
    """

    def __init__(
        self, what: str, rank: int, size: int, parts: Sequence[RunSegment], algorithm: Algorithm,
        given: Array, result: Array, total: Total, window: int = 16, bring: Bring | None = None, lends: bool = False,
    ) -> None:  # fmt: skip
        # More than 9 parameters: what is done, and where the data lie; nothing of it changes.
        """`window`: at most this many of the member's pieces are in flight. `given` may be `result` if nothing is
        added. `bring`: fills `given`, a piece at a time. `lends`: results in a peer's memory are not copied."""
        self.what, self.number = what, 0
        self.rank, self.parts, self.result = rank, parts, result
        self._placed = given is result
        self.given = read_only(given)  # as what comes is, so that kernels are compiled once
        self._routes = [algorithm(rank, size, root) for root in range(size)]
        self._total, self._window, self._bring, self.lends = total, window, bring, lends
        self.lent: dict[int, Array] = {}
        """The pieces of the result that lie in a peer's memory."""
        self.wholes: dict[int, Array] = {}
        """The results of peers, by rank, of which pieces were lent."""
        self._state = bytearray(len(parts))
        self._counted = bytearray(len(parts))
        """The pieces that count for the window."""
        self._held: dict[int, dict[int, Array]] = {}
        """The parts that have arrived, by piece and sender, until all parts of the piece have."""
        self._next = self._under_way = self._finals = 0
        self._source = -1
        """The member that sends all missing pieces, after members were lost."""
        self.shown = False
        """Whether parts are written to boards, so that none is sent."""
        self.out: list[Send] = []

    @property
    def is_done(self) -> bool:
        """Whether the result is whole."""
        return self._finals == len(self.parts)

    @property
    def progress(self) -> tuple[int, int]:
        """A number that changes whenever a missing part or piece has arrived."""
        return self._finals, sum(map(len, self._held.values()))

    @property
    def is_through_ps(self) -> bool:
        """Whether the result comes from a ps."""
        return self._source < 0 and self._routes[0].source == len(self._routes)

    def missing_members(self) -> list[int]:
        """The members whose part of the first piece is missing, in operations that have one piece."""
        if self.is_done or self._state[0] == FINAL or self._source >= 0:
            return []
        return [rank for rank in self._route(0).takes if rank not in self._held.get(0, ())]

    def span(self, index: int) -> slice:
        """The elements of a piece."""
        if not 0 <= index < len(self.parts):
            raise ProtocolError(f"{self.what} has {len(self.parts)} pieces, got number {index}")
        return slice(self.parts[index].start, self.parts[index].stop)

    def _route(self, index: int) -> Route:
        if self._source >= 0:
            return Route((), (), (), self._source)
        return self._routes[self.parts[index].root]

    # -- events -------------------------------------------------------------------------------------------------

    def send_first_pieces(self) -> None:
        """Send the pieces that can be sent."""
        for index in range(len(self.parts)):
            route = self._route(index)
            if route.source < 0 and not route.takes:
                if not self._placed:
                    self.result[self.span(index)] = self._own_part(index)
                self._finish_piece(index)
        self._fill_window()

    def take_piece(self, rank: int, index: int, phase: Phase, data: Array | None, lent: bool = False) -> None:
        """A message about a piece has arrived. UP and DOWN carry data, which may lie in the peer's memory (`lent`)."""
        span, state = self.span(index), self._state[index]
        if phase is Phase.ASK:
            self._answer_ask(rank, index)
        elif data is None or data.size != span.stop - span.start or data.dtype != self.result.dtype:
            got = "nothing" if data is None else f"{data.dtype} {data.shape}"
            raise ProtocolError(f"{self.what}: got {got} for elements {span.start} to {span.stop}")
        elif phase is Phase.DOWN:
            if state != FINAL:
                if lent and self.lends:
                    self.lent[index] = data
                else:
                    self.result[span] = data
                self._finish_piece(index)
        elif state == FINAL:
            self.copy_lent_piece(index)
            self.out.append(Send(rank, index, Phase.DOWN, False))  # it has missed the result
        elif rank in self._route(index).takes and (state == OPEN or self._route(index).early):
            held = self._held.setdefault(index, {})
            held[rank] = data
            if len(held) == len(self._route(index).takes):
                self._sum_piece(index)

    def _answer_ask(self, rank: int, index: int) -> None:
        route = self._route(index)
        if self._state[index] == FINAL:
            self.copy_lent_piece(index)
            self.out.append(Send(rank, index, Phase.DOWN, False))
        elif self._state[index] == SENT and rank in route.up:
            self.out.append(Send(rank, index, Phase.UP, self._sends_own(route)))

    def ask_missing_pieces(self) -> None:
        """Nothing has arrived for a while: ask for the first missing pieces, which may have been lost."""
        missing = [index for index in range(len(self.parts)) if self._state[index] != FINAL]
        for index in missing[:ASKED]:
            route = self._route(index)
            late = [rank for rank in route.takes if rank not in self._held.get(index, ())]
            if self._state[index] == OPEN or route.source < 0:
                self.out += [Send(rank, index, Phase.ASK, False) for rank in late]
            if route.source >= 0 and not (late and self._state[index] == OPEN):
                self.out.append(Send(route.source, index, Phase.ASK, False))

    def ask_source(self, source: int) -> None:
        """Members were lost: take the missing pieces from a member that has the whole result."""
        self._source = source
        self._held.clear()
        missing = [index for index in range(len(self.parts)) if self._state[index] != FINAL]
        self.out = [Send(source, index, Phase.ASK, False) for index in missing]

    def copy_lent_piece(self, index: int) -> None:
        """Copy a piece of the result that lies in a peer's memory."""
        if index in self.lent:
            self.result[self.span(index)] = self.lent.pop(index)

    def _own_part(self, index: int) -> Array:
        """This member's part of a piece."""
        return self.given[self.span(index)] if self._bring is None else read_only(self._bring(index))

    # -- one piece ----------------------------------------------------------------------------------------------

    def _sends_own(self, route: Route) -> bool:
        return route.early or not route.takes

    def _fill_window(self) -> None:
        """Send this member's part of further pieces, as many as the window allows."""
        while self._under_way < self._window and self._next < len(self.parts):
            index, self._next = self._next, self._next + 1
            route = self._route(index)
            if not (route.up and self._sends_own(route)):
                continue
            if self._state[index] == OPEN:
                self._state[index], self._counted[index] = SENT, 1
                self._under_way += 1
                self._own_part(index)
            self.out += [Send(rank, index, Phase.UP, True) for rank in route.up]

    def _sum_piece(self, index: int) -> None:
        """All parts of a piece have arrived."""
        span, route, parts = self.span(index), self._route(index), self._held.pop(index)
        parts[self.rank] = self._own_part(index) if self._state[index] == OPEN else self.given[span]
        self._total(self.result[span], [parts[rank] for rank in sorted(parts)])
        if route.source < 0:
            self._finish_piece(index)
        else:
            self._state[index] = SENT
            self.out += [Send(rank, index, Phase.UP, False) for rank in route.up]

    def _finish_piece(self, index: int) -> None:
        self._state[index] = FINAL
        self._finals += 1
        self._held.pop(index, None)
        self.out += [Send(rank, index, Phase.DOWN, False) for rank in self._route(index).down]
        if self._counted[index]:
            self._under_way -= 1
            self._fill_window()
