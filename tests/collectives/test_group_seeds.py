"""A group under faults: after each operation all hold the right sum in the same bits, or a failure has a name.

Workers are killed, stopped and cut off, and messages are lost, doubled and reordered. What each worker has got is
written down outside of the world.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import dps
from dps.chief.cluster import Cluster
from dps.collectives.flow import Flow
from dps.collectives.group import Group
from dps.collectives.member import GroupMember
from dps.collectives.memory import BoardSlot, Memories
from dps.collectives.roster import GroupRoster
from dps.collectives.sums import ServedGroup, SumOperation
from dps.errors import DeadlineExceeded, DpsError, TaskLost
from dps.transport.sim import Kill, Network, Partition, Pause, World
from dps.transport.sim.world import Fault
from dps.transport.tuning import Tuning
from tests.seeds import chunks

CHIEF = "chief:2220"
OVER = ("ended", "killed")
TIMEOUT_S = 20.0
NAMED = (DeadlineExceeded, TaskLost)


@dataclass
class Books:
    """What happened in the world that runs now."""

    got: dict[int, dict[int, tuple[tuple[str, ...], bytes]]] = field(default_factory=dict)
    """For each operation, what each worker has got: the members as it knew them afterwards, and the bytes."""
    failed: dict[int, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def brought(task: int, number: int, count: int) -> Any:
    """What a worker brings to an operation; sums of it depend on their order."""
    draw = np.random.default_rng([task, number])
    return (draw.normal(size=count) * 10.0 ** draw.integers(-4, 4, count)).astype(np.float32)


@dataclass
class Scenario:
    """What a seed means."""

    workers: int
    algorithm: str
    counts: list[int]
    pauses: list[float]
    ends: bool
    faults: list[Fault]
    network: Network
    shared: bool

    @staticmethod
    def of(seed: int) -> Scenario:
        draw = random.Random(f"collectives {seed}")
        workers, rough = draw.choice([2, 3, 3, 4]), draw.random() < 0.5
        network = Network(
            latency_s=draw.choice([1e-3, 5e-3, 2e-2]), loss=draw.choice([0.02, 0.1]) if rough else 0.0,
            double=0.1 if rough else 0.0, reorder=0.1 if rough else 0.0,
        )  # fmt: skip
        faults: list[Fault] = []
        for _ in range(draw.choice([0, 1, 1, 2])):
            name, at = f"worker:{draw.randrange(workers)}", draw.uniform(8, 60) * network.latency_s
            kind = draw.choice(["kill", "kill", "pause", "partition"])
            if kind == "kill":
                faults.append(Kill(name, at))
            elif kind == "pause":
                faults.append(Pause(name, at, draw.choice([0.5, 9.0])))
            else:
                faults.append(Partition(name, at, draw.choice([0.5, 9.0]), one_way=draw.random() < 0.3))
        counts = [draw.choice([0, 1, 7, 40, 90]) for _ in range(5)]
        pauses = [draw.choice([0.0, 0.0, 0.0, 0.01]) for _ in range(5 * workers)]
        algorithm = draw.choice(["auto", "ring", "tree", "direct", "all"])
        what = Scenario(workers, algorithm, counts, pauses, draw.random() < 0.2, faults, network, draw.random() < 0.5)
        return what._through_a_ps(draw) if seed % 3 == 2 else what

    @property
    def ps_dies(self) -> bool:
        """Whether the ps is killed, and does not come back."""
        return any(isinstance(f, Kill) and f.task == "ps:0" and f.restart_after is None for f in self.faults)

    @staticmethod
    def where_one_hears_late(seed: int) -> Scenario:
        """A worker is killed while pieces of another one are on their way for long: who has them all could still
        complete the operation when the others are told that it is to be repeated."""
        draw, fast = random.Random(f"late {seed}"), Network(latency_s=1e-3)
        piece, told = replace(fast, latency_s=draw.uniform(0.2, 1.5)), replace(fast, latency_s=draw.uniform(0.05, 0.4))
        slow = {("worker:1", "worker:0"): piece, ("worker:2", "worker:1"): piece, ("worker:1", "chief"): told}
        faults: list[Fault] = [Kill("worker:2", draw.uniform(0.5, 8))]
        algorithm = draw.choice(["all", "ring", "direct"])
        return Scenario(3, algorithm, [40] * 5, [0.0] * 15, False, faults, replace(fast, links=slow), False)

    def _through_a_ps(self, draw: random.Random) -> Scenario:
        """The same through a ps, to which something may happen, too."""
        self.algorithm, at = "ps", draw.uniform(8, 60) * self.network.latency_s
        kind = draw.choice(["", "", "kill", "restart", "pause", "partition"])
        if kind in ("kill", "restart"):
            self.faults.append(Kill("ps:0", at, 0.5 if kind == "restart" else None))
        elif kind:
            fault = Pause if kind == "pause" else Partition
            self.faults.append(fault("ps:0", at, draw.choice([0.5, 9.0])))
        return self


def worker(task: int, what: Scenario, books: Books) -> int:
    with dps.Server(None, "worker", task, chief=CHIEF, bind=f"worker{task}:0") as server:
        try:
            server.wait_joined(server.runtime.now() + TIMEOUT_S)
            settings = {"algorithm": what.algorithm, "on_loss": "end" if what.ends else "continue"}
            group = Group(server.home(), server.binding, timeout=TIMEOUT_S, **settings)  # type: ignore[arg-type]
            operate(group, server, what, books)
            group.close()
        except DpsError as error:
            books.failed[task] = f"{type(error).__name__}: {error}"
            if not isinstance(error, NAMED):
                books.wrong.append(f"worker:{task} raised {error!r}")
    return 0


def operate(group: Group, server: dps.Server, what: Scenario, books: Books) -> None:
    for number, count in enumerate(what.counts):
        server.runtime.sleep(what.pauses[number * what.workers + server.task])
        given = brought(server.task, number, count)
        kept = given.copy()
        if number == 3:  # rows of the members, one after the other
            found = np.concatenate([row for (row,) in group.gather([given[: server.task + 1]])])
        else:
            (found,) = group.all_reduce([given])
        if not np.array_equal(given, kept):
            books.wrong.append(f"worker:{server.task}: its own array was changed")
        books.got.setdefault(number, {})[server.task] = tuple(group.members), found.tobytes()


def chief(workers: int, ps: int) -> int:
    return dps.Server(None, "chief", 0, bind=CHIEF, ps=ps, workers=workers, owned=True).join() or 0


def ps() -> int:
    return dps.Server(None, "ps", 0, chief=CHIEF, bind="ps0:0").join() or 0


def run(seed: int, what: Scenario | None = None) -> list[str]:
    """What is wrong; empty when nothing is. `what`: another scenario than the seed's."""
    what, books = what or Scenario.of(seed), Books()
    tuning = Tuning.small()
    world = World(
        seed, what.network, faults=what.faults, trace=False, shared_memory=what.shared, piece_nbytes=tuning.piece_nbytes
    )
    with world:
        world.process("chief", lambda: chief(what.workers, int(what.algorithm == "ps")))
        if what.algorithm == "ps":
            world.process("ps:0", ps)
        for task in range(what.workers):
            world.process(f"worker:{task}", lambda task=task: worker(task, what, books))  # type: ignore[misc]
        mine = [process for name, process in world.processes.items() if name.startswith("worker")]
        world.run(400.0, stop=lambda: all(process.state in OVER for process in mine))
        found = list(books.wrong)
        found += [f"{p.name}: {p.state}" for p in mine if p.state not in OVER]
        found += [f"{name}: {p.error!r}" for name, p in world.processes.items() if p.error]
    return [f"seed {seed}: {text}" for text in found + check(what, books)]


def check(what: Scenario, books: Books) -> list[str]:
    """Compare what the workers have got with each other, and with what it must be."""
    found = []
    for number, got in books.got.items():
        got = _of_the_group(got, number, what, books) if what.counts[number] else {}
        if not got:  # no elements, so there was no operation
            continue
        if len({data for _, data in got.values()}) > 1:
            found.append(f"operation {number}: {sorted(got)} have different bits")
            continue
        members, data = next(iter(got.values()))
        if any(other != members for other, _ in got.values()):
            found.append(f"operation {number}: {got} are different members")
        tasks = [int(name.partition(":")[2]) for name in members]
        if not set(got) <= set(tasks):
            found.append(f"operation {number}: {sorted(got)} have a result of {tasks}")
        parts = [brought(task, number, what.counts[number]) for task in tasks]
        if number == 3:
            if data != np.concatenate([part[: t + 1] for t, part in zip(tasks, parts, strict=True)]).tobytes():
                found.append(f"operation {number}: the rows are not those of {tasks}")
        elif not np.allclose(np.frombuffer(data, np.float32), sum(parts), rtol=1e-4, atol=1e-2):
            found.append(f"operation {number}: the sum is not that of {tasks}")
        elif what.algorithm == "ps" and data != functools.reduce(np.add, parts).tobytes():
            found.append(f"operation {number}: the sum is not taken in the order of {tasks}")
    hurt = {name for fault in what.faults for name in _names(fault)}
    for task in range(what.workers):
        name, last = f"worker:{task}", len(what.counts) - 1
        if name in hurt or task in books.got.get(last, {}):
            continue
        formed = bool(books.got.get(0))
        if task not in books.failed:
            found.append(f"{name} has neither all results nor a failure")
        elif what.network.loss and "has left" in books.failed[task]:
            continue  # who leaves serves the others for 2 s, in which all messages to one of them were lost
        elif not what.faults:
            found.append(f"{name} failed without a fault: {books.failed[task]}")
        elif formed and not what.ends and not what.ps_dies:
            found.append(f"{name} did not go on: {books.failed[task]}")
        elif not what.ends and not any(other in books.failed[task] for other in hurt | {"chief"}):
            found.append(f"{name} failed without a name: {books.failed[task]}")
    return found


def _of_the_group(got: dict[int, Any], number: int, what: Scenario, books: Books) -> dict[int, Any]:
    """Without those that were lost, or taken for lost, in their last operation: the group may have repeated it without
    them."""
    last = {task: max(n for n, of in books.got.items() if task in of and what.counts[n]) for task in got}
    killed = {int(fault.task[-1]) for fault in what.faults if isinstance(fault, Kill) and fault.task != "ps:0"}
    lost = killed.union(books.failed)
    kept = {task: value for task, value in got.items() if task not in lost or last[task] > number}
    return kept or got


def _names(fault: Any) -> list[str]:
    found = getattr(fault, "tasks", None) or fault.task
    return [found] if isinstance(found, str) else list(found)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", chunks())
def test_all_hold_the_same_sums_or_a_failure_has_a_name(seeds: range) -> None:
    for seed in seeds:
        found = run(seed)
        assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(348, id="leaves while its messages are lost"),
        pytest.param(1202, id="a ps is missing and the others have given up"),
        pytest.param(1323, id="leaves with a sum that the other one repeats"),
        pytest.param(70103, id="asks the chief for the group before it has registered again"),
    ],
)
def test_what_many_seeds_have_found(seed: int) -> None:
    assert run(seed) == []


# -- planted bugs ----------------------------------------------------------------------------------------------


def counts_copies_twice(self: Flow, rank: int, index: int, phase: Any, data: Any) -> None:
    held = self._held.get(index)
    if held and rank in held and self._state[index] != 2:  # a copy of what has come fills another one's place
        missing = [other for other in self._route(index).takes if other not in held]
        rank = missing[0] if missing else rank
    came(self, rank, index, phase, data)


def adds_as_it_comes(self: Flow, index: int) -> None:
    total = self._total
    self._total = lambda out, parts: total(out, [parts[self.rank], *[p for p in parts if p is not parts[self.rank]]])
    add(self, index)
    self._total = total


def starts_from_the_least(self: GroupRoster) -> None:
    before = self.generation
    form(self)
    if self.generation != before:
        self.base = min(entry.completed for entry in self.here.values())


def does_not_freeze(self: GroupMember, group: Any) -> None:
    told(self, group)
    frozen = self._frozen
    if frozen and self.formed is not None and "thaws" not in self.__dict__:
        self.__dict__["thaws"] = True
        self._frozen = 0  # it goes on, and the chief believes that it does not
        self.node.after(0.3, lambda: setattr(self, "_frozen", frozen) if self.formed.generation < frozen else None)  # type: ignore[union-attr]


def one_buffer(self: Memories, number: int, kind: int, nbytes: int) -> Any:
    return region(self, 0, kind, nbytes)


def stays_when_one_is_lost(self: GroupRoster, task: int, why: str, after: int = 0) -> None:
    if why.startswith("has left"):
        lost(self, task, why, after)


def looks_before_it_is_whole(self: BoardSlot, number: int, nbytes: int) -> Any:
    seen = int(self._numbers[0])
    return look(self, seen, nbytes) if seen else None


def sums_before_all_have_come(self: SumOperation, message: Any, size: int) -> bool:
    return take(self, message, size - 1 if size > 2 else size)


def sums_copies_twice(self: SumOperation, message: Any, size: int) -> bool:
    parts = self._parts.get(message.index, {})
    if message.rank in parts:  # a copy of what has come fills another one's place
        absent = [rank for rank in range(size) if rank not in parts]
        message = type(message)(*[getattr(message, n) if n != "rank" else absent[0] for n in message._fields])
    return take(self, message, size)


def sums_as_it_comes(self: SumOperation, index: int) -> None:
    parts = list(self._parts[index].values())
    self._parts[index] = dict(enumerate(parts))
    add_up(self, index)


def keeps_one_operation(self: ServedGroup, message: Any) -> Any:
    for number in [number for number in self.sums if number != message.op]:
        del self.sums[number]
    return serve(self, message)


def does_not_see_that_the_ps_is_another(self: Cluster, before: Any) -> Any:
    return list(before) or helper(self, before)


look = BoardSlot.read_part
came, add, form, told = Flow.take_piece, Flow._sum_piece, GroupRoster._form_generation, GroupMember._take_group
region, lost = Memories.region, GroupRoster.remove_member
take, add_up, serve, helper = SumOperation.add_part, SumOperation._sum_piece, ServedGroup.find_operation, Cluster.helper


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("cls", "name", "mutant", "first"),
    [
        (Flow, "take_piece", counts_copies_twice, 0),
        (Flow, "_sum_piece", adds_as_it_comes, 0),
        (Flow, "ask_missing_pieces", lambda self: None, 0),
        (Flow, "ask_source", lambda self, source: None, 280),
        (GroupRoster, "_form_generation", starts_from_the_least, 60),
        (GroupRoster, "remove_member", stays_when_one_is_lost, 0),
        (Memories, "region", one_buffer, 0),
        (BoardSlot, "read_part", looks_before_it_is_whole, 0),
        (SumOperation, "add_part", sums_before_all_have_come, 0),
        (SumOperation, "add_part", sums_copies_twice, 0),
        (SumOperation, "_sum_piece", sums_as_it_comes, 0),
        (SumOperation, "missing_members", lambda self, index, size: [], 100),
        (ServedGroup, "find_operation", keeps_one_operation, 300),
        (Cluster, "helper", does_not_see_that_the_ps_is_another, 72),
    ],
)
def test_planted_bugs_are_found(cls: type, name: str, mutant: Any, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cls, name, mutant)
    assert any(run(seed) for seed in range(first, first + 60)), f"no seed notices a broken {cls.__name__}.{name}"


@pytest.mark.nightly
def test_a_member_that_goes_on_after_it_was_told_to_stop_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = range(40)
    assert not any(run(seed, Scenario.where_one_hears_late(seed)) for seed in seeds)
    monkeypatch.setattr(GroupMember, "_take_group", does_not_freeze)
    assert any(run(seed, Scenario.where_one_hears_late(seed)) for seed in seeds), "no seed notices it"
