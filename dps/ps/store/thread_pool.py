"""Threads that share one long pass over memory, while the machine has cores for them."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from dps.process.config import AUTO, cores
from dps.transport.tuning import ORDINARY, StoreTuning

LOADAVG = "/proc/loadavg"
"""On Linux: load over 1, 5 and 15 minutes, then "running/all" tasks of the machine now, then a process number; see
proc_loadavg(5). The kernel answers in 2 µs, without an average: running are those that have a processor or want one."""


def free_cores() -> Callable[[], int] | None:
    """A function that returns how many processors are idle: those that this process may use, less the tasks that run.
    The caller's own thread is one of these tasks. Below 0: some tasks wait for a processor. If a process may use only
    some processors, tasks on the others are counted, too, so the result is never too high. None if the system cannot
    tell.
    """
    descriptor, own = _loadavg(), cores()
    if descriptor is None:
        return None

    def free() -> int:
        return own - running(os.pread(descriptor, 64, 0))

    return free


def running(text: bytes) -> int:
    """The number of tasks that run, according to /proc/loadavg."""
    return int(text.split(b"/", 1)[0].rsplit(b" ", 1)[1])


@functools.cache
def _loadavg() -> int | None:
    """A descriptor that stays open, because its users do not end at the same time. None if the system's count does not
    have at least this thread in it, as in containers that make the file up."""
    try:
        descriptor = os.open(LOADAVG, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if running(os.pread(descriptor, 64, 0)) >= 1:
            return descriptor
    except (OSError, ValueError, IndexError, AttributeError):  # no pread on Windows, which has no such file either
        pass
    os.close(descriptor)
    return None


Work = Callable[[int, int], bool]


class ThreadPool:
    """The caller's thread and helpers take pieces of a pass until none is left. Each takes the next piece when it is
    ready. So a helper that does not start costs nothing, and a helper whose core is taken away delays at most one
    piece. Pieces should be compiled code that does not hold the GIL, and take far longer than waking a thread (about 50
    µs).
    """

    def __init__(
        self, threads: int, free: Callable[[], int] | None = None, tuning: StoreTuning = ORDINARY.store
    ) -> None:
        """`threads`: how many take part, including the caller's. The others start when they are first called. `free`: a
        function that returns the number of idle cores, as `free_cores` makes it. It is called before each piece:
        helpers are called while cores are idle, and leave when other tasks wait for their cores. None: all helpers take
        part in each pass.
        """
        self.threads, self._free, self._tuning = threads, free, tuning
        self._orders: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._helpers: list[threading.Thread] = []

    def share_pass(self, size: int, least: int, work: Work) -> bool:
        """Call `work(start, stop)` for ranges of about `least` elements and more that cover 0 to `size`, in any order,
        some at the same time. Returns whether all calls returned True. Blocks. Raises what a call raised, after all
        have ended.
        """
        if self._free is not None and size <= self._tuning.pool_alone * least and self._free() < 1:
            return work(0, size)
        shared = _Pass(size, least, work, self._tuning)
        self._call_helpers(shared)
        while shared.work_on_one():
            self._call_helpers(shared)
        shared.wait()
        if shared.error is not None:
            raise shared.error
        return shared.good

    def _call_helpers(self, shared: _Pass) -> None:
        """Call as many helpers to a pass as there are idle cores; none while some have not started yet."""
        absent = self.threads - 1 - shared.helpers
        if absent <= 0 or not shared.left or not self._orders.empty():
            return
        wanted = absent if self._free is None else min(absent, self._free())
        if wanted > 0:
            self._start()
        for _ in range(wanted):
            shared.add_helper()
            self._orders.put(lambda: shared.work_as_helper(self._free))

    def _start(self) -> None:
        while len(self._helpers) < self.threads - 1:
            helper = threading.Thread(target=self._run_helper, name=f"pool {len(self._helpers)}", daemon=True)
            helper.start()
            self._helpers.append(helper)

    def close(self) -> None:
        """End the helpers."""
        for _ in self._helpers:
            self._orders.put(None)
        self._helpers.clear()

    def _run_helper(self) -> None:
        while (order := self._orders.get()) is not None:
            order()
            del order  # and with it the memory that the pass was over


class _Pass:
    """One pass: the elements that no thread has begun, and how many threads work on a piece."""

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
        """How many elements no thread has begun."""
        return self._size - self._next

    def add_helper(self) -> None:
        """A helper was called."""
        with self._lock:
            self.helpers += 1

    def work_as_helper(self, free: Callable[[], int] | None) -> None:
        """Work on pieces until none is left, or others have waited for a core for more than a moment."""
        crowded = 0
        while crowded < self._tuning.pool_crowded and self.work_on_one():
            crowded = crowded + 1 if free is not None and free() < 0 else 0
        with self._lock:
            self.helpers -= 1

    def work_on_one(self) -> bool:
        """Work on the next piece; False if there is none."""
        with self._lock:
            start, stop = self._next, self._next_end()
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

    def _next_end(self) -> int:
        """The end of the next piece.

        Pieces become smaller, so that all threads end at about the same time: the caller waits for a helper that has
        lost its core only if that one has become three times slower. If there are no helpers, pieces are larger,
        because each costs about 60 µs: Python's data have left the caches by then. The first pieces are not larger,
        because the session that asked for the pass may only be about to wait, and its core then becomes idle.
        """
        alone, grain = self._tuning.pool_alone, self._tuning.pool_grain
        if self.helpers:
            wanted = self.left // (2 * (1 + self.helpers))
        else:
            wanted = min(max(alone // 4 * self._least, 3 * self._next), 2 * alone * self._least)
        return min(self._size, self._next + -(-max(self._least, wanted) // grain) * grain)

    def wait(self) -> None:
        """Wait until all pieces that were begun have ended. Blocks."""
        with self._lock:
            while self._at_work:
                self._lock.wait()


def pool_of(threads: int, tuning: StoreTuning = ORDINARY.store) -> ThreadPool | None:
    """The pool of a ps with this setting for its threads; None if its own thread does all. AUTO: up to
    `tuning.pool_threads` threads, while cores are idle; no pool if the system cannot tell how many are.
    """
    most = min(tuning.pool_threads, cores() if threads == AUTO else threads)
    if threads != AUTO:
        return ThreadPool(threads, tuning=tuning) if most > 1 else None
    if most < 2:
        return None
    free = free_cores()
    return None if free is None else ThreadPool(most, free=free, tuning=tuning)
