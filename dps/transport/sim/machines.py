"""Models the machines under simulated processes: cores, the cost of a message, and network cards."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from random import Random
from typing import NamedTuple

from dps.transport.sim.network import Card
from dps.transport.sim.scheduler import Scheduler, SimTask, TaskGroup


@dataclass(frozen=True, slots=True)
class Handling:
    """Core seconds for each message that a process receives or sends, and for each byte of it.

    `call_s`: once for each push of a session. `beside`: the part of the costs of messages in which another thread of
    the process is at work, so that no message waits for it.
    """

    received_s: float = 0.0
    received_byte_s: float = 0.0
    sent_s: float = 0.0
    sent_byte_s: float = 0.0
    call_s: float = 0.0
    beside: float = 0.0

    def __post_init__(self) -> None:
        least = min(self.received_s, self.received_byte_s, self.sent_s, self.sent_byte_s, self.call_s)
        if least < 0 or not 0 <= self.beside <= 1:
            raise ValueError(f"{self}: wanted 0 or more seconds, and for beside 0 to 1")


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
    there; `cards` has other rates, by task or job, also for tasks of one machine that have cards of their own (network
    namespaces). Other messages within a machine pass none, and no message within a process does. An update takes
    `update_byte_s` for each byte of the gradient, by the number of the optimizer's slots; the last one is for more.
    """

    cores: int = 1
    shared: bool = False
    handling: Mapping[str, Handling] = field(default_factory=dict)
    bytes_per_s: float = inf
    rested: tuple[tuple[float, float], ...] = ()
    cards: Mapping[str, float] = field(default_factory=dict)
    update_byte_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.cores < 1 or min([self.bytes_per_s, *self.cards.values()]) <= 0:
            raise ValueError(
                f"Machines(cores={self.cores}, bytes_per_s={self.bytes_per_s}, cards={dict(self.cards)}): wanted more "
                "than 0 of each"
            )
        if min(self.update_byte_s, default=0.0) < 0:
            raise ValueError(f"Machines(update_byte_s={self.update_byte_s}): wanted 0 or more seconds")
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

    def card_of(self, task: str) -> float:
        """The rate of the network card of a task's machine, bytes per second."""
        found = self.cards.get(task)
        return self.cards.get(task.partition(":")[0], self.bytes_per_s) if found is None else found

    def update_s(self, nbytes: int, slots: int) -> float:
        """Core seconds of an update with so many bytes of gradient."""
        rates = self.update_byte_s
        return nbytes * rates[min(slots, len(rates) - 1)] if rates else 0.0


class Core:
    """One core: the last process on it, and since when that has run without a break."""

    __slots__ = ("busy", "free_since", "process", "since")

    def __init__(self) -> None:
        self.busy = False
        self.process = ""
        self.since = self.free_since = 0.0


class CoreTurn(NamedTuple):
    """A process's need of a core for some seconds. `task` continues afterwards; None: nobody waits for it."""

    process: TaskGroup
    task: SimTask | None
    seconds: float

    @property
    def counts(self) -> bool:
        """Whether it is still needed."""
        return self.process.alive if self.task is None else self.task.alive


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
        self._waiting: deque[CoreTurn] = deque()

    def spend(self, seconds: float) -> None:
        """Give the current task a core for some seconds, after which it continues. Blocks."""
        if seconds <= 0:
            return
        task = self._scheduler.task()
        self._request(task.group, task, seconds)
        self._scheduler.hand_over()

    def spend_beside(self, seconds: float) -> None:
        """Give another thread of the current task's process a core for some seconds. Does not block."""
        if seconds > 0:
            self._request(self._scheduler.task().group, None, seconds)

    def _request(self, group: TaskGroup, task: SimTask | None, seconds: float) -> None:
        free = [core for core in self._cores if not core.busy]
        turn = CoreTurn(group, task, seconds)
        if free:
            self._begin_turn(turn, free)
        else:
            self._waiting.append(turn)

    def _begin_turn(self, turn: CoreTurn, free: list[Core]) -> None:
        process, now, seconds = turn.process.name, self._scheduler.now, turn.seconds
        core = next((core for core in free if core.process == process), free[0])
        if core.process != process or core.free_since < now:
            core.process, core.since = process, now
        seconds += self._machines.after_rest(now - self._last.get(process, now))
        self._last[process] = now + seconds
        core.busy = True
        self.used_s += seconds
        self._scheduler.push(now + seconds, self._end_slice, (core, turn.task))

    def _end_slice(self, what: tuple[Core, SimTask | None]) -> None:
        """A task has used its time. It may request more at once, and gets it while its slice lasts."""
        core, task = what
        core.busy, core.free_since = False, self._scheduler.now
        if self._scheduler.now - core.since >= SLICE_S:
            self._serve()
        if task is not None:
            self._scheduler.resume(task)
        self._serve()

    def _serve(self) -> None:
        """Give free cores to waiting tasks; skip those that have ended."""
        while self._waiting and (free := [core for core in self._cores if not core.busy]):
            turn = self._waiting.popleft()
            if turn.counts:
                self._begin_turn(turn, free)


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
        machines = self.machines
        if source == target or not (machines.cards or (machines.bytes_per_s < inf and not machines.shared)):
            return None
        return self._card(source, "out"), self._card(target, "in")

    def _card(self, process: str, way: str) -> Card:
        found = self._cards.get((process, way))
        if found is None:
            found = self._cards[process, way] = Card(self.machines.card_of(process))
        return found


class MessageCosts:
    """The costs of one process's messages on its machine, and of its passes over memory. In shared memory no message
    has the bytes of values and gradients, so a pass over them costs what they would cost in messages."""

    __slots__ = ("cores", "handling", "machines", "shared_memory")

    def __init__(self, rack: Rack, process: str, shared_memory: bool = False) -> None:
        self.cores = rack.cores(process)
        self.machines = rack.machines
        self.handling = rack.machines.of(process)
        self.shared_memory = shared_memory

    def received(self, nbytes: int) -> None:
        """Spend the time for a received message. Blocks."""
        self._spend(self.handling.received_s + self.handling.received_byte_s * nbytes)

    def sent(self, nbytes: int) -> None:
        """Spend the time for a message to send. Blocks."""
        self._spend(self.handling.sent_s + self.handling.sent_byte_s * nbytes)

    def passed(self, work: str, nbytes: int, slots: int) -> None:
        """Spend the time for a pass over memory; see `Runtime.charge_pass`. Blocks."""
        if work == "update":
            self.cores.spend(self.machines.update_s(nbytes, slots))
        if self.shared_memory:
            of = self.handling
            self._spend(nbytes * (of.sent_byte_s if work == "gather" else of.received_byte_s))

    def _spend(self, seconds: float) -> None:
        beside = self.handling.beside
        if beside:
            self.cores.spend_beside(seconds * beside)
            seconds -= seconds * beside
        self.cores.spend(seconds)


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
        if not 0 <= self.seconds < inf or not 0 <= self.jitter <= 1:
            raise ValueError(
                f"Compute(seconds={self.seconds}, jitter={self.jitter}): wanted seconds >= 0 and 0 <= jitter <= 1"
            )
        if wrong := {task: factor for task, factor in self.slow.items() if not 0 <= factor < inf}:
            raise ValueError(f"Compute(slow={wrong}): wanted factors from 0")

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


def names_of_slow(compute: Compute) -> list[tuple[str, object]]:
    """The tasks that have a factor of their own, each with what names it."""
    tasks = [f"worker:{task}" if isinstance(task, int) else task for task in compute.slow]
    return [(task, f"Compute(slow={dict(compute.slow)})") for task in tasks]
