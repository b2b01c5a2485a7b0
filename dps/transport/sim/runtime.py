"""The simulated runtime: what one process has of the world, from its start until it ends or is killed."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from dps.checkpoint.storage import Storage
from dps.transport.current import current_runtime
from dps.transport.endpoint import Endpoint, ProcessLocation, TaskHandle
from dps.transport.sim.datagrams import SimulatedSockets
from dps.transport.sim.endpoint import SimEndpoint
from dps.transport.sim.fabric import Fabric
from dps.transport.sim.machines import Compute, MessageCosts, Rack
from dps.transport.sim.scheduler import Scheduler, SimCondition, SimTask, TaskGroup
from dps.transport.sim.storage import ProcessDisk, SimMemory, SimulatedMemory
from dps.transport.sim.trace import Trace
from dps.transport.sockets.addresses import Binding
from dps.transport.tuning import Tuning

EPOCH_S = 1_700_000_000.0
"""The wall clock at the beginning of a world, seconds since 1970-01-01 UTC."""


@dataclass(frozen=True, slots=True)
class SharedWorld:
    """The objects that all processes of one world share.

    More than 12 attributes: a plain record of settings and parts.
    """

    seed: int | str
    scheduler: Scheduler
    fabric: Fabric
    trace: Trace
    storage: Storage
    compute: Compute
    tuning: Tuning
    preempt: float
    preempt_s: float
    clock_offsets: bool
    machine: SimulatedMemory
    sockets: SimulatedSockets
    rack: Rack | None
    """None: messages and computing need no cores."""


class SimRuntime(TaskGroup):
    """As `dps.transport.endpoint.Runtime`, in virtual time; one for each life of a process.

    More than 12 attributes: half of them are the fields of `Runtime`; the others are facts of one life of a process.
    """

    simulated = True
    threads = False
    shares_log = True
    """All tasks of a simulation write to one log."""

    def __init__(self, setting: SharedWorld, name: str, incarnation: int, ended: Callable[[SimRuntime, SimTask], None]):
        super().__init__(name)
        self.incarnation = incarnation
        self.random = Random(f"{setting.seed}/random/{name}/{incarnation}")
        self.tuning = setting.tuning
        self.keeps_blocks = Random(f"{setting.seed}/blocks").random() < 0.5
        self.silence_s = setting.fabric.network.heartbeat_s
        self.disk = ProcessDisk(setting.storage, self)
        self.storage: Storage = self.disk
        self.endpoints: list[SimEndpoint] = []
        self.work: MessageCosts | None = None
        """The costs of messages, if machines are modelled."""
        if setting.rack is not None:
            self.work = MessageCosts(setting.rack, name, setting.machine.shares)
        self._setting = setting
        self._scheduler = setting.scheduler
        self._ended = ended
        self._secrets = Random(f"{setting.seed}/secrets/{name}/{incarnation}")
        clock = Random(f"{setting.seed}/clock/{name}/{incarnation}")
        self._offset_s = float(clock.randrange(1000)) if setting.clock_offsets else 0.0
        self._steps = 0

    def task_ended(self, task: SimTask) -> None:
        """As Group.task_ended."""
        self._ended(self, task)

    def now(self) -> float:
        """As Runtime.now; each process's clock has its own offset of some whole seconds."""
        return self._scheduler.now + self._offset_s

    def wall(self) -> float:
        """As Runtime.wall; the same in all processes."""
        return EPOCH_S + self._scheduler.now

    @property
    def place(self) -> ProcessLocation:
        """As Runtime.place; every process has a host of its own, and one operating system runs them all."""
        return ProcessLocation(self.name, "simulated", self.incarnation)

    def lives(self, pid: int) -> bool:
        """As Runtime.lives."""
        return False

    def sleep(self, seconds: float) -> None:
        """As Runtime.sleep; with 0, tasks that are due now run first."""
        self._scheduler.pass_time(self._scheduler.task(), seconds)

    def condition(self) -> SimCondition:
        """As Runtime.condition."""
        return SimCondition(self._scheduler)

    def check_descriptors(self, who: str, need: int) -> None:
        """As Runtime.check_descriptors: simulated sockets need none."""

    def private_chief(self) -> tuple[str, str]:
        """As Runtime.private_chief: nobody else reaches a simulated network."""
        return "", "127.0.0.1:0"

    def endpoint(self, bind: str | Binding | None = None, keys: object = None) -> Endpoint:
        """As Runtime.endpoint; any host is allowed, no keys are used."""
        self.check()
        where = None if bind is None else Binding.of(bind).address or "127.0.0.1:0"
        endpoint = SimEndpoint(self._setting.fabric, self._scheduler, self, where, self._setting.sockets, self.work)
        self.endpoints = [other for other in self.endpoints if other.open]
        self.endpoints.append(endpoint)
        return endpoint

    def share(self, nbytes: int) -> SimMemory:
        """As Runtime.share; Unavailable unless the world has `shared_memory`."""
        self.check()
        return self._setting.machine.share(self, nbytes)

    def attach(self, name: object) -> npt.NDArray[np.uint8]:
        """As Runtime.attach."""
        self.check()
        return self._setting.machine.attach(name)

    def secret(self) -> bytes:
        """As Runtime.secret, drawn from the seed."""
        return self._secrets.randbytes(16)

    def spawn(self, name: str, target: Callable[[], None]) -> TaskHandle:
        """As Runtime.spawn. An error of `target` ends only this task, and is kept in its `error` and the trace."""
        self.check()
        context = copy_context()
        context.run(current_runtime.set, self)
        task = SimTask(self._scheduler, self, name, target, context)
        self._scheduler.start(task)
        return task

    def compute(self) -> float:
        """As Runtime.compute: the virtual time of the compute model, longer while the process is slow."""
        step, self._steps = self._steps, self._steps + 1
        setting = self._setting
        seconds, began = setting.compute.step_s(setting.seed, self.name, step), self._scheduler.now
        seconds *= setting.fabric.slow.get(self.name, 1.0)
        if self.work is not None:
            self.work.cores.spend(seconds + self.work.handling.call_s)
        elif seconds > 0:
            self.sleep(seconds)
        return self._scheduler.now - began

    def preempt(self) -> None:
        """As Runtime.preempt: with some probability, others run for a moment."""
        setting = self._setting
        if setting.preempt and self._scheduler.draw() < setting.preempt:
            self.sleep(setting.preempt_s * self._scheduler.draw())

    def charge_pass(self, work: str, nbytes: int, slots: int = 0) -> None:
        """As Runtime.charge_pass, if machines are modelled."""
        if self.work is not None:
            self.work.passed(work, nbytes, slots)

    def record(self, what: str, **detail: Any) -> None:
        """As Runtime.record."""
        if self.alive:
            self._setting.trace.add(self._scheduler.now, self.name, what, detail)
