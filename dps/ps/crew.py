"""Threads that share one long pass over memory, where the machine has cores for them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from queue import SimpleQueue


class Crew:
    """The caller's thread and helpers take pieces of a pass until none is left.

    Whoever is ready takes the next piece, so a helper whose core is busy costs at most the piece that it holds. Pieces
    are worth it where they are compiled code that does not hold the GIL, and take far longer than a thread's waking
    (some 50 µs).
    """

    def __init__(self, threads: int, waits: bool = True) -> None:
        """`threads`: how many take part, the caller's own among them. The others start with the first pass.

        `waits`: whether passes may be shared that the caller has to wait for. Without it helpers get only what the
        caller can do itself meanwhile, so that none of them can hold it up: see `beside`.
        """
        self.threads, self.waits = threads, waits
        self._orders: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._helpers: list[threading.Thread] = []

    def share(self, pieces: int, work: Callable[[int], bool]) -> bool:
        """Call `work(0)` to `work(pieces - 1)`, in any order, some at once; whether all gave True. Blocks.

        Raises what a piece raised; all of them have ended by then.
        """
        self._start()
        shared = _Pass(pieces, work)
        for _ in range(min(len(self._helpers), pieces - 1)):
            self._orders.put(shared.take_part)
        shared.take_part()
        shared.ended.wait()
        if shared.error is not None:
            raise shared.error
        return shared.good

    def beside(self, work: Callable[[], object]) -> None:
        """Have a helper call `work`, whenever it comes to it. Does not wait, nor does anybody learn when it has ended.

        Where no helper has even come to the last such order, it is not given another one.
        """
        self._start()
        if self._orders.empty():
            self._orders.put(work)

    def _start(self) -> None:
        while len(self._helpers) < self.threads - 1:
            helper = threading.Thread(target=self._help, name=f"crew {len(self._helpers)}", daemon=True)
            helper.start()
            self._helpers.append(helper)

    def close(self) -> None:
        """Let the helpers go."""
        for _ in self._helpers:
            self._orders.put(None)
        self._helpers.clear()

    def _help(self) -> None:
        while (order := self._orders.get()) is not None:
            order()
            del order  # and with it the memory that the pass was over


class _Pass:
    """One pass: which piece is next, how many have not ended."""

    def __init__(self, pieces: int, work: Callable[[int], bool]) -> None:
        self._pieces, self._work = pieces, work
        self._next = itertools.count()
        self._left, self._lock = pieces, threading.Lock()
        self.ended = threading.Event()
        self.good = True
        self.error: BaseException | None = None
        if not pieces:
            self.ended.set()

    def take_part(self) -> None:
        while (piece := next(self._next)) < self._pieces:
            try:
                good = self._work(piece)
            except BaseException as error:
                self.error, good = error, False
            with self._lock:
                self.good = self.good and good
                self._left -= 1
                if not self._left:
                    self.ended.set()
