"""Pushes of some variables and of rows, which go to some ps alone; a checker of the global step.

What it holds to, in the words of docs/guide/update-modes.md: each push counts once; the step ps has every count soon;
nobody hears of a step that was not made; a checkpoint has the step of its values; `StopAtStep` is not much too late.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

import dps
from dps.checkpoint import candidates, load, newest_whole, read_part
from dps.launch.commands.simulate import SimulatedCluster
from dps.transport.sim import Compute, Kill, Network, Partition, Pause
from dps.transport.sim.world import Fault
from dps.transport.tuning import Tuning

WORKERS, PUSHES, ROWS = 3, 14, 7
DIR = "run"
MODES: dict[str, Any] = {"async": dps.Async(), "bounded": dps.Bounded(2)}
Cells = dict[str, list[int]]
"""The elements, or rows, to which a push adds one, by variable."""


@dataclass
class Made:
    """A simulated run of a seed, and what its workers saw."""

    cluster: SimulatedCluster
    mode: str
    ps: int
    calm: bool
    """Whether no message is lost, and no task killed or stopped."""
    latency_s: float
    last_step: int
    """Of StopAtStep; 0: there is none."""
    own: bool
    """Whether each worker only pushes one variable, and so talks to one ps."""
    killed: set[str]
    plan: Any = None


def train(server: Any, made: Made) -> None:
    """Pushes of all variables, of one, of two, or of some rows. All but some of those of all are numbered in the
    trace."""
    names, draw = [f"v{i}" for i in range(made.ps)], random.Random(f"{made.cluster.world.seed} {server.task}")
    params: dict[str, Any] = {name: np.zeros(WORKERS) for name in names}
    params["t"] = dps.Variable(np.zeros((ROWS, 2)), sparse=True)
    hooks: list[dps.Hook] = [dps.CheckpointSaver(steps=5)]
    hooks += [dps.StopAtStep(made.last_step)] if made.last_step else []
    with dps.Session(
        server, params, optimizer=dps.optim.SGD(1.0), checkpoint_dir=DIR, keep_checkpoints=1000, hooks=hooks,
        timeout=200, partitioner=lambda shape, dtype: made.ps if len(shape) > 1 else 1,
    ) as session:  # fmt: skip
        connection, runtime = session._connection, server.runtime
        made.plan = connection.agreed.plan

        def knows(result: dps.Push | None, under: int = 0) -> None:
            told = result is not None and result.accepted and under == connection.caller.incarnation
            about = {"push": result.step} if result is not None and told else {}  # not one of before a rollback
            runtime.record("knows", epoch=connection.membership.epoch, step=session.global_step,
                           incarnation=connection.caller.incarnation, **about)  # fmt: skip

        for _ in range(1000 if made.last_step else PUSHES):
            if session.should_stop():
                break
            cells = {names[server.task % made.ps]: [server.task]} if made.own else chosen(names, server.task, draw)
            runtime.record("begins")
            under = connection.caller.incarnation
            if len(cells) == made.ps and "t" not in cells and draw.random() < 0.5:
                call = session.step if draw.random() < 0.5 else session.push
                result = call(gradients(cells))
                knows(result if isinstance(result, dps.Push) else None, under)
                continue
            reply = session.push_async(gradients(cells))
            runtime.record("pushing", incarnation=connection.caller.incarnation, epoch=connection.membership.epoch,
                           numbers=numbers_of(session, cells), cells=cells)  # fmt: skip
            if draw.random() < 0.8:
                knows(reply.result(), under)
            if draw.random() < 0.2 and not made.own:
                session.pull()
                knows(None)


def chosen(names: list[str], task: int, draw: random.Random) -> Cells:
    """What the next push is for."""
    kind = draw.choice(["all", "one", "one", "two", "rows", "rows"])
    if kind == "rows":
        return {"t": sorted(draw.sample(range(ROWS), draw.choice([1, 1, 2, 5])))}
    some = names if kind == "all" else draw.sample(names, min(len(names), 1 + (kind == "two")))
    return {name: [task] for name in some}


def gradients(cells: Cells) -> dict[str, Any]:
    """Gradients that add one to these cells."""
    found: dict[str, Any] = {}
    for name, where in cells.items():
        if name == "t":
            found[name] = dps.Rows(np.array(where), np.full((len(where), 2), -1.0))
        else:
            found[name] = np.zeros(WORKERS)
            found[name][where] = -1.0
    return found


def owners(plan: Any, cells: Cells) -> set[int]:
    """The ps on which these cells are."""
    found = set()
    for part in plan.parts:
        where = cells.get(plan.variables[part.variable].name, ())
        if any(part.row0 <= cell < part.row0 + part.shape[0] for cell in where):
            found.add(part.ps)
    return found


def numbers_of(session: Any, cells: Cells) -> dict[int, int]:
    """The numbers of the push that was sent last, on the ps that it belongs to and, in bounded mode, on the step ps."""
    agreed, numbers = session._connection.agreed, session._pushes.numbers
    there = owners(agreed.plan, cells) | ({agreed.step_ps} if isinstance(session.update, dps.Bounded) else set())
    return {ps: numbers[ps] for ps in sorted(there)}


def made_of(mode: str, seed: int) -> Made:
    """The cluster of a seed: half of them calm; else with kills of ps, chief and workers, partitions and pauses."""
    draw = random.Random(f"{mode} {seed} apart")
    ps, calm = draw.choice([2, 2, 3]), draw.random() < 0.4
    faults: list[Fault] = []
    killed: set[str] = set()
    for _ in range(0 if calm else draw.randint(1, 3)):
        at, kind = draw.uniform(0.3, 2.5), draw.choice(["ps", "ps", "ps", "chief", "worker", "pause", "partition"])
        if kind == "ps":
            faults.append(Kill(f"ps:{draw.randrange(ps)}", at, draw.choice([0.1, 1.0])))
        elif kind == "chief":
            faults.append(Kill("chief", at, draw.choice([0.1, 1.0])))
        elif kind == "worker":
            task = f"worker:{draw.randrange(1, WORKERS)}"
            faults.append(Kill(task, at, draw.choice([None, 0.5])))
            killed.add(task)
        elif kind == "pause":
            faults.append(Pause(draw.choice([f"ps:{draw.randrange(ps)}", "worker:0"]), at, draw.choice([0.3, 2.0])))
        else:
            faults.append(Partition(f"ps:{draw.randrange(ps)}", at, draw.choice([0.3, 1.0])))
    rough = not calm and draw.random() < 0.5
    latency_s = draw.choice([1e-4, 1e-3, 1e-2])
    network = Network(
        latency_s=latency_s, loss=draw.choice([0.01, 0.05]) if rough else 0.0,
        double=draw.choice([0.0, 0.05]) if rough else 0.0, reorder=draw.choice([0.0, 0.1]) if rough else 0.0,
    )  # fmt: skip
    last_step = draw.choice([0, 25]) if calm else 0
    own = calm and draw.random() < 0.3
    made = Made(None, mode, ps, calm, latency_s, last_step, own, killed)  # type: ignore[arg-type]
    made.cluster = SimulatedCluster(
        train, made, ps=ps, workers=WORKERS, seed=seed, update=MODES[mode], network=network, faults=faults,
        compute=Compute(draw.choice([0.01, 0.1]), 0.5), shared_memory=draw.random() < 0.5, restarts=4,
        tuning=Tuning.small().where(small_nbytes=draw.choice([0, 1 << 18]), store__ahead_pieces=draw.choice([0, 3])),
    )  # fmt: skip
    return made


def run(mode: str, seed: int, keep: list[Made] | None = None) -> list[str]:
    """The promises that a seed breaks."""
    made = made_of(mode, seed)
    with made.cluster as cluster:
        outcome = cluster.run(until_s=600.0)
        if keep is not None:
            keep.append(made)
        gone = made.killed | {e.detail["name"] for e in outcome.trace if e.what == "worker lost"}
        found = [f"{name}: {text}" for name, text in outcome.errors.items() if name not in gone]
        found += [f"{name} {how}" for name, how in outcome.lost.items() if name not in gone]
        found += Counts(made, outcome.trace).violations() if made.plan is not None else []
        if found:
            found.append(f"replay: run({mode!r}, {seed}); {cluster.world.trace_text(last=60)}")
    return found


class Counts:
    """The trace of a run, read once, and what it must agree with."""

    def __init__(self, made: Made, trace: list[Any]) -> None:
        self.made, self.trace = made, trace
        self.start: dict[int, int] = {}
        """The step with which each run epoch began."""
        self.restored: dict[int, str] = {}
        self.pushes: dict[tuple[int, int, int], tuple[int, Cells]] = {}
        """By ps, incarnation and number: which push it is of, and its cells."""
        self.applied: dict[tuple[int, int], list[tuple[int, int, bool, tuple[int, int, int]]]] = {}
        """By ps and run epoch: version, time order, whether it counts there, and task, incarnation, number."""
        self.step_ps = made.plan.ps[0]
        self.found: list[str] = []
        for event in trace:
            if event.what == "pushing":
                at = event.detail
                for ps, number in at["numbers"].items():
                    self.pushes[ps, at["incarnation"], number] = id(event), at["cells"]

    def violations(self) -> list[str]:
        """Every promise that the run broke."""
        self._replay()
        self._check_saved()
        if self.made.last_step:
            self._check_end()
        return self.found

    def _replay(self) -> None:
        """Count along the trace."""
        now: dict[int, int] = {}
        taken: dict[tuple[int, int], int] = {}
        counts: dict[tuple[int, int], list[float]] = {}
        any_ps: dict[int, set[Any]] = {}
        last: dict[int, int] = {}
        ends = self._epoch_ends()
        for event in self.trace:
            at, what = event.detail, event.what
            if what == "knows":
                most = self.start.get(at["epoch"], 0) + len(any_ps.get(at["epoch"], ()))
                if at["step"] > most:
                    self.found.append(f"{event} is a step that nobody has made; {most} are made")
                if "push" in at:
                    if at["push"] < last.get(at["incarnation"], 0):
                        self.found.append(f"{event} follows a push of step {last[at['incarnation']]}")
                    last[at["incarnation"]] = at["push"]
            elif what == "epoch":
                self.start[at["epoch"]] = now[at["epoch"]] = at["step"]
                self.restored[at["epoch"]] = at["restore"]
            elif what == "applied":
                self._note_applied(event, now, any_ps)
            elif what == "counts":
                ps, epoch = _task(event), at["epoch"]
                counts.setdefault((ps, epoch), []).append(event.time_s)
            elif what == "counted":
                key = at["ps"], at["epoch"]
                taken[key] = taken.get(key, 0) + at["new"]
                now[at["epoch"]] += at["new"]
                if taken[key] > len(counts.get(key, ())):
                    self.found.append(f"{event.time_s:.4f}: the step ps has {taken[key]} pushes of ps:{key[0]}, "
                                      f"which has counted {len(counts.get(key, ()))}")  # fmt: skip
                if at["step"] != now[at["epoch"]]:
                    self.found.append(f"{event.time_s:.4f}: the step is {at['step']}, and {now[at['epoch']]} were made")
                self._check_late(event, taken[key], counts.get(key, []))
        for (ps, epoch), times in counts.items():
            lacks = times[taken.get((ps, epoch), 0) :]
            if self.made.calm and lacks and lacks[0] + self._late_s < ends.get(epoch, 0.0):
                self.found.append(f"the step ps never heard of {len(lacks)} pushes that ps:{ps} counted")
        self._check_counted_once()

    @property
    def _late_s(self) -> float:
        """How long a count may take to come to the step ps in a calm run: an interval, and three messages, each of up
        to twice the latency: the number before, the answer to it, and the next one."""
        return Tuning().modes.count_s + 6 * self.made.latency_s

    def _epoch_ends(self) -> dict[int, float]:
        """When the last push of each epoch was applied."""
        return {e.detail["epoch"]: e.time_s for e in self.trace if e.what == "applied"}

    def _check_late(self, event: Any, taken: int, times: list[float]) -> None:
        if self.made.calm and event.time_s - times[taken - event.detail["new"]] > self._late_s:
            self.found.append(f"{event.time_s:.4f}: the step ps hears of a push of {times[taken - 1]:.4f}")

    def _note_applied(self, event: Any, now: dict[int, int], any_ps: dict[int, set[Any]]) -> None:
        at, ps = event.detail, _task(event)
        ((task, incarnation, number),) = at["pushes"]
        of, _ = self.pushes.get((ps, incarnation, number), ((incarnation, number), {}))
        any_ps.setdefault(at["epoch"], set()).add(of)
        if ps == self.step_ps:
            now[at["epoch"]] += 1
            if at["step"] != now[at["epoch"]]:
                self.found.append(f"{event.time_s:.4f}: push {number} of worker:{task} made step {at['step']}, "
                                  f"which was {now[at['epoch']]}")  # fmt: skip
        rows = self.applied.setdefault((ps, at["epoch"]), [])
        rows.append((at["counter"], len(rows), ps == self.step_ps, (task, incarnation, number)))

    def _check_counted_once(self) -> None:
        """Each push that all its ps have applied was counted by one of them."""
        counting = {(_task(e), *e.detail["push"]) for e in self.trace if e.what == "counts"}
        for (ps, epoch), rows in self.applied.items():
            self.applied[ps, epoch] = [(v, i, own or (ps, *push[1:]) in counting, push) for v, i, own, push in rows]
        of_push: dict[int, list[bool]] = {}
        wanted: dict[int, int] = {}
        for of, _ in self.pushes.values():
            wanted[of] = wanted.get(of, 0) + 1
        for (ps, _), rows in self.applied.items():
            for _, _, counts, (_, incarnation, number) in rows:
                if (ps, incarnation, number) in self.pushes:
                    of_push.setdefault(self.pushes[ps, incarnation, number][0], []).append(counts)
        for of, each in of_push.items():
            if sum(each) > 1 or (len(each) == wanted[of] and sum(each) != 1):
                self.found.append(f"a push was counted {sum(each)} times, on {len(each)} of {wanted[of]} ps")

    def _check_saved(self) -> None:
        """Each checkpoint has the step that its values have made, and the last one has all values of its pushes."""
        storage = self.made.cluster.world.storage
        for name in [e.detail["name"] for e in self.trace if e.what == "saved"]:
            manifest = load(storage, DIR, name, verify=False)
            least = most = self.start[manifest.epoch]
            for ps, shard in zip(self.made.plan.ps, manifest.shards, strict=True):
                rows = [row for row in self.applied.get((ps, manifest.epoch), ()) if row[0] <= shard.version]
                counted = sum(row[2] for row in rows)
                # In bounded mode some have nothing for the step ps, and make no version there.
                empty = [row for row in rows if row[0] == shard.version][shard.version > 0 :]
                least, most = least + counted - sum(row[2] for row in empty), most + counted
            if not least <= manifest.step <= most:
                self.found.append(f"{name} has step {manifest.step}, and its values have made {most}")
        last = newest_whole(storage, DIR, lambda _: None) if candidates(storage, DIR) else None
        if last is None:
            return
        for part in self.made.plan.parts:
            name = self.made.plan.variables[part.variable].name
            wanted = self._values(last, part, name)
            got = read_part(storage, DIR, last, name, part.row0, part.shape[0]).reshape(part.shape[0], -1)[:, 0]
            if not np.array_equal(got, wanted):
                self.found.append(f"{last.name}: {name} from {part.row0} on holds {got}, not {wanted}")

    def _values(self, manifest: Any, part: Any, name: str) -> Any:
        """What a part holds in a checkpoint, by the pushes on the way to it."""
        before, plan = self.restored[manifest.epoch], self.made.plan
        values = np.zeros(part.shape[0])
        if before:
            values = self._values(load(self.made.cluster.world.storage, DIR, before, verify=False), part, name)
        version = manifest.shards[plan.ps.index(part.ps)].version
        for counter, _, _, (task, incarnation, number) in self.applied.get((part.ps, manifest.epoch), ()):
            every = {other.name: [task] for other in plan.variables if other.name != "t"}
            _, cells = self.pushes.get((part.ps, incarnation, number), (0, every))
            if counter <= version:
                for cell in cells.get(name, ()):
                    if part.row0 <= cell < part.row0 + part.shape[0]:
                        values[cell - part.row0] += 1
        return values

    def _check_end(self) -> None:
        """Once the last step is made and told, a session makes at most one push, after which its ps hears of the step,
        then those that begin before that, and one more, which ends it."""
        made, late_s = self.made, self._late_s
        counting = sorted(
            e.time_s for e in self.trace if e.what == "counts" or (e.what == "applied" and _task(e) == self.step_ps)
        )
        if len(counting) < made.last_step:
            self.found.append(f"workers stopped at {made.last_step}, and {len(counting)} pushes were counted")
            return
        over = counting[made.last_step - 1] + late_s
        for worker in {e.process for e in self.trace if e.what == "begins"}:
            own = [e for e in self.trace if e.process == worker and e.what in ("begins", "knows")]
            begun = [e.time_s for e in own if e.what == "begins" and e.time_s > over]
            heard = [e.time_s + late_s for e in own if e.what == "knows" and begun and e.time_s > begun[0]]
            if heard and sum(at > heard[0] for at in begun) > 1:
                self.found.append(f"{worker} began {len(begun)} pushes after step {made.last_step} was told: {begun}")


def _task(event: Any) -> int:
    return int(event.process.partition(":")[2])
