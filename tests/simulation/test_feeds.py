"""A dataset task under faults: in each epoch each batch reaches a worker that finishes it; no wait is endless."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import dps
from dps.data.feed import Feed
from dps.transport.sim import Kill, Network, Partition, Pause, World
from dps.transport.sim.faults import Fault

SEEDS = int(os.environ.get("DPS_SEEDS", "200"))
CHUNK = 50
CHIEF = "chief:2220"
OVER = ("ended", "killed")
BATCHES, EPOCHS = 20, 2


@dataclass
class Books:
    """Which worker has worked on which batches of which epochs, kept outside of the world."""

    done: list[tuple[int, int, str]] = field(default_factory=list)
    """Epoch, batch, worker."""
    most_kept: int = 0


def chief() -> int:
    return dps.Server(None, "chief", 0, bind=CHIEF, ps=0, workers=0, owned=True).join() or 0


def dataset() -> dps.data.Dataset:
    return dps.data.from_arrays(np.arange(2 * BATCHES)).shuffle(7, seed=3).batch(2)


def feeder(task: int, books: Books, tasks: int) -> None:
    server = dps.Server(None, "dataset", task, chief=CHIEF, bind=f"dataset{task}:0")
    dps.data.serve(dataset().shard(tasks, task), server, ahead=3)
    server.join()


def worker(task: int, slow_s: float, books: Books, tasks: int) -> None:
    server = dps.Server(None, "worker", task, chief=CHIEF, bind=f"worker{task}:0")
    remote = dps.data.remote(server, tasks=tasks, timeout=100.0, prefetch=task % 3)
    for epoch in range(EPOCHS):
        for batch in remote:
            server.runtime.sleep(slow_s * server.runtime.random.random())
            books.done.append((epoch, int(batch.min()), f"worker:{task}"))
    server.stop()


def scenario(seed: int) -> tuple[World, Books, set[str]]:
    """A world with one or two dataset tasks, two to four workers, one of them slow, and faults. Returns the workers
    that faults name, too."""
    draw = random.Random(f"feeds {seed}")
    rough = draw.random() < 0.6
    network = Network(
        latency_s=draw.choice([1e-4, 1e-3, 1e-2]), loss=draw.choice([0.02, 0.1]) if rough else 0.0,
        double=0.1 if rough else 0.0, reorder=0.1 if rough else 0.0,
    )  # fmt: skip
    tasks, workers = draw.choice([1, 1, 2]), draw.randint(2, 4)
    faults: list[Fault] = []
    named: set[str] = set()
    for _ in range(draw.randint(0, 3)):
        at, task = draw.uniform(0.1, 2.0), draw.randrange(1, workers)
        kind = draw.choice(["kill", "kill", "pause", "partition"])
        name = f"worker:{task}"
        named.add(name)
        if kind == "kill":
            faults.append(Kill(name, at))
        elif kind == "pause":
            faults.append(Pause(name, at, draw.choice([0.5, 8.0])))
        else:
            faults.append(Partition(name, at, draw.choice([0.5, 8.0]), one_way=draw.random() < 0.3))
    world, books = World(seed, network, faults=faults), Books()
    world.process("chief", chief)
    for task in range(tasks):
        world.process(f"dataset:{task}", lambda task=task: feeder(task, books, tasks))  # type: ignore[misc]
    for task in range(workers):
        slow_s = 0.5 if task == 1 else 0.1
        world.process(f"worker:{task}", lambda t=task, s=slow_s: worker(t, s, books, tasks))  # type: ignore[misc]
    return world, books, named


def run(seed: int) -> list[str]:
    """What is wrong; empty when nothing is."""
    world, books, named = scenario(seed)
    with world:
        world.run(400.0, stop=lambda: all(p.state in OVER for n, p in world.processes.items() if n[0] == "w"))
        found = [f"{n}: {p.state}" for n, p in world.processes.items() if n[0] == "w" and p.state not in OVER]
        found += [f"{name}: {p.error!r}" for name, p in world.processes.items() if p.error]
    seen = Counter((epoch, batch) for epoch, batch, _ in books.done)
    if len(seen) != EPOCHS * BATCHES:
        found.append(f"{EPOCHS * BATCHES - len(seen)} batches were not worked on")
    for key, times in seen.items():
        by = [who for *found_key, who in books.done if tuple(found_key) == key]
        if times > 1 and not set(by) & named:  # one that was killed or away may have worked on what it had not finished
            found.append(f"{key} was worked on by {by}")
    return [f"seed {seed}: {text}" for text in found]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_each_batch_of_each_epoch_is_worked_on(first: int) -> None:
    for seed in range(first, min(first + CHUNK, SEEDS)):
        found = run(seed)
        assert not found, "\n".join(found)


def given_to_two(feed: Feed, worker: int, epoch: int, number: int, floor: int, finished: list[int], asker: Any) -> Any:
    actions = want(feed, worker, epoch, number, floor, finished, asker)
    known = feed.line.clients.get(worker)
    if known is not None and number in known.given:
        feed.line.items.insert(0, known.given[number])
    return actions


want = Feed.want


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("lost", lambda feed, address: []),
        ("want", given_to_two),
    ],
)
def test_a_feed_that_forgets_a_rule_is_caught(name: str, mutant: Any) -> None:
    with patch.object(Feed, name, mutant):
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


def test_a_slow_worker_holds_up_no_other_and_memory_stays_bounded() -> None:
    done: Counter[str] = Counter()
    ends: dict[str, float] = {}
    made, most = [0], [0]

    def serves() -> None:
        server = dps.Server(None, "dataset", 0, chief=CHIEF, bind="dataset0:0")

        def rows() -> Any:
            for number in range(300):
                made[0] += 1
                most[0] = max(most[0], made[0] - done.total())
                yield number

        dps.data.serve(dps.data.from_generator(rows).batch(1), server, ahead=4)
        server.join()

    def works(task: int, seconds: float) -> None:
        server = dps.Server(None, "worker", task, chief=CHIEF, bind=f"worker{task}:0")
        for _ in dps.data.remote(server):
            server.runtime.sleep(seconds)
            done[f"worker:{task}"] += 1
            ends[f"worker:{task}"] = server.runtime.wall()

    with World(5) as world:
        world.process("chief", chief)
        world.process("dataset:0", serves)
        for task, seconds in enumerate([0.01, 0.01, 0.01, 1.5]):
            world.process(f"worker:{task}", lambda t=task, s=seconds: works(t, s))  # type: ignore[misc]
        world.run(60.0, stop=lambda: done.total() == 300)
        took_s = max(ends[f"worker:{task}"] for task in range(3)) - 1_700_000_000
    assert all(done[f"worker:{task}"] > 80 for task in range(3))
    assert took_s < 1.5  # about 100 batches of 10 ms each
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

    with World(1, faults=[Kill("dataset:0", 4.0)]) as world:
        world.process("chief", chief)
        world.process("dataset:0", lambda: feeder(0, Books(), 1))
        process = world.process("worker:0", works)
        world.run(60.0, stop=lambda: process.state == "ended")
        assert process.error is None
    assert told[0].startswith("worker:0: dataset 'nothing' is served by 0 of 1 tasks after 2.0 s; start one with --job")
    assert told[1].startswith("worker:0: dataset 'dataset': dataset:0 (") and "does not answer; waited 3." in told[1]


def test_a_dataset_task_that_is_started_again_goes_on_from_the_beginning_of_its_dataset() -> None:
    found: list[int] = []

    def works() -> None:
        server = dps.Server(None, "worker", 0, chief=CHIEF, bind="worker0:0")
        for batch in dps.data.remote(server, timeout=20.0):
            server.runtime.sleep(0.1)
            found.append(int(batch.min()))

    def serves() -> None:
        server = dps.Server(None, "dataset", 0, chief=CHIEF, bind="dataset0:5000")
        dps.data.serve(dataset(), server)
        server.join()

    with World(1, faults=[Kill("dataset:0", 1.0, restart_after=1.0)]) as world:
        world.process("chief", chief)
        world.process("dataset:0", serves)
        process = world.process("worker:0", works)
        world.run(60.0, stop=lambda: process.state == "ended")
        assert process.error is None
    assert len(set(found)) == BATCHES
    assert len(found) > BATCHES
