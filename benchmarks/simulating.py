"""Clusters of the real chief, ps and sessions in the simulator, on machines that cost what was measured."""

from __future__ import annotations

import functools
import math
import statistics
from dataclasses import dataclass

import numpy as np

from dps.client.session import Session
from dps.launch.commands.simulate import SimulatedCluster
from dps.monitor import works
from dps.monitor.works import OPTIMIZERS
from dps.task.server import Server
from dps.transport.current import runtime
from dps.transport.sim import Compute, Machines, Network

LOOK_S = 0.02
"""How often a worker looks whether the others are there, virtual seconds."""
PERIOD_S = 0.01
"""In which a program of others works once and rests once."""
LONGEST_S = 36_000.0


@dataclass(frozen=True)
class Model:
    """What is simulated. `size`: as dps bench takes it; `compute_s`: of a worker, before each push."""

    workers: int
    ps: int
    size: str
    pushes: int
    machines: Machines
    latency_s: float
    """Of a link, one way, in which no core is at work."""
    compute_s: float = 0.0
    jitter: float = 0.0
    """A worker computes longer or shorter by up to this share. Without any, all stay in step if they begin together."""
    shared_memory: bool = False
    others_cores: float = 0.0
    """Cores of the one machine that programs of others take, with precedence."""


@dataclass(frozen=True)
class Outcome:
    """Virtual figures, from the moment when all workers have a first result until each has as many as asked for."""

    per_s: float
    """Pushes per second of all workers."""
    push_s: float
    """Median of a push, from call to result, without computing."""
    ps_busy: float
    worker_busy: float
    """How many cores were at work on the machine of the busiest ps, and of the first worker, on the average; on one
    machine both are those of the machine."""


class Measuring:
    """What the workers of one cluster do: wait for all, push until each has pushed often enough."""

    def __init__(self, model: Model, seed: int) -> None:
        self.model, self.seed = model, seed
        self.compute = Compute(model.compute_s, model.jitter)
        self.gradients = {name: np.ones(value.shape, np.float32) for name, value in works.params(model.size).items()}
        self.ready = self.begun = self.through = 0
        """How many workers have a session, a first result, and all results that are asked for."""
        self.results = 0
        """Since all workers have a first one, until the last worker is through."""
        self.spans: list[float] = []
        self.marks: list[tuple[float, dict[str, float]]] = []
        """When these began and ended: the time, and core seconds by task."""
        self.cluster: SimulatedCluster

    def train(self, server: Server) -> None:
        """One worker."""
        model, clock = self.model, server.runtime
        session = Session(
            server, works.params(model.size), optimizer=OPTIMIZERS["sgd"], shared_memory=model.shared_memory,
            timeout=LONGEST_S,
        )  # fmt: skip
        with session:
            self.ready += 1
            while self.ready < model.workers:
                clock.sleep(LOOK_S)
            done = 0
            while self.through < model.workers:
                began = clock.now()
                session.push(self.gradients)
                computed_s = self.compute.step_s(self.seed, f"worker:{server.task}", done)
                done += 1
                self._note(done, clock.now() - began - computed_s)

    def disturb(self, share: float) -> None:
        """A program of others, which takes a share of one core until all workers are through."""
        while self.through < self.model.workers:
            own = self.cluster.world.processes[runtime().name].runtime
            assert own.work is not None
            own.work.cores.spend(share * PERIOD_S)
            own.sleep((1.0 - share) * PERIOD_S)

    def _note(self, done: int, took_s: float) -> None:
        """A worker has its result number `done`."""
        workers = self.model.workers
        if self.begun == workers > self.through:
            self.results += 1
            self.spans.append(took_s)
        self.begun += done == 1
        self.through += done == self.model.pushes
        if (done == 1 and self.begun == workers) or (done == self.model.pushes and self.through == workers):
            world = self.cluster.world
            self.marks.append((world.now, {name: world.core_s(name) for name in world.processes}))

    def outcome(self) -> Outcome:
        (began, before), (ended, after) = self.marks
        took_s = max(ended - began, 1e-9)  # a model in which nothing costs time takes none
        busy = {name: (after[name] - before[name]) / took_s for name in after}
        return Outcome(
            self.results / took_s, statistics.median(self.spans),
            max(busy[f"ps:{task}"] for task in range(self.model.ps)), busy["worker:0"],
        )  # fmt: skip


def simulated(model: Model, seed: int = 0) -> Outcome:
    """Let it happen. RuntimeError where a task ended with an error.

    `pushes` has to be 2 or more.
    """
    measuring = Measuring(model, seed)
    link = min(1e12, model.machines.bytes_per_s)
    with SimulatedCluster(
        measuring.train, ps=model.ps, workers=model.workers, seed=seed, restarts=0,
        network=Network(model.latency_s, 0.0, link), compute=measuring.compute,
        machines=model.machines, shared_memory=model.shared_memory, piece_nbytes=1 << 20, preempt=0.0,
        clock_offsets=False, trace=False,
    ) as cluster:  # fmt: skip
        measuring.cluster = cluster
        for number in range(math.ceil(model.others_cores)):
            share = min(1.0, model.others_cores - number)
            cluster.world.process(f"others:{number}", functools.partial(measuring.disturb, share))
        run = cluster.run(LONGEST_S)
    if run.errors or measuring.through < model.workers:
        raise RuntimeError(f"the simulation of {model} failed: {next(iter(run.errors.items()), 'not all ended')}")
    return measuring.outcome()
