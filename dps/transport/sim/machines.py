"""The machines that simulated processes run on: cores to wait for, what a message costs there, and network cards."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Machines:
    """What processes run on. `shared`: all on one machine with so many `cores`; else each has a machine of its own.

    A task that computes, receives or sends waits its turn for a core and holds it until it is done. `handling` is what
    messages cost, by task ("ps:0") or job ("ps"); who is not named handles them at once. `bytes_per_s` is what a
    machine's network card takes and, at the same time, gives: all of its links queue there. Messages within a process
    or machine do not pass it.
    """

    cores: int = 1
    shared: bool = False
    handling: Mapping[str, Handling] = field(default_factory=dict)
    bytes_per_s: float = inf

    def __post_init__(self) -> None:
        if self.cores < 1 or self.bytes_per_s <= 0:
            raise ValueError(
                f"Machines(cores={self.cores}, bytes_per_s={self.bytes_per_s}): wanted more than 0 of each"
            )

    def of(self, task: str) -> Handling:
        """What messages cost a task."""
        found = self.handling.get(task)
        return self.handling.get(task.partition(":")[0], NOTHING) if found is None else found


class Cores:
    """The cores of one machine: who asks first has one first, and keeps it for as long as was asked."""

    def __init__(self, scheduler: Scheduler, count: int) -> None:
        self.used_s = 0.0
        """Seconds of cores that were spent so far, over all."""
        self._scheduler = scheduler
        self._free = count
        self._waiting: deque[tuple[SimTask, float]] = deque()

    def spend(self, seconds: float) -> None:
        """Let the present task have a core for some seconds; it goes on when they are over. Blocks."""
        if seconds <= 0:
            return
        task = self._scheduler.task()
        if self._free:
            self._begin(task, seconds)
        else:
            self._waiting.append((task, seconds))
        self._scheduler.hand_over()

    def _begin(self, task: SimTask, seconds: float) -> None:
        self._free -= 1
        self.used_s += seconds
        self._scheduler.push(self._scheduler.now + seconds, self._over, task)

    def _over(self, task: SimTask) -> None:
        """A task has had its time. Those that ended meanwhile give up their turn, but not a core they had."""
        self._free += 1
        while self._waiting and self._free:
            following, seconds = self._waiting.popleft()
            if following.alive:
                self._begin(following, seconds)
        self._scheduler.resume(task)


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
            found = self._cores[name] = Cores(self._scheduler, self.machines.cores)
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
