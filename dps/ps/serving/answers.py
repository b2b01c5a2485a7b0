"""Memory from which one session on this machine reads the rows that it looked up.

Only the ps writes it. The answer to a lookup stays as it is until the session says, with a later lookup, that it has
read all answers below a number. Then the memory is used again. It is never given to another session, not even when its
session ends, because a session that was given up as lost may still read.
"""

from __future__ import annotations

from dps.errors import Unavailable
from dps.protocol import SharedRows
from dps.transport.endpoint import Memory, Runtime


class Answers:
    """The answers that one session may be reading now."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._tuning = runtime, runtime.tuning.serving
        self._given: dict[int, tuple[SharedRows, Memory]] = {}
        self._free: list[Memory] = []
        self._below = 0

    def released(self, below: int) -> None:
        """The session has read all answers to requests below this number, or will never read them."""
        self._below = max(self._below, below)
        for over in [n for n in self._given if n < self._below]:
            self._free.append(self._given.pop(over)[1])

    def is_over(self, number: int) -> bool:
        """Whether a request is out of date: its session has an answer, or waits no more."""
        return number < self._below

    def of(self, number: int) -> SharedRows | None:
        """The earlier answer to this request, if there is one."""
        found = self._given.get(number)
        return None if found is None else found[0]

    def take(self, nbytes: int) -> Memory | None:
        """Memory to write an answer into; None if there is none."""
        fits = [memory for memory in self._free if len(memory.array) >= nbytes]
        if fits:
            found = min(fits, key=lambda memory: len(memory.array))
            self._free.remove(found)
            return found
        size = max(self._tuning.answer_nbytes, 1 << (nbytes - 1).bit_length())
        self._free.clear()  # too small ones; what somebody may read is not among them
        held = [len(memory.array) for _, memory in self._given.values()]
        if len(held) >= self._tuning.answers or sum(held) + size > self._tuning.answers_nbytes:
            return None
        try:
            return self._runtime.share(size)
        except Unavailable:
            return None

    def give(self, number: int, answer: SharedRows, memory: Memory) -> None:
        """A request is answered with the contents of a memory from `take`."""
        self._given[number] = (answer, memory)
