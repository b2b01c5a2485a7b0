"""A seed as a scenario: how many tasks, which network, which faults; run and checked."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dps import compress
from dps.launch.commands.simulate import SimulatedCluster
from dps.process import record
from dps.training.update_modes import Async, Bounded, SyncReplicas, Update
from dps.transport.sim import Compute, Kill, Network, Partition, Pause
from dps.transport.sim.world import DiskFull, Fault, SlowDisk
from dps.transport.tuning import Tuning
from tests.simulation.checker import violations
from tests.simulation.forger import forge
from tests.simulation.history import NAMES, History, train
from tests.simulation.late_commits import late_commits
from tests.simulation.varied import Variety, options, variety

BOUND = 1
AT_ONCE = {"steps": "sync", "at once": "async"}
"""Modes in which pushes go at once: the update mode of each."""

COMPRESSORS: list[Any] = [
    compress.TopK(0.01), {"a": compress.TopK(0.3), "b": None, "*": compress.Bfloat16()},
    {"[ct]": compress.RandomK(1.0), "*": compress.Float16()},
]  # fmt: skip


@dataclass
class Scenario:
    """What a seed stands for in one update mode."""

    mode: str
    seed: int
    ps: int
    workers: int
    pushes: int
    network: Network
    faults: list[Fault]
    killed: set[str]
    checkpointed: bool
    update: Update
    variety: Variety | None = None
    forged: bool = False
    """Whether a stranger writes to all tasks in the names of others."""
    patience_s: float | None = None
    """How long workers wait for a step at once. None: some pushes are steps, and few of these may be made at once."""
    commit_s: float = 0.0
    """How long a version is published at most before it is committed."""

    @property
    def name(self) -> str:
        """What `scenario` makes it of, with the seed."""
        if isinstance(self.update, SyncReplicas) and self.update.initial_tokens is not None:
            return "tokens"
        return self.mode if self.patience_s is None else next(n for n, mode in AT_ONCE.items() if mode == self.mode)

    @property
    def replay(self) -> str:
        """The call that runs it again."""
        if self.variety is not None:
            of = "varied_with_kills" if self.faults else "varied" if self.variety.tuning else "spoilt"
            return f"run({of}({self.name!r}, {self.seed}))"
        if self.forged or self.commit_s:
            return f"run({'with_a_forger' if self.forged else 'with_late_commits'}({self.name!r}, {self.seed}))"
        made = f"crowded({self.seed // 20})" if self.network.links else f"scenario({self.name!r}, {self.seed})"
        return f"run({made})"


def update_of(mode: str, workers: int, draw: random.Random) -> Update:
    """The update mode; sync also with backup workers and with several batches a worker, async with its options; tokens
    is sync with initial tokens."""
    if mode == "bounded":
        return Bounded(BOUND)
    if mode == "async":
        return draw.choice([Async(), Async(), Async(max_staleness=2)])
    kind = draw.choice(["all", "all", "backup", "several"])
    if mode == "tokens":
        more = draw.choice([0, 1, workers])
        aggregate = {"all": workers, "backup": max(1, workers - 1), "several": workers + 1}[kind]
        return SyncReplicas(aggregate, workers, max(0, aggregate - workers) + more)
    if kind == "backup" and workers > 1:
        return SyncReplicas(workers - 1, workers)
    return SyncReplicas(workers + 1, workers) if kind == "several" else SyncReplicas()


def summing(update: Update, mode: str, seed: int) -> Update:
    """The update mode as it is; with some seeds sync adds the gradients of a step instead of averaging them."""
    if isinstance(update, SyncReplicas) and random.Random(f"sum {mode} {seed}").random() < 0.4:
        return record.replace(update, reduction="sum")
    return update


def scenario(mode: str, seed: int, stops: bool = True) -> Scenario:
    """Half of the seeds have a whole network, all have other faults; kills of ps and chief need checkpoints. Where
    `stops`, two in five have processes that are stopped for up to 30 s, too: one, all workers, or all that there are.

    The modes "steps" and "at once" are sync and async as pushes at once want it, with more or less time for them: with
    one ps, and every fourth or second seed with as many as in other modes.
    """
    draw = random.Random(f"{mode} {seed}")
    ps, workers = draw.randint(1, 3), draw.randint(1, 4)
    if (mode == "at once" and seed % 2) or (mode == "steps" and seed % 4 < 3):
        ps = 1
    rough = draw.random() < 0.5
    network = Network(
        latency_s=draw.choice([1e-4, 1e-3, 1e-2]), loss=draw.choice([0.01, 0.05]) if rough else 0.0,
        double=draw.choice([0.0, 0.05]) if rough else 0.0, reorder=draw.choice([0.0, 0.1]) if rough else 0.0,
    )  # fmt: skip
    faults: list[Fault] = []
    killed: set[str] = set()
    checkpointed = draw.random() < 0.7
    tasks = [f"ps:{i}" for i in range(ps)] + [f"worker:{i}" for i in range(workers)] + ["chief"]
    if checkpointed and draw.random() < 0.3:
        at = draw.uniform(0.5, 3.0)
        faults.append(draw.choice([SlowDisk(at, 2.0, 0.2), DiskFull(at, 0.5)]))
    for _ in range(draw.randint(0, 3)):
        at, task = draw.uniform(0.0, 3.0), draw.choice(tasks)
        kind = draw.choice(["kill", "kill", "pause", "partition"])
        if kind == "pause":
            faults.append(Pause(task, at, draw.choice([0.3, 2.0])))
        elif kind == "partition":
            faults.append(Partition(task, at, draw.choice([0.3, 3.0]), one_way=draw.random() < 0.3))
        elif task.startswith("worker"):
            back = draw.choice([None, 0.5])
            faults.append(Kill(task, at, back))
            killed.add(task)
        elif checkpointed:
            faults.append(Kill(task, at, draw.choice([0.1, 1.0])))
    if not checkpointed:
        faults = [f for f in faults if isinstance(f, Kill) or f.seconds < 1.0]
    if stops:
        faults += stopped(tasks, checkpointed, random.Random(f"stops {mode} {seed}"))
    if mode in AT_ONCE:
        patience_s, update = draw.choice([0.02, 0.3, 3.0]), SyncReplicas() if mode == "steps" else Async()
        update = summing(update, mode, seed)
        made = Scenario(AT_ONCE[mode], seed, ps, workers, 6, network, faults, killed, checkpointed, update)
        return replace(made, patience_s=patience_s)
    update = summing(update_of(mode, workers, draw), mode, seed)
    mode = "sync" if mode == "tokens" else mode
    return Scenario(mode, seed, ps, workers, 6, network, faults, killed, checkpointed, update)


def crowded(seed: int) -> Scenario:
    """One ps, no faults, and a worker that sends slowly: others' pushes are applied while its own still arrives. With
    odd seeds it receives slowly, too: they are applied while values still leave for it."""
    network = Network(latency_s=1e-3)
    slow = replace(network, bytes_per_s=1e3)
    links = {("worker:0", "*"): slow, **({("*", "worker:0"): slow} if seed % 2 else {})}
    network = replace(network, links=links)
    return Scenario("async", 20 * seed + 3, 1, 3, 12, network, [], set(), False, Async())


def stopped(tasks: list[str], checkpointed: bool, draw: random.Random) -> list[Fault]:
    """Pauses, most longer than heartbeats last. Without checkpoints those of a ps alone are shorter."""
    if draw.random() < 0.6:
        return []
    at, seconds = draw.uniform(0.1, 3.0), draw.choice([1.0, 4.5, 7.0, 12.0, 30.0])
    workers = [task for task in tasks if task.startswith("worker")]
    who = draw.choice([[draw.choice(tasks)], [draw.choice(tasks)], workers, tasks])
    if not checkpointed and seconds > 4.0 and "chief" not in who and any(task.startswith("ps") for task in who):
        seconds = 4.0
    return [Pause(task, at, seconds + (0.0 if draw.random() < 0.7 else draw.uniform(0.0, 1.5))) for task in who]


def with_a_lost_ps(mode: str, seed: int) -> Scenario:
    """A ps that is lost while there is much to lose, with some seeds a worker as well."""
    chosen, draw = scenario(mode, seed, stops=False), random.Random(f"ps {mode} {seed}")
    faults: list[Fault] = [Kill(f"ps:{draw.randrange(chosen.ps)}", draw.uniform(0.8, 2.5), 0.5)]
    killed = {"worker:0"} if seed % 4 == 3 else set()
    faults += [Kill(name, draw.uniform(0.8, 2.5)) for name in killed]
    return replace(chosen, faults=faults, killed=killed, checkpointed=True, pushes=12)


def with_a_killed_chief(mode: str, seed: int) -> Scenario:
    """A chief that is killed and started again: alone, with a ps, or with a ps and a full disk."""
    chosen, draw = scenario(mode, seed, stops=False), random.Random(f"chief {mode} {seed}")
    at, back, ps = draw.uniform(0.3, 2.5), draw.choice([0.1, 1.0, 3.0]), draw.randrange(chosen.ps)
    faults: list[Fault] = [Kill("chief", at, back)]
    if seed % 3:
        faults.append(Kill(f"ps:{ps}", draw.choice([at, at + 0.2]), draw.choice([0.1, 1.0])))
    if seed % 3 == 2:
        faults += [DiskFull(max(0.3, at - 1.0), draw.choice([0.8, 2.0, 4.0])), Kill(f"ps:{ps}", at - 0.6, 0.1)]
    if draw.random() < 0.3:
        faults.append(Kill("worker:0", at + draw.uniform(-0.2, 0.5)))
    killed = {"worker:0"} if any(isinstance(f, Kill) and f.task == "worker:0" for f in faults) else set()
    return replace(chosen, faults=[f for f in faults if f.at > 0.2], killed=killed, checkpointed=True, pushes=10)


def with_a_forger(mode: str, seed: int) -> Scenario:
    """A stranger that claims to be each of the others, beside the faults of the seed."""
    return replace(scenario(mode, seed, stops=False), forged=True)


def with_late_commits(mode: str, seed: int) -> Scenario:
    """Versions are committed a while after they are published, beside the faults of the seed."""
    late_s = random.Random(f"commit {mode} {seed}").choice([1e-3, 0.02, 0.3])
    return replace(scenario(mode, seed), commit_s=late_s)


def varied(mode: str, seed: int) -> Scenario:
    """No faults but those of the network; optimizers, dtypes, gradients and the tuning vary instead."""
    chosen = scenario(mode, seed, stops=False)
    chosen = replace(chosen, faults=[], killed=set(), checkpointed=True, update=options(chosen.update, seed))
    made = variety(chosen.mode, seed, chosen.ps)
    if chosen.network.loss:  # an answer in very many pieces would never come whole
        made.tuning["piece_nbytes"] = max(64, made.tuning["piece_nbytes"])
    return replace(chosen, variety=made)


def spoilt(mode: str, seed: int) -> Scenario:
    """Pushes with NaN in the modes and sizes of `scenario`, so that they come to the pass that writes and checks at
    once, which `varied` hardly takes. No faults but those of the network."""
    chosen = scenario(mode, seed, stops=False)
    return replace(chosen, faults=[], killed=set(), variety=Variety(spoils=True))


def varied_with_kills(mode: str, seed: int) -> Scenario:
    """As `varied`, with a ps, a chief or a worker that is killed, and no pushes beside those that leave a mark."""
    chosen, lost = varied(mode, seed), with_a_lost_ps if seed % 2 else with_a_killed_chief
    kills = lost(mode, seed)
    assert chosen.variety is not None
    quiet = replace(chosen.variety, spoils=False, some=False)
    return replace(chosen, faults=kills.faults, killed=kills.killed, pushes=kills.pushes, variety=quiet)


def summed(chosen: Scenario) -> Scenario:
    """A step adds gradients: a key that one push has would be divided by one, a cell by all pushes."""
    update = chosen.update
    if isinstance(update, SyncReplicas):
        return replace(chosen, update=record.replace(update, reduction="sum"))
    return chosen


def compressed(seed: int) -> dict[str, Any]:
    """What `run` takes to have pushes compressed, and half of the seeds' pulls as what changed."""
    return {"compression": COMPRESSORS[seed % len(COMPRESSORS)], "deltas": seed % 2 == 1}


def tuned(chosen: Scenario) -> Tuning:
    """The sizes and times of a seed: odd ones apply pushes of any size ahead, others none; half of all worlds send
    messages one by one, and lose and reorder them one by one. In a third of them the pass that applies a push
    checks it, too."""
    seed, small, crowd = chosen.seed, Tuning.small(), bool(chosen.network.links)
    return small.where(
        together=random.Random(f"{seed}/together").choice((1, 64)),
        small_nbytes=1 << 18 if chosen.patience_s is not None else random.Random(f"{seed}/small").choice((0, 1 << 18)),
        rows__kept=1 if seed % 8 == 6 else small.rows.kept,
        client__step_patience_s=chosen.patience_s or small.client.step_patience_s,
        client__streamed_pieces=0 if seed % 4 else small.client.streamed_pieces,
        store__ahead_pieces=(small.store.ahead_pieces, 0, 1000, 0)[seed % 4],
        store__most_skipped=0 if crowd else small.store.most_skipped,
        store__large_pieces=0 if seed % 4 == 2 else small.store.large_pieces,
        store__stream_nbytes=0 if seed % 3 == 0 else small.store.stream_nbytes,
        store__looking_nbytes=0 if seed % 3 == 0 else small.store.looking_nbytes,
    )


def run(
    chosen: Scenario, *, keep: list[SimulatedCluster] | None = None, compression: Any = None, deltas: bool = False,
    variables: int = len(NAMES), keyed: bool = False,
) -> list[str]:  # fmt: skip
    """Run a scenario; the promises that it broke. Some seeds have tables that are read and pushed by rows: whole, in
    parts, and on ps that forget nearly every list of rows. With odd seeds pushes of any size are applied ahead, with
    others none is, and the answer comes first; with those of 3 modulo 4 it takes them a while to come, and the answer
    comes with them. With those of 1 modulo 3 workers assign values.
    With fewer `variables` than ps, some ps hold none. `keyed`: there is a keyed table, too.
    """
    at_once = chosen.patience_s is not None
    history = History(chosen.workers, chosen.pushes, names=NAMES[:variables], steps=at_once)
    history.variety, history.keyed = chosen.variety or history.variety, keyed
    compression = compression or history.variety.compression
    history.assigns = chosen.seed % 3 == 1 and compression is None and variables == len(NAMES)
    rows = variables == len(NAMES) and chosen.seed % 8 in (1, 5, 6)
    parts = 2 if chosen.seed % 8 == 5 and not keyed else 1
    slow = chosen.mode == "async" and chosen.seed % 4 == 3
    crowd = bool(chosen.network.links)
    network = replace(chosen.network, bytes_per_s=1e4) if slow and not crowd else chosen.network
    cluster = SimulatedCluster(
        train, history, chosen.checkpointed, chosen.seed % 5 == 0, compression, deltas, rows, parts, ps=chosen.ps,
        workers=chosen.workers, seed=chosen.seed, update=chosen.update, network=network, faults=chosen.faults,
        compute=Compute(0.1, 0.5), tuning=tuned(chosen).where(**history.variety.tuning),
        memory_faults=history.variety.memory_faults,
        shared_memory=at_once or chosen.seed % 5 in (0, 2, 4), datagrams=chosen.seed % 7 not in (3, 6),
    )  # fmt: skip
    if chosen.forged:
        cluster.world.process("forger", partial(forge, history.sessions))
    with cluster, late_commits(chosen.commit_s):
        cluster.run(until_s=900.0)
        found = violations(cluster, history, chosen.mode, BOUND, chosen.killed, chosen.update)
        if keep is not None:
            keep.append(cluster)
        if found:
            found.append(f"replay: {chosen.replay}; {chosen}")
            found.append(cluster.world.trace_text(last=200))
    return found
