"""Workers that publish and pull what was published; a checker that finds a mixture, a step back or a reused number."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import dps
from dps.launch.commands.simulate import CHIEF, SimulatedCluster
from dps.transport.sim import Compute, Kill, Network, Partition, Pause
from dps.transport.sim.world import Fault
from dps.transport.tuning import Tuning

WORKERS, PUSHES = 3, 12
WIDTH = 64
"""Elements of a variable. Few of them change, so that a follower is sent changes."""
MODES: dict[str, Any] = {
    "async": dps.Async(), "bounded": dps.Bounded(2), "sync": dps.SyncReplicas(reduction="sum"), "local": dps.Local(2),
}  # fmt: skip


@dataclass
class Seen:
    """What the tasks of one simulated run saw of published versions."""

    pulled: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """The values that were pulled, by number."""
    sent: list[tuple[int, int, dict[int, int]]] = field(default_factory=list)
    """Of each push to all ps that was accepted: run epoch, incarnation and its number on each ps."""
    told: list[dps.Published] = field(default_factory=list)
    """What the publishers were told."""
    swapped: list[tuple[dps.Published, dict[str, Any]]] = field(default_factory=list)
    """What a follower put in place, in order."""
    followed: int = 0


def train(server: Any, seen: Seen, ps: int, checkpointed: bool) -> None:
    """Each push adds one to the worker's element of each variable; there is a variable on each ps. In async some pushes
    are of one variable alone."""
    names = [f"v{i}" for i in range(ps)]
    params = {name: np.zeros(WIDTH) for name in names} | {"alone": np.zeros(WIDTH)}
    one, task = np.zeros(WIDTH), server.task
    one[task] = -1.0
    draw = random.Random(f"{task}")
    more: dict[str, Any] = {"checkpoint_dir": "run", "hooks": [dps.CheckpointSaver(steps=7)]} if checkpointed else {}
    with dps.Session(server, params, optimizer=dps.optim.SGD(1.0), timeout=120, **more) as session:
        apart = isinstance(session.update, dps.Async | dps.Bounded)
        replies: list[Any] = []
        for turn in range(PUSHES):
            server.runtime.compute()
            if apart and draw.random() < 0.3:
                session.push({"alone": one})
            replies.append(session.push_async(dict.fromkeys(names, one)))
            note = session._connection.membership.epoch, session._connection.caller.incarnation
            numbers = dict(session._pushes.numbers)
            if draw.random() < 0.5:
                result = replies.pop().result()
                if result.accepted and session._connection.caller.incarnation == note[1]:
                    seen.sent.append((*note, numbers))
            if draw.random() < 0.6 or turn == PUSHES - 1:
                publish(session, seen)


def publish(session: Any, seen: Seen) -> None:
    """Publish, and pull that version unless a newer one has taken its place."""
    try:
        published = session.publish(f"by {session.name}")
    except dps.DeadlineExceeded:
        return
    seen.told.append(published)
    with contextlib.suppress(ValueError):
        seen.pulled.setdefault(published.number, []).append(session.pull(published=published))


def follow(seen: Seen, names: list[str]) -> int:
    """A task that follows the versions until the run is over."""
    server = dps.Server(None, "evaluator", 0, chief=CHIEF, bind="reader:0")
    out = {name: np.zeros(WIDTH) for name in names}
    with dps.Follower(server, dtype=None, names=names) as weights:
        while server.exit_code is None:
            published = weights.swap(out=out)
            if published is not None:
                seen.swapped.append((published, {name: values.copy() for name, values in out.items()}))
            server.runtime.sleep(0.05)
        seen.followed = weights.fetched
    return 0


def made(mode: str, seed: int) -> tuple[SimulatedCluster, Seen, set[str]]:
    """The cluster of a seed: with kills of ps, chief and workers, and restarts of all."""
    draw = random.Random(f"{mode} {seed} published")
    ps, checkpointed = draw.randint(1, 3), draw.random() < 0.7
    faults: list[Fault] = []
    killed: set[str] = set()
    for _ in range(draw.randint(0, 3)):
        at, kind = draw.uniform(0.3, 3.0), draw.choice(["ps", "chief", "worker", "all", "pause", "partition"])
        if kind == "worker" and mode != "local":
            task = f"worker:{draw.randrange(1, WORKERS)}"
            faults.append(Kill(task, at))
            killed.add(task)
        elif kind == "ps" and checkpointed:
            faults.append(Kill(f"ps:{draw.randrange(ps)}", at, draw.choice([0.1, 1.0])))
        elif kind == "chief":
            faults.append(Kill("chief", at, draw.choice([0.1, 1.0])))
        elif kind == "all" and checkpointed:
            faults += [Kill(name, at, 0.5) for name in ("chief", *(f"ps:{i}" for i in range(ps)))]
        elif kind == "pause":
            faults.append(Pause(f"worker:{draw.randrange(WORKERS)}", at, draw.choice([0.3, 2.0])))
        elif kind == "partition" and checkpointed:  # else a restarted chief may rightly give the run up
            faults.append(Partition(f"ps:{draw.randrange(ps)}", at, draw.choice([0.3, 1.0])))
    # A ps whose first Register was never answered sends it again as it was, so that a restarted chief takes it for a
    # new one; without a checkpoint that ends the run.
    rough = draw.random() < 0.5 and (checkpointed or not any(isinstance(f, Kill) and f.task == "chief" for f in faults))
    network = Network(
        latency_s=draw.choice([1e-4, 1e-3, 1e-2]), loss=draw.choice([0.01, 0.05]) if rough else 0.0,
        double=draw.choice([0.0, 0.05]) if rough else 0.0, reorder=draw.choice([0.0, 0.1]) if rough else 0.0,
    )  # fmt: skip
    seen = Seen()
    cluster = SimulatedCluster(
        train, seen, ps, checkpointed, ps=ps, workers=WORKERS, seed=seed, update=MODES[mode], network=network,
        faults=faults, compute=Compute(0.1, 0.5), tuning=Tuning.small(), shared_memory=draw.random() < 0.5, restarts=4,
    )  # fmt: skip
    names = [f"v{i}" for i in range(ps)]
    cluster.world.process("reader", partial(follow, seen, names))
    return cluster, seen, killed


def run(mode: str, seed: int) -> list[str]:
    """The promises that a seed breaks."""
    cluster, seen, killed = made(mode, seed)
    with cluster:
        outcome = cluster.run(until_s=600.0)
        errors = {name: text for name, text in outcome.errors.items() if name not in killed}
        found = [f"{name}: {text}" for name, text in errors.items()]
        found += [f"{name} {how}" for name, how in outcome.lost.items() if name not in killed]
        found += violations(outcome.trace, seen, mode)
        if found:
            found.append(f"replay: run({mode!r}, {seed}); {cluster.world.trace_text(last=60)}")
    return found


def violations(trace: list[Any], seen: Seen, mode: str) -> list[str]:
    """What a version breaks: by the trace of the ps, and by the values that were pulled."""
    found, about = [], dict[int, dps.Published]()
    found += [
        f"number {published.number} was used for {about[published.number]} and {published}"
        for published in seen.told
        if about.setdefault(published.number, published) != published
    ]
    if len({published.run for published in seen.told}) > 1:
        found.append(f"the run had several names: {sorted({published.run for published in seen.told})}")
    numbers = [event.detail["number"] for event in trace if event.what == "published"]
    if numbers != sorted(set(numbers)):
        found.append(f"numbers went back, or one was used again: {numbers}")
    order = [published.number for published, _ in seen.swapped]
    if order != sorted(set(order)):
        found.append(f"the follower went back: {order}")
    for published, values in seen.swapped:
        seen.pulled.setdefault(published.number, []).append(values)
    for number, pulls in seen.pulled.items():
        for values in pulls:
            if any((values[name] != pulls[0][name]).any() for name in values):
                found.append(f"version {number} had several values: {values} and {pulls[0]}")
            names = [name for name in values if name != "alone"]
            if mode in ("sync", "local") and any((values[name] != values[names[0]]).any() for name in names):
                found.append(f"version {number} is a mixture: {values}")
    return found + mixtures(trace, seen)


def mixtures(trace: list[Any], seen: Seen) -> list[str]:
    """The pushes of which a version has a part on one ps alone."""
    applied: dict[tuple[str, int, int, int], int] = {}
    cuts: dict[tuple[int, int], dict[int, int]] = {}
    for event in trace:
        if event.what == "applied":
            for _, incarnation, number in event.detail["pushes"]:
                key = event.process, event.detail["epoch"], incarnation, number
                applied[key] = event.detail["counter"]
        elif event.what == "committed":
            at = cuts.setdefault((event.detail["epoch"], event.detail["number"]), {})
            at[int(event.process.partition(":")[2])] = event.detail["counter"]
    found = []
    for (epoch, version), counters in cuts.items():
        for pushed, incarnation, numbers in seen.sent:
            if pushed != epoch or counters.keys() != numbers.keys():
                continue
            there = {
                ps: applied.get((f"ps:{ps}", epoch, incarnation, number), 1 << 60) <= counters[ps]
                for ps, number in numbers.items()
            }
            if len(set(there.values())) > 1:
                found.append(f"version {version} is a mixture: push {numbers} of incarnation {incarnation}: {there}")
    return found
