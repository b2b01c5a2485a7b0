"""A simulated world: processes, network, disk and faults on a virtual clock. The same seed repeats the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from random import Random
from types import TracebackType
from typing import Literal, Self

from dps.checkpoint.storage import Storage
from dps.transport.sim.connection import Cut
from dps.transport.sim.datagrams import SimulatedSockets
from dps.transport.sim.fabric import Fabric
from dps.transport.sim.machines import Compute, Machines, Rack, names_of_slow
from dps.transport.sim.network import Network, names_of_links
from dps.transport.sim.process import Main, SimProcess, SimulatedProcesses
from dps.transport.sim.runtime import SharedWorld
from dps.transport.sim.scheduler import Scheduler
from dps.transport.sim.storage import DiskFaults, SimulatedMemory
from dps.transport.sim.trace import Trace, TraceEvent
from dps.transport.tuning import Tuning


@dataclass(frozen=True, slots=True)
class Kill:
    """A process is killed, as by `kill -9`.

    Args:
        task: The task's name.
        at: When, in virtual seconds.
        restart_after: Seconds until it is started again. None: the process's own setting; `dps.simulate` restarts a ps
            or chief once, and a worker never.

    Example:
        ```pycon
        >>> dps.sim.Kill("ps:1", at=3.0)
        Kill(task='ps:1', at=3.0, restart_after=None)
        ```
    """

    task: str
    at: float
    restart_after: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """A process is stopped, as by SIGSTOP, and continues later. Messages for it wait.

    Args:
        task: The task's name.
        at: When, in virtual seconds.
        seconds: How long.

    Example:
        ```pycon
        >>> dps.sim.Pause("worker:0", at=1.0, seconds=5.0)
        Pause(task='worker:0', at=1.0, seconds=5.0)
        ```
    """

    task: str
    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Partition:
    """No message passes between some tasks and all others.

    Args:
        tasks: The name of a task, or several.
        at: When, in virtual seconds.
        seconds: How long.
        one_way: Whether only messages from `tasks` are lost.

    Example:
        ```pycon
        >>> dps.sim.Partition(("worker:0", "worker:1"), at=1.0, seconds=5.0).one_way
        False
        ```
    """

    tasks: str | tuple[str, ...]
    at: float
    seconds: float
    one_way: bool = False


@dataclass(frozen=True, slots=True)
class Slow:
    """A task computes more slowly, and its links have longer delays.

    Args:
        task: The task's name.
        at: When, in virtual seconds.
        seconds: How long.
        factor: How many times as slowly.

    Example:
        ```pycon
        >>> dps.sim.Slow("worker:2", at=1.0, seconds=5.0, factor=10.0).factor
        10.0
        ```
    """

    task: str
    at: float
    seconds: float
    factor: float


@dataclass(frozen=True, slots=True)
class SlowDisk:
    """Writes to storage take time.

    Args:
        at: When, in virtual seconds.
        seconds: How long.
        write_s: Virtual seconds of each write.

    Example:
        ```pycon
        >>> dps.sim.SlowDisk(at=1.0, seconds=5.0, write_s=0.5).write_s
        0.5
        ```
    """

    at: float
    seconds: float
    write_s: float


@dataclass(frozen=True, slots=True)
class DiskFull:
    """Writes to storage fail with ENOSPC.

    Args:
        at: When, in virtual seconds.
        seconds: How long.

    Example:
        ```pycon
        >>> dps.sim.DiskFull(at=1.0, seconds=5.0)
        DiskFull(at=1.0, seconds=5.0)
        ```
    """

    at: float
    seconds: float


Fault = Kill | Pause | Partition | Slow | SlowDisk | DiskFull


class World:
    """A simulation. Processes are added to it, and `run` runs its events.

    Belongs to one thread. Use it in a `with` block or `close` it: greenlets that still wait are never freed by
    themselves.

    Args:
        seed: Determines delays, losses and the order of simultaneous events.
        network: The properties of the links. None: `Network()`.
        compute: How long a step computes. None: no time.
        faults: What fails, and when. They name processes that exist at the first call of `run`.
        piece_nbytes: Large messages travel in pieces of this size; of `tuning`, where that is given.
        trace: Whether to record events. "all": also every message that arrives.
        storage: The disk that all processes share; it outlives them. None: one in memory.
        preempt: The probability that `Runtime.preempt` lets others run.
        preempt_s: For how long at most, in virtual seconds.
        clock_offsets: Whether the processes' monotonic clocks differ.
        shared_memory: Whether all processes are on one machine and one user's. Else each is on its own.
        memory_faults: The probability that shared memory cannot be had, or not be reached.
        datagrams: Whether, on one machine, small messages travel as datagrams between tasks that know each other.
        machines: The cores that computing and messages need. None: unlimited cores.
        steps_at_one_instant: How many events may happen while the clock stands still, before `run` raises
            SimulationError.
        tuning: The sizes and times that dps decides by. None: small ones, some of them chosen by the seed.

    Example:
        ```pycon
        >>> with dps.sim.World(seed=7) as world:
        ...     process = world.process("worker:0", lambda: 3)
        ...     world.run(until_s=60.0)
        >>> process.exit_code
        3
        ```
    """

    def __init__(
        self,
        seed: int | str = 0,
        network: Network | None = None,
        compute: Compute | None = None,
        faults: Sequence[Fault] = (),
        piece_nbytes: int = 64,
        trace: bool | Literal["all"] = True,
        *,
        storage: Storage | None = None,
        preempt: float = 0.1,
        preempt_s: float = 100e-6,
        clock_offsets: bool = True,
        shared_memory: bool = False,
        memory_faults: float = 0.0,
        datagrams: bool = True,
        machines: Machines | None = None,
        steps_at_one_instant: int = 1_000_000,
        tuning: Tuning | None = None,
    ) -> None:
        # More than 9 parameters: this is a public signature, and each is a setting that people give by its name.
        self.seed = seed
        self._scheduler = Scheduler(seed, steps_at_one_instant)
        self._trace = Trace(record=bool(trace), deliveries=trace == "all")
        self._rack = rack = None if machines is None else Rack(machines, self._scheduler)
        self._fabric = Fabric(seed, network or Network(), self._scheduler, self._trace, rack)
        self._slow: dict[str, list[float]] = {}
        self._disk, self.storage = _disk(self._scheduler, storage)
        sockets = SimulatedSockets(
            seed, shared_memory and datagrams, self._fabric.network, self._scheduler, self._trace
        )
        setting = SharedWorld(
            seed, self._scheduler, self._fabric, self._trace, self.storage, compute or Compute(),
            tuning or _tuning(seed, piece_nbytes, rack is not None), preempt, preempt_s, clock_offsets,
            SimulatedMemory(shared_memory, memory_faults, seed), sockets, rack,
        )  # fmt: skip
        self._supervisor = SimulatedProcesses(setting)
        self._unchecked = [*_names_in(faults), *names_of_slow(setting.compute), *names_of_links(self._fabric.network)]
        """Names of tasks, and what has them; not checked yet, because the processes are added later."""
        for fault in faults:
            _check_numbers(fault)
            self._scheduler.push(fault.at, self._happen, fault)

    @property
    def now(self) -> float:
        """Virtual seconds since the world began."""
        return self._scheduler.now

    @property
    def processes(self) -> dict[str, SimProcess]:
        """The processes by name, in the order in which they were added."""
        return self._supervisor.processes

    @property
    def trace(self) -> list[TraceEvent]:
        """All events, in order."""
        return self._trace.events

    @property
    def counts(self) -> dict[str, int]:
        """How many events of each kind there were: "lost", "doubled", "late", "partitioned", "dropped", "kill", ..."""
        return self._trace.counts

    def core_s(self, name: str) -> float:
        """Core seconds spent so far on the machine of a process.

        Args:
            name: The process.

        Returns:
            Seconds; 0 without `machines`.
        """
        return 0.0 if self._rack is None else self._rack.cores(name).used_s

    def trace_text(self, last: int | None = 200) -> str:
        """The trace as text, one event a line.

        Args:
            last: How many of the last events; None: all.

        Returns:
            The lines.
        """
        return self._trace.text(last)

    def process(self, name: str, main: Main, restarts: int = 0, restart_delay_s: float = 0.5) -> SimProcess:
        """Add a process, which begins now. It ends when `main` returns or raises.

        Args:
            name: The process's name, such as "ps:1".
            main: Its program, which returns the exit code; None is 0. It runs in a copy of the caller's context
                variables, and `runtime()` is the process's own in there.
            restarts: How often it is started again after a kill.
            restart_delay_s: After how many virtual seconds.

        Returns:
            The process, to be read.

        Raises:
            ValueError: The name is taken.
        """
        return self._supervisor.add(name, main, restarts, restart_delay_s)

    def run(self, until_s: float = 600.0, stop: Callable[[], bool] | None = None) -> None:
        """Run events until there are none, or until one of the arguments ends it. Call it again to continue.

        Args:
            until_s: The virtual second at which to stop.
            stop: Called after each event; True: stop.

        Raises:
            ValueError: A fault, a factor of `compute` or a link of `network` names no process.
            SimulationError: A task runs for ever while the clock stands still.
        """
        unchecked, self._unchecked = self._unchecked, []
        for task, what in unchecked:
            self._named(task, what)
        self._scheduler.run(until_s, stop)

    def at(self, time_s: float, call: Callable[[], object]) -> None:
        """Call a function at a virtual time, outside of all processes.

        Args:
            time_s: When, in virtual seconds.
            call: The function; it must not block.
        """
        self._scheduler.expected += 1
        self._scheduler.push(time_s, self._call, call)

    def _call(self, call: Callable[[], object]) -> None:
        self._scheduler.expected -= 1
        call()

    def kill(self, name: str, restart_after: float | None = None) -> None:
        """Kill a process now, as by `kill -9`. Ignored if it does not run.

        Whatever its code still does has no effect, `finally` blocks included.

        Args:
            name: The process.
            restart_after: After how many virtual seconds it is started again. None: as its `restarts` say.

        Raises:
            ValueError: No process has the name.
        """
        self._supervisor.kill(self._named(name, "kill"), restart_after)

    def pause(self, name: str, seconds: float) -> None:
        """Stop a process for a while, as by SIGSTOP. Messages for it wait.

        Peers give it up after the network's `heartbeat_s`.

        Args:
            name: The process.
            seconds: Virtual seconds until it goes on.

        Raises:
            ValueError: No process has the name.
        """
        self._supervisor.pause(self._named(name, "pause"), seconds)

    def partition(
        self,
        tasks: str | Iterable[str],
        others: str | Iterable[str] | None = None,
        seconds: float | None = None,
        one_way: bool = False,
    ) -> None:
        """Cut the network between some tasks and others, now. In-flight messages are lost.

        Args:
            tasks: The name of a task, or several.
            others: The tasks on the other side. None: all others.
            seconds: How long, in virtual seconds. None: until `heal`.
            one_way: Whether only messages from `tasks` are lost.

        Raises:
            ValueError: No process has a name.
        """
        cut = Cut(self._all_named(tasks), None if others is None else self._all_named(others), one_way)
        self._supervisor.record_event("network", "partition", **_cut_detail(cut))
        self._fabric.add_partition(cut)
        if seconds is not None:
            self._scheduler.push(self.now + seconds, self._mend, cut)

    def heal(self) -> None:
        """End all partitions, now."""
        self._supervisor.record_event("network", "heal")
        self._fabric.mend_all()

    def close(self) -> None:
        """Kill all living processes and free their memory; the trace stays. A second call does nothing."""
        self._supervisor.end_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # Faults

    def _named(self, task: str, what: object) -> str:
        """The process of a task name: "chief:0" is also the one called "chief". ValueError if there is none."""
        processes = self.processes
        for name in (task, task.removesuffix(":0")):
            if name in processes:
                return name
        known = ", ".join(processes) or "none yet"
        raise ValueError(f"{what}: there is no process {task!r}; the processes are {known}")

    def _all_named(self, tasks: str | Iterable[str]) -> frozenset[str]:
        return frozenset(self._named(task, "partition") for task in _names(tasks))

    def _mend(self, cut: Cut) -> None:
        if self._fabric.end_partition(cut):
            self._supervisor.record_event("network", "heal", **_cut_detail(cut))

    def _happen(self, fault: Fault) -> None:
        match fault:
            case Kill():
                self.kill(fault.task, fault.restart_after)
            case Pause():
                self.pause(fault.task, fault.seconds)
            case Partition():
                self.partition(fault.tasks, None, fault.seconds, fault.one_way)
            case Slow():
                factor, task = fault.factor, self._named(fault.task, fault)
                self._spell(task, "slow", fault.seconds, lambda on: self._set_slow(task, factor, on), factor)
            case SlowDisk():
                write_s = fault.write_s
                self._spell("disk", "slow disk", fault.seconds, lambda on: self._disk.set_slow(write_s, on), write_s)
            case DiskFull():
                self._spell("disk", "full disk", fault.seconds, self._disk.set_full, 1.0)

    def _spell(self, who: str, what: str, seconds: float, switch: Callable[[bool], None], amount: float) -> None:
        """Switch something on, and off again after some seconds."""

        def over(_: object) -> None:
            switch(False)
            self._supervisor.record_event(who, f"{what} over")

        switch(True)
        self._supervisor.record_event(who, what, seconds=seconds, amount=amount)
        self._scheduler.push(self.now + seconds, over, None)

    def _set_slow(self, task: str, factor: float, on: bool) -> None:
        factors = self._slow.setdefault(task, [])
        if on:
            factors.append(factor)
        else:
            factors.remove(factor)
        self._fabric.set_slow(task, prod(factors))


def _names_in(faults: Iterable[Fault]) -> Iterator[tuple[str, object]]:
    """The tasks that faults name, each with its fault."""
    for fault in faults:
        named = fault.tasks if isinstance(fault, Partition) else getattr(fault, "task", ())
        yield from ((task, fault) for task in _names(named))


def _check_numbers(fault: Fault) -> None:
    """Raise ValueError for a fault with a number that is negative or NaN."""
    for name in fault.__slots__:
        if isinstance(value := getattr(fault, name), int | float) and not value >= 0:
            raise ValueError(f"{fault}: got {name}={value}, wanted 0 or more")


def _names(tasks: str | Iterable[str]) -> frozenset[str]:
    return frozenset([tasks] if isinstance(tasks, str) else tasks)


def _cut_detail(cut: Cut) -> dict[str, object]:
    others = "all others" if cut.others is None else ",".join(sorted(cut.others))
    return {"tasks": ",".join(sorted(cut.tasks)), "others": others, "one_way": cut.one_way}


def _tuning(seed: int | str, piece_nbytes: int, modelled: bool) -> Tuning:
    """The tuning of a world that gives none. With `modelled` machines, messages are bundled as on real ones.
    In half of the other worlds messages are not bundled, so that each is lost and reordered by itself."""
    together = 64 if modelled else Random(f"{seed}/together").choice((1, 64))
    small = 1 << 18 if modelled else Random(f"{seed}/small").choice((0, 1 << 18))
    return Tuning.small().where(
        piece_nbytes=piece_nbytes, block_nbytes=piece_nbytes, together=together, small_nbytes=small
    )


def _disk(scheduler: Scheduler, storage: Storage | None) -> tuple[DiskFaults, Storage]:
    """The storage with its faults. Other kinds than MemoryStorage have none: they cannot wait in virtual time."""
    from dps.checkpoint.memory import MemoryStorage

    if storage is None:
        storage = MemoryStorage()
    if not isinstance(storage, MemoryStorage):
        return DiskFaults(scheduler, None), storage
    before = storage.before_write
    faults = DiskFaults(scheduler, before.before if isinstance(before, DiskFaults) else before)
    storage.before_write = faults
    return faults, storage
