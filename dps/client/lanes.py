"""The lanes of a session: its ps, and the memory that both can read. Found when it joins, closed when one fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Protocol

from dps.actors.answers import Failed, is_last
from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.actors.requests import Request
from dps.errors import DpsError, Unavailable
from dps.messages.sessions import Probe, Probed, Release
from dps.process.record import record
from dps.process.telemetry import log
from dps.transport.endpoint import Memory, Runtime
from dps.transport.message import Message, changed
from dps.transport.shared_memory import ASKED, ASKER, expected, marked, proof
from dps.transport.wire import Array
from dps.variables.plan import ShardLayout

Names = tuple[Any, ...]
"""The name of the only memory of a version, or the names of all: one for each arena."""
LentArrays = tuple[list[Array], list[Array]]
"""A version in the memory of a ps: the bytes of each arena, read-only, and the parts in them, in the order of the run.
The parts are kept for the next version in the same memories: give others views of them."""
KEPT_PARTS = 1 << 14
"""So many parts of lent versions a session keeps for each ps: some 2 MB."""


MOST_UNTOLD = 8
"""The most small releases of which no message has told."""


class Lane:
    """Memory shared with one ps in one run epoch. It is off until each side has proven that it reads the other's.

    While it is on, values and gradients are read where they were written, and messages only name their places.
    More than 12 attributes: what is known of the ps's memory, and who reads what of it."""

    def __init__(
        self, runtime: Runtime, caller: Caller, ref: Ref, epoch: int, worth: bool, tells_at_once: bool = False
    ) -> None:
        """`worth`: the shard is large enough for shared memory; else only small messages go as datagrams.
        `tells_at_once`: each release is sent immediately."""
        self.tells_at_once = tells_at_once
        self.on, self._worth = False, worth
        self._silent_nbytes = 0 if tells_at_once else runtime.tuning.small_nbytes
        self.rate = inf
        """How fast values last came over the socket, bytes/s."""
        self._runtime, self._caller, self._ref, self._epoch = runtime, caller, ref, epoch
        self._attached: dict[tuple[int, ...], Array] = {}
        self.versions: dict[Names, LentArrays] = {}
        """Of versions that the ps has lent, by the names of their memories."""
        self.reading: set[int] = set()
        """The numbers of the requests that may be answered with a place in memory, or read one."""
        self.untold = list[int]()
        """Numbers that were released while an older version was read, so that no message says it by the lowest number
        that is read. Any thread may add one."""

    def ask(self, own: Memory) -> Request:
        """Ask the ps whether it reads this memory, and if so, prove that this process reads the ps's."""
        probe = Probe(own.name, b"", self._caller.direct)

        def heard(answer: Message) -> bool:
            nonlocal probe
            if not isinstance(answer, Probed) or answer.proof != expected(own, ASKED, answer.memory):
                return isinstance(answer, Probed | Failed)
            if answer.near:
                self.on = self._worth
                self._caller.pair(self._ref.address, answer.direct)
                return True
            probe = changed(probe, proof=proof(self._runtime, answer.memory, ASKER, own.name))
            if probe.proof:
                self._caller.send(request, probe)
            return not probe.proof

        request = self._caller.start(self._ref, probe, heard, lambda: probe)
        return request

    def attach(self, name: list[int]) -> Array:
        """Memory of the ps as read-only bytes. Raises Unavailable if it is gone."""
        found = self._attached.get(tuple(name))
        if found is None:
            found = self._attached[tuple(name)] = self._runtime.attach(name)
        return found

    def find(self, layout: ShardLayout, names: Sequence[Any]) -> LentArrays | None:
        """What the ps has lent. `names`: a tuple is the name of the memory of its only arena; a list has one for each
        arena. None if the memory cannot be read; the session uses the socket from then on."""
        try:
            key = names if names.__class__ is tuple else _key(names)
            return self.versions.get(key) or self._attach_arrays(layout, key)
        except (DpsError, TypeError, ValueError) as error:
            self.give_up(error)
            return None

    def _attach_arrays(self, layout: ShardLayout, key: Names) -> LentArrays:
        """The memories of these names, and the parts in them. Raises Unavailable where they do not fit the layout."""
        memories = list[Array]()
        names: Names = (key,) if key and isinstance(key[0], int) else key
        for name, arena in zip(names, layout.arenas, strict=True):
            memories.append(self.attach(list(name)))
            if len(memories[-1]) != arena.nbytes:
                raise Unavailable(f"an arena has {len(memories[-1])} bytes in the ps's memory; wanted {arena.nbytes}")
        parts = layout.listed(memories)
        if (len(self.versions) + 1) * len(parts) > KEPT_PARTS:
            self.versions.clear()
        found = self.versions[key] = memories, parts
        return found

    def release(self, number: int, nbytes: int) -> None:
        """Release the values that the request of this number holds; 0 bytes: none.

        The ps learns of a small release with the session's next message, or with `tell_untold`. A large one is a
        message of its own, sent until the ps acks it.
        """
        self.reading.discard(number)
        if nbytes > self._silent_nbytes:
            self._caller.start(self._ref, Release(self._epoch, [number]), is_last)
        elif nbytes and self.reading and number > min(self.reading, default=number):  # another thread may empty it
            self.untold.append(number)

    def tell_untold(self) -> None:
        """Tell the ps what was released while an older version is read, if it is much: a view may stay open for long,
        and the ps has a limited number of buffers. For the thread that has the session's turn."""
        if len(self.untold) >= MOST_UNTOLD:
            told = [self.untold.pop() for _ in range(len(self.untold))]
            if self.reading:  # else the next message says it
                self._caller.start(self._ref, Release(self._epoch, told), is_last)

    def is_silent(self, nbytes: int) -> bool:
        """Whether the release of so many bytes is no message of its own."""
        return nbytes <= self._silent_nbytes

    def all_released_below(self) -> int:
        """No request of a lower number reads memory any more; 0 if the lane is off."""
        if not self.on:
            return 0
        if self.untold:
            self.tell_untold()
        return min(self.reading, default=0) or self._caller.next_number  # another thread may take the last one out

    def give_up(self, error: Exception) -> None:
        """Use the socket from now on."""
        if self.on:
            log.warning("%s: shared memory with %s fails, sockets are used: %s", self._caller.name, self._ref, error)
        self.on = False


class Lanes:
    """Finds out, each time the session joins, which ps it can share memory with."""

    def __init__(self, runtime: Runtime, caller: Caller, wanted: bool = True, tells_at_once: bool = False) -> None:
        """`wanted` False: no ps is asked. `tells_at_once`: for sessions that only read, and seldom: a late release
        would keep a buffer from others."""
        self._runtime, self._caller = runtime, caller
        self._wanted, self._tells_at_once = wanted, tells_at_once
        self._own: Memory | None = None
        self._asked: list[Request] = []

    def open(self, refs: dict[int, Ref], epoch: int, worth: Callable[[int], bool]) -> dict[int, Lane]:
        """Ask each ps whether it is on this machine. It shares memory if its shard is large enough (`worth`). Blocks
        for a moment."""
        for request in self._asked:
            self._caller.drop(request)
        own = self._own = self._own or (marked(self._runtime) if self._wanted else None)
        about = self._runtime, self._caller
        lanes = {ps: Lane(*about, ref, epoch, worth(ps), self._tells_at_once) for ps, ref in refs.items()}
        self._asked = [] if own is None else [lane.ask(own) for lane in lanes.values()]
        self._caller.wait(self._asked, self._runtime.tuning.client.probe_s)
        return lanes


@record
class PsPeer:
    """A ps, as requests to it need it. Made anew when the session joins."""

    caller: Caller
    ps: int
    ref: Ref
    layout: ShardLayout
    lane: Lane
    abort: Callable[[], None]
    """Call it when the ps says that the epoch or the incarnation has ended."""


Lent = tuple[PsPeer, int, int, int, LentArrays]
"""What a ps has lent with its answer to a request: the ps, the number of the request, the counter of the version, its
step, and where it is. It may be read until the session's next message, or longer with the request in `Lane.reading`."""


class Releasable(Protocol):
    """What may lie in the memory of ps, and is read until it is released."""

    def release(self) -> None:
        """Nobody reads it any more. A further call does nothing."""


class LentVersion:
    """The version of a shard that a ps has lent, and that is read until it is released."""

    def __init__(self, lent: Lent) -> None:
        self.peer, self._request, _, _, (_, self.parts) = lent

    def release(self) -> None:
        """Nobody reads the values any more, and the ps is told so. A further call does nothing."""
        if self._request:
            self.peer.lane.release(self._request, self.peer.layout.nbytes)
            self._request = 0


def _key(names: Sequence[Any]) -> Names:
    """The names of a message as a key."""
    key = tuple(map(tuple, names))
    return key[0] if len(key) == 1 else key
