"""Models the machines under simulated processes: cores, the cost of a message, and network cards."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from dps.transport.sim.network import Card
from dps.transport.sim.scheduler import Scheduler, SimTask


@dataclass(frozen=True, slots=True)
class Handling:
    """Seconds of a core for each message that a process receives or sends, and for each byte of it."""

    received_s: float = 0.0
    received_byte_s: float = 0.0
    sent_s: float = 0.0
    sent_byte_s: float = 0.0

    def __post_init__(self) -> None:
        if min(self.received_s, self.received_byte_s, self.sent_s, self.sent_byte_s) < 0:
            raise ValueError(f"{self}: wanted 0 or more seconds")


NOTHING = Handling()
SLICE_S = 3e-3
"""How long a process keeps a core that others wait for, as Linux has it by default."""


@dataclass(frozen=True, slots=True)
class Machines:
    """What processes run on. `shared`: all on one machine with so many `cores`; else each has a machine of its own.

    A task that computes, receives or sends waits its turn for a core and holds it until it is done. `handling` is what
    messages cost, by task ("ps:0") or job ("ps"); who is not named handles them at once. A process that
    has rested finds its memory in no cache any more: `rested` says by points (seconds off the cores, seconds more) how
    long its next piece of work takes beside, on straight lines between them. `bytes_per_s` is what a machine's network
    card takes and, at the same time, gives: all of its links queue there. Messages within a process or machine do not
    pass it.
    """

    cores: int = 1
    shared: bool = False
    handling: Mapping[str, Handling] = field(default_factory=dict)
    bytes_per_s: float = inf
    rested: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if self.cores < 1 or self.bytes_per_s <= 0:
            raise ValueError(
                f"Machines(cores={self.cores}, bytes_per_s={self.bytes_per_s}): wanted more than 0 of each"
            )
        times = [time_s for time_s, _ in self.rested]
        if times != sorted(set(times)) or min(map(min, self.rested), default=0) < 0:
            raise ValueError(f"Machines(rested={self.rested}): wanted rising times, and nothing below 0")

    def after_rest(self, rest_s: float) -> float:
        """Seconds that work takes beside, after so many seconds off the cores."""
        if not self.rested or rest_s <= self.rested[0][0]:
            return self.rested[0][1] if self.rested else 0.0
        for (x0, y0), (x1, y1) in pairwise(self.rested):
            if rest_s <= x1:
                return y0 + (y1 - y0) * (rest_s - x0) / (x1 - x0)
        return self.rested[-1][1]

    def of(self, task: str) -> Handling:
        """What messages cost a task."""
        found = self.handling.get(task)
        return self.handling.get(task.partition(":")[0], NOTHING) if found is None else found


class Core:
    """One core: the process it worked for last, and since when without a break."""

    __slots__ = ("busy", "free_since", "process", "since")

    def __init__(self) -> None:
        self.busy = False
        self.process = ""
        self.since = self.free_since = 0.0


class Cores:
    """The cores of one machine. A process keeps its core while it has work at once, but for SLICE_S where others wait;
    else who asked first has one first, the one that worked for its process last if that is free."""

    def __init__(self, scheduler: Scheduler, machines: Machines) -> None:
        self.used_s = 0.0
        """Seconds of cores that were spent so far, over all."""
        self._scheduler = scheduler
        self._machines = machines
        self._last: dict[str, float] = {}
        """When each process was on a core last."""
        self._cores = [Core() for _ in range(machines.cores)]
        self._waiting: deque[tuple[SimTask, float]] = deque()

    def spend(self, seconds: float) -> None:
        """Let the present task have a core for some seconds; it goes on when they are over. Blocks."""
        if seconds <= 0:
            return
        task = self._scheduler.task()
        free = [core for core in self._cores if not core.busy]
        if free:
            self._begin(task, seconds, free)
        else:
            self._waiting.append((task, seconds))
        self._scheduler.hand_over()

    def _begin(self, task: SimTask, seconds: float, free: list[Core]) -> None:
        process, now = task.group.name, self._scheduler.now
        core = next((core for core in free if core.process == process), free[0])
        if core.process != process or core.free_since < now:
            core.process, core.since = process, now
        seconds += self._machines.after_rest(now - self._last.get(process, now))
        self._last[process] = now + seconds
        core.busy = True
        self.used_s += seconds
        self._scheduler.push(now + seconds, self._over, (core, task))

    def _over(self, what: tuple[Core, SimTask]) -> None:
        """A task has had its time; it may ask for more at once, and gets it while its slice lasts."""
        core, task = what
        core.busy, core.free_since = False, self._scheduler.now
        if self._scheduler.now - core.since >= SLICE_S:
            self._serve()
        self._scheduler.resume(task)
        self._serve()

    def _serve(self) -> None:
        """Give free cores to those who wait. Who ended meanwhile gives up its turn."""
        while self._waiting and (free := [core for core in self._cores if not core.busy]):
            task, seconds = self._waiting.popleft()
            if task.alive:
                self._begin(task, seconds, free)


class Rack:
    """The machines of one world while it runs: the cores and cards of each process."""

    def __init__(self, machines: Machines, scheduler: Scheduler) -> None:
        self.machines = machines
        self._scheduler = scheduler
        self._cores: dict[str, Cores] = {}
        self._cards: dict[tuple[str, str], Card] = {}

    def cores(self, process: str) -> Cores:
        """Of the machine that a process is on, through all its lives."""
        name = "" if self.machines.shared else process
        found = self._cores.get(name)
        if found is None:
            found = self._cores[name] = Cores(self._scheduler, self.machines)
        return found

    def cards(self, source: str, target: str) -> tuple[Card, Card] | None:
        """What a message passes: the source's card outward, the target's inward; None where it stays on a machine."""
        if self.machines.shared or self.machines.bytes_per_s == inf or source == target:
            return None
        return self._card(source, "out"), self._card(target, "in")

    def _card(self, process: str, way: str) -> Card:
        found = self._cards.get((process, way))
        if found is None:
            found = self._cards[process, way] = Card(self.machines.bytes_per_s)
        return found


class Work:
    """What one process may do with its machine: to be asked for each message."""

    __slots__ = ("cores", "handling")

    def __init__(self, rack: Rack, process: str) -> None:
        self.cores = rack.cores(process)
        self.handling = rack.machines.of(process)

    def received(self, nbytes: int) -> None:
        """Pay for a message that was taken. Blocks."""
        self.cores.spend(self.handling.received_s + self.handling.received_byte_s * nbytes)

    def sent(self, nbytes: int) -> None:
        """Pay for a message that is to be sent. Blocks."""
        self.cores.spend(self.handling.sent_s + self.handling.sent_byte_s * nbytes)
