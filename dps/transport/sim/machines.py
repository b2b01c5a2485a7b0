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
SLICE_S = 3e-3
"""How long a process keeps a core that others wait for, as Linux has it by default."""


@dataclass(frozen=True, slots=True)
class Machines:
    """What processes run on. `shared`: all on one machine with so many `cores`; else each has a machine of its own.

    A task that computes, receives or sends waits its turn for a core and holds it until it is done. `handling` is what
    messages cost, by task ("ps:0") or job ("ps"); who is not named handles them at once. A core that takes up
    another process than the last one needs up to `switch_s` more, where its caches are full of others' memory: they
    hold that of `holds` processes besides; the more others it worked for meanwhile, the less is left. `bytes_per_s`
    is what a machine's network card takes and, at the same time, gives: all of its links queue there. Messages within
    a process or machine do not pass it.
    """

    cores: int = 1
    shared: bool = False
    handling: Mapping[str, Handling] = field(default_factory=dict)
    bytes_per_s: float = inf
    switch_s: float = 0.0
    holds: int = 0

    def __post_init__(self) -> None:
        if self.cores < 1 or self.bytes_per_s <= 0 or self.switch_s < 0 or self.holds < 0:
            raise ValueError(
                f"Machines(cores={self.cores}, bytes_per_s={self.bytes_per_s}, switch_s={self.switch_s}, "
                f"holds={self.holds}): wanted at least one core, bytes_per_s > 0 and nothing below 0"
            )

    def of(self, task: str) -> Handling:
        """What messages cost a task."""
        found = self.handling.get(task)
        return self.handling.get(task.partition(":")[0], NOTHING) if found is None else found


class Core:
    """One core: the processes it worked for, the last one first, and since when without a break for that one."""

    __slots__ = ("_holds", "_recent", "busy", "free_since", "since")

    def __init__(self, holds: int) -> None:
        self.busy = False
        self.since = self.free_since = 0.0
        self._holds = holds
        self._recent: list[str] = []

    def lost(self, process: str) -> float:
        """Which share of a process's memory the caches have lost, 0 to 1; nothing on a core that is new."""
        recent = self._recent
        others = recent.index(process) if process in recent else len(recent) and self._holds + 1
        return min(1.0, max(0, others - 1) / self._holds) if self._holds else min(1.0, others)

    def take_up(self, process: str, now: float) -> None:
        """Begin with a process, or go on with the same."""
        recent = self._recent
        if not recent or recent[0] != process:
            if process in recent:
                recent.remove(process)
            recent.insert(0, process)
            del recent[self._holds + 2 :]
            self.since = now
        elif self.free_since < now:
            self.since = now
        self.busy = True


class Cores:
    """The cores of one machine. A process keeps its core while it has work at once, but for SLICE_S where others wait;
    else who asked first has one first, of those that are free the one whose caches have most of its memory."""

    def __init__(self, scheduler: Scheduler, machines: Machines) -> None:
        self.used_s = 0.0
        """Seconds of cores that were spent so far, over all."""
        self._scheduler = scheduler
        self._switch_s = machines.switch_s
        self._cores = [Core(machines.holds) for _ in range(machines.cores)]
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
        core = min(free, key=lambda core: core.lost(process))
        seconds += self._switch_s * core.lost(process)
        core.take_up(process, now)
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
