"""Models the machines under simulated processes: cores, the cost of a message, and network cards."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from random import Random

from dps.transport.sim.network import Card
from dps.transport.sim.scheduler import Scheduler, SimTask


@dataclass(frozen=True, slots=True)
class Handling:
    """Core seconds for each message that a process receives or sends, and for each byte of it."""

    received_s: float = 0.0
    received_byte_s: float = 0.0
    sent_s: float = 0.0
    sent_byte_s: float = 0.0

    def __post_init__(self) -> None:
        if min(self.received_s, self.received_byte_s, self.sent_s, self.sent_byte_s) < 0:
            raise ValueError(f"{self}: wanted 0 or more seconds")


NOTHING = Handling()
SLICE_S = 3e-3
"""How long a process keeps a core that others wait for; the default of Linux."""


@dataclass(frozen=True, slots=True)
class Machines:
    """The machines of a world. `shared`: all processes are on one machine with `cores` cores; else each has its own.

    A task that computes, receives or sends waits for a core and holds it until it is done. `handling` is the cost of a
    message, by task ("ps:0") or job ("ps"); other tasks handle messages at no cost. A process that was off the cores
    finds cold caches: `rested` gives points (seconds off the cores, additional seconds of its next work), with linear
    interpolation. `bytes_per_s` is the rate of a machine's network card, for each direction: all of its links queue
    there. Messages within a process or machine do not pass it.
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
        """Additional seconds of work after `rest_s` seconds off the cores."""
        if not self.rested or rest_s <= self.rested[0][0]:
            return self.rested[0][1] if self.rested else 0.0
        for (x0, y0), (x1, y1) in pairwise(self.rested):
            if rest_s <= x1:
                return y0 + (y1 - y0) * (rest_s - x0) / (x1 - x0)
        return self.rested[-1][1]

    def of(self, task: str) -> Handling:
        """The cost of a task's messages."""
        found = self.handling.get(task)
        return self.handling.get(task.partition(":")[0], NOTHING) if found is None else found


class Core:
    """One core: the last process on it, and since when that has run without a break."""

    __slots__ = ("busy", "free_since", "process", "since")

    def __init__(self) -> None:
        self.busy = False
        self.process = ""
        self.since = self.free_since = 0.0


class Cores:
    """The cores of one machine. A process keeps its core while it has work, but only for SLICE_S if others wait.
    Otherwise requests are served in order, if possible on the core that the process used last."""

    def __init__(self, scheduler: Scheduler, machines: Machines) -> None:
        self.used_s = 0.0
        """Core seconds spent so far, in total."""
        self._scheduler = scheduler
        self._machines = machines
        self._last: dict[str, float] = {}
        """When each process was last on a core."""
        self._cores = [Core() for _ in range(machines.cores)]
        self._waiting: deque[tuple[SimTask, float]] = deque()

    def spend(self, seconds: float) -> None:
        """Give the current task a core for some seconds, after which it continues. Blocks."""
        if seconds <= 0:
            return
        task = self._scheduler.task()
        free = [core for core in self._cores if not core.busy]
        if free:
            self._begin_task(task, seconds, free)
        else:
            self._waiting.append((task, seconds))
        self._scheduler.hand_over()

    def _begin_task(self, task: SimTask, seconds: float, free: list[Core]) -> None:
        process, now = task.group.name, self._scheduler.now
        core = next((core for core in free if core.process == process), free[0])
        if core.process != process or core.free_since < now:
            core.process, core.since = process, now
        seconds += self._machines.after_rest(now - self._last.get(process, now))
        self._last[process] = now + seconds
        core.busy = True
        self.used_s += seconds
        self._scheduler.push(now + seconds, self._end_slice, (core, task))

    def _end_slice(self, what: tuple[Core, SimTask]) -> None:
        """A task has used its time. It may request more at once, and gets it while its slice lasts."""
        core, task = what
        core.busy, core.free_since = False, self._scheduler.now
        if self._scheduler.now - core.since >= SLICE_S:
            self._serve()
        self._scheduler.resume(task)
        self._serve()

    def _serve(self) -> None:
        """Give free cores to waiting tasks; skip those that have ended."""
        while self._waiting and (free := [core for core in self._cores if not core.busy]):
            task, seconds = self._waiting.popleft()
            if task.alive:
                self._begin_task(task, seconds, free)


class Rack:
    """The machines of one world while it runs: the cores and cards of each process."""

    def __init__(self, machines: Machines, scheduler: Scheduler) -> None:
        self.machines = machines
        self._scheduler = scheduler
        self._cores: dict[str, Cores] = {}
        self._cards: dict[tuple[str, str], Card] = {}

    def cores(self, process: str) -> Cores:
        """The cores of a process's machine, which is the same in all its lives."""
        name = "" if self.machines.shared else process
        found = self._cores.get(name)
        if found is None:
            found = self._cores[name] = Cores(self._scheduler, self.machines)
        return found

    def cards(self, source: str, target: str) -> tuple[Card, Card] | None:
        """The cards that a message passes: the source's outward, the target's inward; None within a machine."""
        if self.machines.shared or self.machines.bytes_per_s == inf or source == target:
            return None
        return self._card(source, "out"), self._card(target, "in")

    def _card(self, process: str, way: str) -> Card:
        found = self._cards.get((process, way))
        if found is None:
            found = self._cards[process, way] = Card(self.machines.bytes_per_s)
        return found


class MessageCosts:
    """The costs of one process's messages on its machine."""

    __slots__ = ("cores", "handling")

    def __init__(self, rack: Rack, process: str) -> None:
        self.cores = rack.cores(process)
        self.handling = rack.machines.of(process)

    def received(self, nbytes: int) -> None:
        """Spend the time for a received message. Blocks."""
        self.cores.spend(self.handling.received_s + self.handling.received_byte_s * nbytes)

    def sent(self, nbytes: int) -> None:
        """Spend the time for a message to send. Blocks."""
        self.cores.spend(self.handling.sent_s + self.handling.sent_byte_s * nbytes)


@dataclass(frozen=True, slots=True)
class Compute:
    """How much virtual time a computing step takes.

    Args:
        seconds: The length of a step.
        jitter: A step is longer or shorter by up to this share; from 0 to 1.
        slow: Factors for slow tasks, by name ("worker:3", "ps:0") or, for workers, by index (3).

    Raises:
        ValueError: A number out of range.

    Example:
        ```pycon
        >>> dps.sim.Compute(seconds=0.1, slow={3: 10.0}).step_s(seed=0, task="worker:3", step=0)
        1.0
        ```
    """

    seconds: float = 0.0
    jitter: float = 0.0
    slow: Mapping[int | str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.seconds < 0 or not 0 <= self.jitter <= 1:
            raise ValueError(
                f"Compute(seconds={self.seconds}, jitter={self.jitter}): wanted seconds >= 0 and 0 <= jitter <= 1"
            )

    def step_s(self, seed: int | str, task: str, step: int) -> float:
        """How long one step takes; the same for the same arguments.

        Args:
            seed: The world's seed.
            task: The task's name.
            step: The number of the step, from 0.

        Returns:
            Virtual seconds.
        """
        factor = self.slow.get(task)
        if factor is None:
            job, _, index = task.partition(":")
            factor = self.slow.get(int(index), 1.0) if job == "worker" and index.isdecimal() else 1.0
        jitter = self.jitter * Random(f"{seed}/compute/{task}/{step}").uniform(-1.0, 1.0) if self.jitter else 0.0
        return self.seconds * (1.0 + jitter) * factor
