"""Threads that share one long pass over memory, while the machine has cores for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from dps.config import AUTO, cores
from dps.ps.store.free_cores import free_cores
from dps.transport.tuning import ORDINARY, StoreTuning

Work = Callable[[int, int], bool]


class Crew:
    """The caller's thread and helpers take pieces of a pass until none is left.

    Whoever is ready takes the next piece, so a helper that does not come costs nothing, and one whose core is taken
    away at most the piece that it holds. Pieces are worth it where they are compiled code that does not hold the GIL,
    and take far longer than a thread's waking (some 50 µs).
    """

    def __init__(
        self, threads: int, free: Callable[[], int] | None = None, tuning: StoreTuning = ORDINARY.store
    ) -> None:
        """`threads`: how many take part, the caller's own among them. The others start when they are first called.

        `free`: how many cores have nothing to do, as `free_cores` says it. It is asked before each piece: helpers are
        called while there are some, and go when others wait for theirs. None: all helpers take part in each pass.
        """
        self.threads, self._free, self._tuning = threads, free, tuning
        self._orders: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._helpers: list[threading.Thread] = []

    def share(self, size: int, least: int, work: Work) -> bool:
        """Call `work(start, stop)` for ranges of about `least` and more that cover 0 to `size`, in any order, some at
        once; whether all gave True. Blocks.

        Raises what a piece raised; all have ended by then.
        """
        if self._free is not None and size <= self._tuning.crew_alone * least and self._free() < 1:
            return work(0, size)
        shared = _Pass(size, least, work, self._tuning)
        self._call(shared)
        while shared.work_on_one():
            self._call(shared)
        shared.wait()
        if shared.error is not None:
            raise shared.error
        return shared.good

    def _call(self, shared: _Pass) -> None:
        """Call helpers to a pass: as many as there are cores for; none while some have not come yet."""
        absent = self.threads - 1 - shared.helpers
        if absent <= 0 or not shared.left or not self._orders.empty():
            return
        wanted = absent if self._free is None else min(absent, self._free())
        if wanted > 0:
            self._start()
        for _ in range(wanted):
            shared.called()
            self._orders.put(lambda: shared.help(self._free))

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
    """One pass: what of it nobody has begun, and how many are at work on a piece."""

    def __init__(self, size: int, least: int, work: Work, tuning: StoreTuning) -> None:
        self._tuning = tuning
        self._next, self._size, self._least, self._work = 0, size, least, work
        self._lock = threading.Condition()
        self._at_work = 0
        self.helpers = 0
        self.good = True
        self.error: BaseException | None = None

    @property
    def left(self) -> int:
        """Elements that nobody has begun."""
        return self._size - self._next

    def called(self) -> None:
        """Somebody was called."""
        with self._lock:
            self.helpers += 1

    def help(self, free: Callable[[], int] | None) -> None:
        """Work on pieces until none is left, or others have waited for a core for more than a moment."""
        crowded = 0
        while crowded < self._tuning.crew_crowded and self.work_on_one():
            crowded = crowded + 1 if free is not None and free() < 0 else 0
        with self._lock:
            self.helpers -= 1

    def work_on_one(self) -> bool:
        """Work on the next piece; False where there is none."""
        with self._lock:
            start, stop = self._next, self._end()
            if start == stop:
                return False
            self._next = stop
            self._at_work += 1
        try:
            good, error = self._work(start, stop), None
        except BaseException as raised:
            good, error = False, raised
        with self._lock:
            self.good &= good
            self.error = error or self.error
            self._at_work -= 1
            if not self._at_work:
                self._lock.notify_all()
        return True

    def _end(self) -> int:
        """Where the next piece ends.

        Pieces become smaller, so that all end at about the same time: before the caller waits for a helper that has
        lost its core to others, that one must have become three times slower. Where nobody helps they are larger, for
        each costs some 60 µs: Python has left the caches by then. The first ones are not, for whoever asked for the
        pass may only be about to wait for it.
        """
        alone, grain = self._tuning.crew_alone, self._tuning.crew_grain
        if self.helpers:
            wanted = self.left // (2 * (1 + self.helpers))
        else:
            wanted = min(max(alone // 4 * self._least, 3 * self._next), 2 * alone * self._least)
        return min(self._size, self._next + -(-max(self._least, wanted) // grain) * grain)

    def wait(self) -> None:
        """Until all that were begun have ended. Blocks."""
        with self._lock:
            while self._at_work:
                self._lock.wait()


def crew_of(threads: int, tuning: StoreTuning = ORDINARY.store) -> Crew | None:
    """The crew of a ps that was given so many threads, or AUTO; None where its own thread does all.

    AUTO: up to `tuning.crew_threads`, while cores are free; none if the system cannot tell how many are.
    """
    most = min(tuning.crew_threads, cores() if threads == AUTO else threads)
    if threads != AUTO:
        return Crew(threads, tuning=tuning) if most > 1 else None
    if most < 2:
        return None
    free = free_cores()
    return None if free is None else Crew(most, free=free, tuning=tuning)
