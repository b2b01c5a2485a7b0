"""A simulated world: processes, network, disk and faults on a virtual clock, the same again for the same seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from types import TracebackType
from typing import Literal, Self

from dps.checkpoint.storage import Storage
from dps.transport.sim.compute import Compute
from dps.transport.sim.connection import Cut
from dps.transport.sim.datagrams import Sockets
from dps.transport.sim.disk import DiskFaults
from dps.transport.sim.fabric import Fabric
from dps.transport.sim.faults import DiskFull, Fault, Kill, Partition, Pause, Slow, SlowDisk
from dps.transport.sim.machines import Machines, Rack
from dps.transport.sim.memory import Machine
from dps.transport.sim.network import Network
from dps.transport.sim.process import Main, SimProcess, Supervisor
from dps.transport.sim.runtime import Setting
from dps.transport.sim.scheduler import Scheduler
from dps.transport.sim.trace import Trace, TraceEvent


class World:
    """Everything that a simulation holds; `run` lets it happen. Belongs to one thread.

    Use it in a `with` block or `close` it: greenlets that still wait are never freed by themselves.

    `trace="all"` notes every message that arrives too. `preempt` is the probability that `Runtime.preempt` lets
    others run, for up to `preempt_s` virtual seconds. `clock_offsets` makes the processes' monotonic clocks differ.
    `faults` name processes that are there when `run` is called first; one that names nobody is a ValueError.
    `storage` is shared by all processes and outlives them; it is a new MemoryStorage when none is given.
    With `shared_memory` all processes are on one machine and one user's; else each is on its own. On one machine small
    messages travel as datagrams between those who know each other, unless `datagrams` is false.
    With `machines`, computing and messages need a core of theirs; None: no machine is ever short of cores.
    `steps_at_one_instant` is how much may happen while the clock stands still before `run` raises SimulationError.
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
        datagrams: bool = True,
        machines: Machines | None = None,
        steps_at_one_instant: int = 1_000_000,
    ) -> None:
        self.seed = seed
        self._scheduler = Scheduler(seed, steps_at_one_instant)
        self._trace = Trace(record=bool(trace), deliveries=trace == "all")
        self._rack = rack = None if machines is None else Rack(machines, self._scheduler)
        self._fabric = Fabric(seed, network or Network(), self._scheduler, self._trace, rack)
        self._slow: dict[str, list[float]] = {}
        self._disk, self.storage = _disk(self._scheduler, storage)
        sockets = Sockets(seed, shared_memory and datagrams, self._fabric.network, self._scheduler, self._trace)
        setting = Setting(
            seed, self._scheduler, self._fabric, self._trace, self.storage, compute or Compute(), piece_nbytes,
            preempt, preempt_s, clock_offsets, Machine(shared_memory), sockets, rack,
        )  # fmt: skip
        self._supervisor = Supervisor(setting)
        self._unchecked = list(faults)
        """Faults whose tasks nobody has looked for yet: the processes are added after the faults are given."""
        for fault in faults:
            self._scheduler.push(fault.at, self._happen, fault)

    @property
    def now(self) -> float:
        """Virtual seconds since the world began."""
        return self._scheduler.now

    @property
    def processes(self) -> dict[str, SimProcess]:
        """By name, in the order in which they were added."""
        return self._supervisor.processes

    @property
    def trace(self) -> list[TraceEvent]:
        """What happened, in order."""
        return self._trace.events

    @property
    def counts(self) -> dict[str, int]:
        """How many events of each kind there were: "lost", "doubled", "late", "partitioned", "dropped", "kill", ..."""
        return self._trace.counts

    def core_s(self, name: str) -> float:
        """Seconds of cores that were spent so far on the machine of a process; 0 without `machines`."""
        return 0.0 if self._rack is None else self._rack.cores(name).used_s

    def trace_text(self, last: int | None = 200) -> str:
        """The last lines of the trace; None: all."""
        return self._trace.text(last)

    def process(self, name: str, main: Main, restarts: int = 0, restart_delay_s: float = 0.5) -> SimProcess:
        """A process that begins now and ends when `main` returns its exit code (None is 0) or raises.

        `main` runs in a copy of the caller's context variables; `runtime()` is the process's own in there. After a
        kill it is called again, up to `restarts` times. ValueError for a name that is taken.
        """
        return self._supervisor.add(name, main, restarts, restart_delay_s)

    def run(self, until_s: float = 600.0, stop: Callable[[], bool] | None = None) -> None:
        """Let things happen until nothing can, `stop()` is true, or the virtual time is `until_s`. May go on later.

        Raises ValueError for a fault that names no process, SimulationError for a task that spins, and what functions
        given to `at` and `stop` raise. What processes raise is kept in their `error`.
        """
        unchecked, self._unchecked = self._unchecked, []
        for fault in unchecked:
            self._check(fault)
        self._scheduler.run(until_s, stop)

    def at(self, time_s: float, call: Callable[[], object]) -> None:
        """Call a function at a virtual time, outside of all processes; it must not block."""
        self._scheduler.expected += 1
        self._scheduler.push(time_s, self._call, call)

    def _call(self, call: Callable[[], object]) -> None:
        self._scheduler.expected -= 1
        call()

    def kill(self, name: str, restart_after: float | None = None) -> None:
        """kill -9, now. Nothing that its code still does has an effect, `finally` blocks included.

        Started again after `restart_after` seconds; None: as its `restarts` say. Ignored where it does not run.
        Raises ValueError for a name that no process has.
        """
        self._supervisor.kill(self._named(name, "kill"), restart_after)

    def pause(self, name: str, seconds: float) -> None:
        """SIGSTOP for some seconds: what arrives waits. Peers see it as dead after the network's `heartbeat_s`.

        Raises ValueError for a name that no process has.
        """
        self._supervisor.pause(self._named(name, "pause"), seconds)

    def partition(
        self,
        tasks: str | Iterable[str],
        others: str | Iterable[str] | None = None,
        seconds: float | None = None,
        one_way: bool = False,
    ) -> None:
        """Lose all messages between `tasks` and `others` (None: everybody else), for some seconds or until `heal`.

        With `one_way` only those from `tasks` to `others` are lost; heartbeats fail all the same. Raises ValueError for
        a name that no process has.
        """
        cut = Cut(self._all_named(tasks), None if others is None else self._all_named(others), one_way)
        self._supervisor.note("network", "partition", **_cut_detail(cut))
        self._fabric.cut(cut)
        if seconds is not None:
            self._scheduler.push(self.now + seconds, self._mend, cut)

    def heal(self) -> None:
        """End all partitions, now."""
        self._supervisor.note("network", "heal")
        self._fabric.mend_all()

    def close(self) -> None:
        """Kill what is alive, so that its memory is free; the trace stays. A second call does nothing."""
        self._supervisor.end_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # Faults

    def _check(self, fault: Fault) -> None:
        """Raise ValueError for a fault that names a task which no process has."""
        match fault:
            case Kill() | Pause() | Slow():
                self._named(fault.task, fault)
            case Partition():
                for task in _names(fault.tasks):
                    self._named(task, fault)

    def _named(self, task: str, what: object) -> str:
        """The process that a task names: "chief:0" is also the one that is called "chief". ValueError for nobody."""
        processes = self.processes
        for name in (task, task.removesuffix(":0")):
            if name in processes:
                return name
        known = ", ".join(processes) or "none yet"
        raise ValueError(f"{what}: there is no process {task!r}; the processes are {known}")

    def _all_named(self, tasks: str | Iterable[str]) -> frozenset[str]:
        return frozenset(self._named(task, "partition") for task in _names(tasks))

    def _mend(self, cut: Cut) -> None:
        if self._fabric.mend(cut):
            self._supervisor.note("network", "heal", **_cut_detail(cut))

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
            self._supervisor.note(who, f"{what} over")

        switch(True)
        self._supervisor.note(who, what, seconds=seconds, amount=amount)
        self._scheduler.push(self.now + seconds, over, None)

    def _set_slow(self, task: str, factor: float, on: bool) -> None:
        factors = self._slow.setdefault(task, [])
        if on:
            factors.append(factor)
        else:
            factors.remove(factor)
        self._fabric.set_slow(task, prod(factors))


def _names(tasks: str | Iterable[str]) -> frozenset[str]:
    return frozenset([tasks] if isinstance(tasks, str) else tasks)


def _cut_detail(cut: Cut) -> dict[str, object]:
    others = "all others" if cut.others is None else ",".join(sorted(cut.others))
    return {"tasks": ",".join(sorted(cut.tasks)), "others": others, "one_way": cut.one_way}


def _disk(scheduler: Scheduler, storage: Storage | None) -> tuple[DiskFaults, Storage]:
    """The storage with its faults. One that is not a MemoryStorage has none: it cannot wait in virtual time."""
    from dps.checkpoint.memory import MemoryStorage

    if storage is None:
        storage = MemoryStorage()
    if not isinstance(storage, MemoryStorage):
        return DiskFaults(scheduler, None), storage
    before = storage.before_write
    faults = DiskFaults(scheduler, before.before if isinstance(before, DiskFaults) else before)
    storage.before_write = faults
    return faults, storage
