"""A dataset task under faults: in each epoch each example is learned from once, whoever dies; no wait is endless.

What the ps has applied, and what workers were told that it was accepted, are counted by example.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import dps
from dps.checkpoint.folder import newest_whole
from dps.checkpoint.memory import MemoryStorage
from dps.checkpoint.restore import read_part
from dps.data.feeder import Feed
from dps.data.remote_dataset import Finishing
from dps.transport.sim import Kill, Network, Partition, Pause, World
from dps.transport.sim.world import Fault
from tests.seeds import chunks

CHIEF = "chief:2220"
OVER = ("ended", "killed")
BATCH, BATCHES, EPOCHS = 2, 8, 2
EXAMPLES = BATCH * BATCHES


@dataclass
class Books:
    """What workers say of each example, kept outside of the world. Examples are numbered through all epochs."""

    accepted: list[tuple[int, str]] = field(default_factory=list)
    """Example and worker: `push` has returned, and the push was accepted."""
    applied: list[float] = field(default_factory=list)
    """How often the ps had applied each example when a worker had seen the end of the last epoch."""


@dataclass
class Chosen:
    """What a seed chooses: one or two dataset tasks, workers and faults; or a run that is restored."""

    network: Network
    tasks: int
    workers: int
    faults: list[Fault] = field(default_factory=list)
    killed: set[str] = field(default_factory=set)
    away: set[str] = field(default_factory=set)
    """Workers that a fault takes away for a while: what they had may have been given to others when they are back."""
    ends_at_s: float | None = None
    """When all is killed, to go on from the newest checkpoint."""
    saved: int = 0
    """How many examples that checkpoint has."""


def chosen_by(seed: int) -> Chosen:
    draw = random.Random(f"feeds {seed}")
    rough = draw.random() < 0.6
    network = Network(
        latency_s=draw.choice([1e-4, 1e-3, 1e-2]), loss=draw.choice([0.02, 0.1]) if rough else 0.0,
        double=0.1 if rough else 0.0, reorder=0.1 if rough else 0.0,
    )  # fmt: skip
    tasks = draw.choice([1, 1, 2])
    if draw.random() < 0.25:
        return Chosen(network, tasks, draw.choice([1, 1, 3]), ends_at_s=draw.uniform(0.3, 2.0))
    chosen = Chosen(network, tasks, draw.choice([2, 3, 3]))
    for _ in range(draw.randint(0, 3)):
        at, name = draw.uniform(0.1, 2.0), f"worker:{draw.randrange(1, chosen.workers)}"
        kind = draw.choice(["kill", "kill", "kill", "pause", "partition"])
        if kind == "kill":
            chosen.killed.add(name)
            chosen.faults.append(Kill(name, at))
            continue
        chosen.away.add(name)
        for_s = draw.choice([0.5, 8.0])
        fault = Pause(name, at, for_s) if kind == "pause" else Partition(name, at, for_s, one_way=draw.random() < 0.3)
        chosen.faults.append(fault)
    return chosen


def chief(ps: int = 0) -> None:
    serve(dps.Server(None, "chief", 0, bind=CHIEF, ps=ps, workers=0, owned=True))


def ps() -> None:
    serve(dps.Server(None, "ps", 0, chief=CHIEF, bind="ps0:0"))


def serve(server: dps.Server) -> None:
    """Until the world ends: `join` would look each 50 ms whether the run has ended."""
    server.runtime.sleep(1000.0)


def dataset() -> dps.data.Dataset:
    return dps.data.from_arrays(np.arange(EXAMPLES)).shuffle(7, seed=3).batch(BATCH)


def feeder(task: int, tasks: int) -> None:
    server = dps.Server(None, "dataset", task, chief=CHIEF, bind=f"dataset{task}:0")
    position = dps.data.saved_position("run")
    dps.data.serve(dataset().shard(tasks, task), server, ahead=3, position=position, tasks=tasks)
    serve(server)


def worker(task: int, slow_s: float, books: Books, saves: bool) -> None:
    server = dps.Server(None, "worker", task, chief=CHIEF, bind=f"worker{task}:0")
    remote = dps.data.remote(server, timeout=100.0, prefetch=task % 3)
    saving: dict[str, Any] = {"checkpoint_dir": "run", "hooks": [dps.data.InputSaver(remote, steps=5)]} if saves else {}
    params = {"n": np.zeros(EPOCHS * EXAMPLES)}
    with dps.Session(server, params, optimizer=dps.optim.SGD(1.0), timeout=100.0, **saving) as session:
        for epoch in range(EPOCHS):
            for batch in remote:
                server.runtime.sleep(slow_s * server.runtime.random.random() / 2)
                examples, gradient = epoch * EXAMPLES + batch, np.zeros(EPOCHS * EXAMPLES)
                gradient[examples] = -1
                while not session.push({"n": gradient}).accepted:
                    pass  # the session was given up while it was away, and has joined again
                books.accepted += [(int(example), server.name) for example in examples]
                server.runtime.sleep(slow_s * server.runtime.random.random() / 2)
        books.applied = session.pull()["n"].tolist()
    server.stop()


def world_of(chosen: Chosen, seed: int, storage: MemoryStorage, books: Books) -> World:
    world = World(seed, chosen.network, faults=chosen.faults, storage=storage, piece_nbytes=4096, trace=False)
    world.process("chief", lambda: chief(1))
    world.process("ps:0", ps)
    saves = chosen.ends_at_s is not None
    for task in range(chosen.tasks):
        world.process(f"dataset:{task}", lambda task=task: feeder(task, chosen.tasks))  # type: ignore[misc]
    for task in range(chosen.workers):
        slow_s = 0.5 if task == 1 else 0.1
        world.process(f"worker:{task}", lambda t=task, s=slow_s: worker(t, s, books, saves))  # type: ignore[misc]
    return world


def run(seed: int) -> list[str]:
    """What is wrong; empty when nothing is."""
    chosen, books, storage = chosen_by(seed), Books(), MemoryStorage()
    if chosen.ends_at_s is not None:
        with world_of(chosen, seed, storage, books) as world:
            world.run(chosen.ends_at_s)
        books.accepted.clear()  # what was pushed since the checkpoint is undone
        chosen.saved = saved(storage)
    with world_of(chosen, seed + 1_000_000, storage, books) as world:
        world.run(200.0, stop=lambda: all(p.state in OVER for n, p in world.processes.items() if n[0] == "w"))
        found = [f"{n}: {p.state}" for n, p in world.processes.items() if n[0] == "w" and p.state not in OVER]
        found += [f"{name}: {p.error!r}" for name, p in world.processes.items() if p.error]
    return [f"seed {seed}: {text}" for text in found or judged(chosen, books)]


def saved(storage: MemoryStorage) -> int:
    """How many examples the newest whole checkpoint has."""
    manifest = newest_whole(storage, "run", lambda line: None)
    return 0 if manifest is None else int(sum(read_part(storage, "run", manifest, "n", 0, EPOCHS * EXAMPLES)))


def judged(chosen: Chosen, books: Books) -> list[str]:
    """What is wrong with the books of a run that has ended."""
    found = [f"example {example} was skipped" for example, times in enumerate(books.applied) if times < 1]
    if len(books.applied) != EPOCHS * EXAMPLES:
        found.append(f"the end was seen with {len(books.applied)} examples")
    for example, times in Counter(example for example, _ in books.accepted).items():
        by = {who for each, who in books.accepted if each == example}
        if times > 1 and not by & chosen.away:
            found.append(f"example {example} was accepted {times} times, of {by}")
    twice = sum(times > 1 for times in books.applied)
    # The push of a worker that is killed may be applied before the feed hears of it: its batch is given again. So is
    # what was pushed between the position of a checkpoint and its values; what is given then says where that was.
    allowed = BATCH * len(chosen.killed) + (EPOCHS * EXAMPLES if chosen.away else 0)
    if chosen.ends_at_s is not None:
        allowed += chosen.saved + len({example for example, _ in books.accepted}) - EPOCHS * EXAMPLES
    if twice > allowed:
        found.append(f"{twice} examples were applied more than once, at most {allowed} may be: {books.applied}")
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", chunks())
def test_each_example_of_each_epoch_is_learned_from_once(seeds: range) -> None:
    for seed in seeds:
        found = run(seed)
        assert not found, "\n".join(found)


def given_to_two(feed: Feed, worker: int, epoch: int, number: int, floor: int, finished: list[int], asker: Any) -> Any:
    actions = want(feed, worker, epoch, number, floor, finished, asker)
    known = feed.line.clients.get(worker)
    twice: set[int] = vars(feed).setdefault("twice", set())
    if known is not None and number in known.given and known.given[number].order not in twice:
        twice.add(known.given[number].order)
        feed.line.items.insert(0, known.given[number])
    return actions


want = Feed.request_batch


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (Feed, "drop_node", lambda feed, address: []),
        (Feed, "request_batch", given_to_two),
        (Finishing, "after_run", lambda hook, session, push, loss: None),
    ],
)
def test_a_feed_that_forgets_a_rule_is_caught(owner: Any, name: str, mutant: Any) -> None:
    with patch.object(owner, name, mutant):
        assert any(run(seed) for seed in range(100))


def read(limit: int, position: dict[str, Any] | None = None, books: list[int] | None = None) -> dict[str, Any]:
    """One worker gets some batches of one epoch, two of them ahead; where the dataset task is then."""
    found: list[Any] = []

    def serves() -> None:
        server = dps.Server(None, "dataset", 0, chief=CHIEF, bind="dataset0:0")
        dps.data.serve(dataset(), server, position=position)
        server.join()

    def works() -> None:
        server = dps.Server(None, "worker", 0, chief=CHIEF, bind="worker0:0")
        remote = dps.data.remote(server)
        for taken, batch in enumerate(remote):
            if taken == limit:
                found.append(remote.position())
                return
            if books is not None:
                books.append(int(batch.min()))
        found.append(remote.position())

    with World(1) as world:
        world.process("chief", chief)
        world.process("dataset:0", serves)
        process = world.process("worker:0", works)
        world.run(60.0, stop=lambda: process.state == "ended")
        assert process.error is None
    assert list(found[0]) == ["dataset:0"]
    return next(iter(found[0].values()))  # type: ignore[no-any-return]


def test_the_position_of_a_run_gives_the_batches_that_it_has_not_finished() -> None:
    whole: list[int] = []
    read(1000, None, whole)
    assert len(whole) == BATCHES
    for limit in (0, 1, 7, BATCHES - 1):
        first: list[int] = []
        rest: list[int] = []
        position = read(limit, None, first)
        read(1000, position, rest)
        assert first + rest == whole


@pytest.mark.parametrize("steps_s", [[0.01, 0.01, 0.01, 0.01], [0.01, 0.01, 0.01, 1.5]], ids=["even", "one is slow"])
def test_one_reader_keeps_four_workers_busy_and_its_memory_stays_bounded(steps_s: list[float]) -> None:
    done: Counter[int] = Counter()
    waited_s: Counter[int] = Counter()
    ends_s: dict[int, float] = {}
    made, most = [0], [0]

    def serves() -> None:
        server = dps.Server(None, "dataset", 0, chief=CHIEF, bind="dataset0:0")

        def rows() -> Any:
            for number in range(300):
                made[0] += 1
                most[0] = max(most[0], made[0] - done.total())
                yield number

        dps.data.serve(dps.data.from_generator(rows).batch(1), server, ahead=4)
        serve(server)

    def works(task: int, step_s: float) -> None:
        server = dps.Server(None, "worker", task, chief=CHIEF, bind=f"worker{task}:0")
        clock, batches = server.runtime.wall, iter(dps.data.remote(server))
        next(batches)
        while True:
            server.runtime.sleep(step_s)
            done[task] += 1
            ends_s[task] = asked_s = clock()
            if next(batches, None) is None:
                return
            waited_s[task] += clock() - asked_s

    with World(5, trace=False) as world:
        world.process("chief", chief)
        world.process("dataset:0", serves)
        for task, step_s in enumerate(steps_s):
            world.process(f"worker:{task}", lambda t=task, s=step_s: works(t, s))  # type: ignore[misc]
        world.run(60.0, stop=lambda: done.total() == 300)
        took_s = max(ends_s[task] for task in range(3)) - 1_700_000_000
    assert all(done[task] > 50 for task in range(3))
    assert waited_s.total() == 0  # in virtual time: whenever a worker asks, a batch is here
    assert took_s < 1.5  # 75 to 100 batches of 10 ms each
    assert most[0] <= 4 + 4 * 3 + 3  # ready, each worker's credit, and those in the reader's hands


def test_an_error_in_the_dataset_reaches_every_worker_as_one_line() -> None:
    told: list[str] = []

    def serves() -> None:
        server = dps.Server(None, "dataset", 0, chief=CHIEF, bind="dataset0:0")

        def rows() -> Any:
            yield 1
            raise KeyError("label")

        dps.data.serve(dps.data.from_generator(rows), server)
        server.join()

    def works(task: int) -> None:
        server = dps.Server(None, "worker", task, chief=CHIEF, bind=f"worker{task}:0")
        with pytest.raises(dps.DataError) as caught:
            list(dps.data.remote(server))
        told.append(str(caught.value))

    with World(1) as world:
        world.process("chief", chief)
        world.process("dataset:0", serves)
        for task in range(2):
            world.process(f"worker:{task}", lambda task=task: works(task))  # type: ignore[misc]
        world.run(60.0, stop=lambda: len(told) == 2)
    assert len(told) == 2
    assert all(text.startswith("dataset:0: from_generator: ") and text.count("\n") == 0 for text in told)
    assert all("raised KeyError after 1 examples: 'label'" in text for text in told)


def test_a_dataset_that_nobody_serves_and_one_whose_task_is_gone_are_told_at_the_deadline() -> None:
    told: list[str] = []

    def works() -> None:
        server = dps.Server(None, "worker", 0, chief=CHIEF, bind="worker0:0")
        with pytest.raises(dps.DeadlineExceeded) as late:
            iter(dps.data.remote(server, "nothing", timeout=2.0))
        told.append(str(late.value))
        slow = (server.runtime.sleep(0.2) for _ in dps.data.remote(server, timeout=3.0))
        with pytest.raises(dps.DeadlineExceeded) as late:
            list(slow)
        told.append(str(late.value))

    with World(1, faults=[Kill("dataset:0", 3.0)]) as world:
        world.process("chief", chief)
        world.process("dataset:0", lambda: feeder(0, 1))
        process = world.process("worker:0", works)
        world.run(60.0, stop=lambda: process.state == "ended")
        assert process.error is None
    assert told[0].startswith("worker:0: dataset 'nothing' is served by 0 of 1 tasks after 2.0 s; start one with --job")
    assert told[1].startswith("worker:0: dataset 'dataset': dataset:0 (") and "does not answer; waited 3." in told[1]


@pytest.mark.parametrize("port", [5000, 0])  # where it was, or elsewhere
def test_a_dataset_task_that_is_started_again_goes_on_from_the_beginning_of_its_dataset(port: int) -> None:
    found: list[int] = []

    def works() -> None:
        server = dps.Server(None, "worker", 0, chief=CHIEF, bind="worker0:0")
        for batch in dps.data.remote(server, timeout=20.0):
            server.runtime.sleep(0.1)
            found.append(int(batch.min()))

    def serves() -> None:
        server = dps.Server(None, "dataset", 0, chief=CHIEF, bind=f"dataset0:{port}")
        dps.data.serve(dataset(), server)
        server.join()

    with World(1, faults=[Kill("dataset:0", 0.5, restart_after=1.0)]) as world:
        world.process("chief", chief)
        world.process("dataset:0", serves)
        process = world.process("worker:0", works)
        world.run(60.0, stop=lambda: process.state == "ended")
        assert process.error is None
    assert len(set(found)) == BATCHES
    assert len(found) > BATCHES
