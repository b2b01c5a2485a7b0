"""Ps that are told to end while pushes are on their way: what each push said is what its variables hold."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import dps
from dps.launch.commands.simulate import CHIEF, SimulatedCluster
from dps.task.server import Server
from dps.training.update_modes import Async, Bounded, SyncReplicas, Update
from dps.transport.sim import Compute, Network, Pause
from dps.transport.tuning import Tuning
from dps.worker.agent import LEFT

MODES: dict[str, list[Update]] = {
    "async": [Async(), Async(), Async(max_staleness=3)],
    "bounded": [Bounded(2)],
    "sync": [SyncReplicas(reduction="sum")],
}


@dataclass
class Told:
    """What the workers of one run were told: for each push its cell, the variables that it was for, and its result."""

    pushes: list[tuple[int, tuple[str, ...], dps.Push]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    """The last that somebody pulled."""
    plan: Any = None
    lost: int = 0
    """The steps that hooks were told of as lost."""


class Leaves(SimulatedCluster):
    """`leave`: which ps are told to end, and when. They are started again."""

    def __init__(self, *args: Any, leave: dict[str, float], **settings: Any) -> None:
        self.leave = leave
        super().__init__(*args, **settings)

    def _serve(self, job: str, task: int, ps: int, workers: int, update: Any) -> int:
        name = job if job == "chief" else f"{job}:{task}"
        bind = CHIEF if job == "chief" else f"{job}{task}:0"
        server = Server(None, job, task, chief=CHIEF, bind=bind, ps=ps, workers=workers, update=update)
        if name in self.leave and server.join(self.leave[name]) is None:
            server.end_in_order("was told to end (SIGTERM)")
            if server.join() == LEFT:
                server = Server(None, job, task, chief=CHIEF, bind=bind)
        return server.join() or 0


def bursts(server: Server, seed: int, names: tuple[str, ...], each: int, told: Told) -> None:
    """Pushes one or several at a time; each adds 1 to the worker's own cell of the variables that it is for."""
    draw = random.Random(f"{seed} worker:{server.task}")

    class Counts(dps.Hook):
        def rolled_back(self, session: dps.Session, step: int, lost: int) -> None:
            told.lost += lost

    made = {name: np.zeros(16, np.float32) for name in names}
    with dps.Session(
        server, made, optimizer=dps.optim.SGD(1.0), checkpoint_dir="run", hooks=[Counts()], timeout=90
    ) as session:
        told.plan = session._connection.agreed.plan
        sync, left = isinstance(session.update, SyncReplicas), each
        while left:
            replies = []
            for _ in range(min(left, draw.choice([1, 2, 5]))):
                some = names if sync or draw.random() < 0.7 else tuple(draw.sample(names, 1))
                gradient = np.zeros(16, np.float32)
                gradient[server.task] = -1
                replies.append((some, session.push_async(dict.fromkeys(some, gradient))))
                left -= 1
            if draw.random() < 0.3:
                session.pull()
            told.pushes += [(server.task, some, reply.result()) for some, reply in replies]
        told.values.update({(server.task, name): float(value[server.task]) for name, value in session.pull().items()})


def broken(mode: str, seed: int, keep: list[Any] | None = None) -> list[str]:
    """The promises that a run breaks in which ps are told to end."""
    draw = random.Random(f"leaving {mode} {seed}")
    ps, workers = draw.choice([1, 2, 2, 3]), draw.randint(1, 3)
    rough = draw.random() < 0.4
    network = Network(
        latency_s=draw.choice([1e-4, 1e-3, 1e-2, 5e-2]), loss=0.03 if rough else 0.0, double=0.03 if rough else 0.0,
        reorder=0.1 if rough else 0.0,
    )  # fmt: skip
    leave = {f"ps:{i}": draw.uniform(0.5, 3.0) for i in draw.sample(range(ps), draw.randint(1, ps))}
    tasks = [f"worker:{i}" for i in range(workers)] + [f"ps:{i}" for i in range(ps)]
    faults = [Pause(draw.choice(tasks), draw.uniform(0.3, 3.0), draw.choice([0.3, 2.0]))] if draw.random() < 0.4 else []
    names, told, update = tuple("abc"[:ps]), Told(), draw.choice(MODES[mode])
    compute = Compute(draw.choice([0.01, 0.1, 0.1, 2.0]), draw.choice([0.0, 1.0]))
    tuning = Tuning.small().where(small_nbytes=draw.choice([0, 1 << 18]), together=draw.choice((1, 64)))
    with Leaves(
        bursts, seed, names, 30, told, leave=leave, ps=ps, workers=workers, seed=seed, network=network, faults=faults,
        update=update, compute=compute, tuning=tuning, shared_memory=draw.random() < 0.6,
    ) as cluster:  # fmt: skip
        run = cluster.run(600.0)
        if keep is not None:
            keep.append(cluster)
        found = [f"{name}: {error}" for name, error in run.errors.items()]
        found += [f"{name} ended with {code}" for name, code in run.exit_codes.items() if code != 0]
        found += differences(told, names) if not found else []
        calm = compute.seconds < 1 and not (rough or faults or isinstance(update, SyncReplicas)) and ps > 1
        if (
            calm
            and update != Async(max_staleness=3)
            and (rest := [push for *_, push in told.pushes if not push.accepted])
        ):
            found.append(f"pushes that every session could have completed: {rest}")
        if told.lost and update != Async(max_staleness=3):  # a push that one ps drops moves only the others' steps
            found.append(f"{told.lost} steps are said to be lost")
        if found:
            found.append(f"replay: broken({mode!r}, {seed}); leave {leave}, {faults}, {network}")
    return found


def differences(told: Told, names: tuple[str, ...]) -> list[str]:
    """Where a variable does not hold what its pushes said."""
    where = {told.plan.variables[part.variable].name: f"ps:{part.ps}" for part in told.plan.parts}
    found = []
    for (task, name), value in sorted(told.values.items()):
        mine = [push for other, some, push in told.pushes if other == task and name in some]
        wanted = sum(push.accepted or where[name] in push.applied_by for push in mine)
        if value != wanted:
            found.append(f"worker:{task}: {name} on {where[name]} has {value:g} of its pushes; it was told of {wanted}")
    return found
