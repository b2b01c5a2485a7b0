"""Shared queues under faults: each item that was put is got once, in order, and nobody waits for ever."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import dps
from dps.queues.state import QueueState
from dps.transport.sim import Kill, Network, Partition, Pause, World
from dps.transport.sim.world import Fault
from tests.seeds import chunks

CHIEF = "chief:2220"
OVER = ("ended", "killed")


@dataclass
class Books:
    """What the programs say that happened, kept outside of the world."""

    put: list[tuple[int, int]] = field(default_factory=list)
    """Acknowledged."""
    tried: list[tuple[int, int]] = field(default_factory=list)
    got: list[tuple[int, int]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def chief() -> int:
    return dps.Server(None, "chief", 0, bind=CHIEF, ps=0, workers=0, owned=True).join() or 0


def producer(task: int, life: int, items: int, books: Books) -> None:
    server = dps.Server(None, "worker", task, chief=CHIEF, bind=f"worker{task}:0")
    queue = dps.data.queue(server, "work", capacity=3, timeout=100.0)
    for number in range(items):
        key = (10 * task + life, number)
        books.tried.append(key)
        queue.put({"key": np.array(key)})
        books.put.append(key)
    server.stop()


def consumer(task: int, books: Books) -> None:
    server = dps.Server(None, "worker", task, chief=CHIEF, bind=f"worker{task}:0")
    queue = dps.data.queue(server, "work", capacity=3, timeout=100.0)
    for item in queue:
        books.got.append(tuple(item["key"].tolist()))
        server.runtime.sleep(0.05 * server.runtime.random.random())
    server.stop()


def scenario(seed: int) -> tuple[World, Books, int]:
    """A world with two producers, two or three consumers, and faults. Returns how many consumers are killed, too."""
    draw = random.Random(f"queues {seed}")
    rough = draw.random() < 0.6
    network = Network(
        latency_s=draw.choice([1e-4, 1e-3, 1e-2]), loss=draw.choice([0.02, 0.1]) if rough else 0.0,
        double=0.1 if rough else 0.0, reorder=0.1 if rough else 0.0,
    )  # fmt: skip
    consumers = draw.choice([2, 3])
    faults: list[Fault] = []
    killed = 0
    for _ in range(draw.randint(0, 3)):
        at, task = draw.uniform(0.1, 3.0), draw.randrange(2 + consumers)
        kind = draw.choice(["kill", "kill", "pause", "partition"])
        if kind == "kill" and (task < 2 or killed < consumers - 1):
            faults.append(Kill(f"worker:{task}", at, 0.5 if draw.random() < 0.5 else None))
            killed += task >= 2
        elif kind == "pause":
            faults.append(Pause(f"worker:{task}", at, draw.choice([0.5, 8.0])))
        else:
            faults.append(Partition(f"worker:{task}", at, draw.choice([0.5, 8.0]), one_way=draw.random() < 0.3))
    world, books = World(seed, network, faults=faults), Books()
    world.process("chief", chief)
    lives = [0, 0]

    def produce(task: int) -> None:
        lives[task] += 1
        producer(task, lives[task], 12, books)

    for task in range(2):
        world.process(f"worker:{task}", lambda task=task: produce(task))  # type: ignore[misc]
    for task in range(2, 2 + consumers):
        world.process(f"worker:{task}", lambda task=task: consumer(task, books))  # type: ignore[misc]
    return world, books, killed


def close_after(world: World, books: Books) -> None:
    """Another task closes the queue once the producers have ended."""

    def ended(name: str) -> bool:
        return world.processes[name].state in OVER

    def closer() -> None:
        server = dps.Server(None, "worker", 9, chief=CHIEF, bind="worker9:0")
        while not (ended("worker:0") and ended("worker:1")):
            server.runtime.sleep(0.5)
        server.runtime.sleep(3.0)  # a killed producer may be started again
        while not (ended("worker:0") and ended("worker:1")):
            server.runtime.sleep(0.5)
        dps.data.queue(server, "work").close()

    world.process("worker:9", closer)


def run(seed: int) -> list[str]:
    """What is wrong; empty when nothing is."""
    world, books, killed = scenario(seed)
    close_after(world, books)
    with world:
        world.run(600.0, stop=lambda: all(p.state in OVER for n, p in world.processes.items() if n != "chief"))
        found = [f"{name}: {p.state}" for name, p in world.processes.items() if goes_on(name, p)]
        found += [f"{name}: {p.error!r}" for name, p in world.processes.items() if p.error]
    found += [f"{key} was got twice" for key in set(books.got) if books.got.count(key) > 1]
    missing = set(books.put) - set(books.got)
    if len(missing) > killed:  # a consumer that is killed may have one item that it had just acknowledged
        found.append(f"put and not got: {sorted(missing)}")
    found += [f"{key} was got and not put" for key in set(books.got) - set(books.tried)]
    return [f"seed {seed}: {text}" for text in found]


def goes_on(name: str, process: Any) -> bool:
    return name != "chief" and process.state not in OVER


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", chunks(20))
def test_each_item_is_got_once(seeds: range) -> None:
    for seed in seeds:
        found = run(seed)
        assert not found, "\n".join(found)


def test_items_of_one_producer_come_in_order_to_one_consumer() -> None:
    books = Books()
    with World(3, Network(loss=0.1, double=0.1, reorder=0.2)) as world:
        world.process("chief", chief)
        made = world.process("worker:0", lambda: producer(0, 0, 30, books))
        world.process("worker:1", lambda: consumer(1, books))
        world.run(100.0, stop=lambda: made.state == "ended")
        world.run(world.now + 30.0)
    assert books.got == [(0, number) for number in range(30)]


def test_a_wait_ends_at_its_deadline_and_names_who_was_last() -> None:
    told: list[str] = []

    def slow() -> None:
        server = dps.Server(None, "worker", 0, chief=CHIEF, bind="worker0:0")
        queue = dps.data.queue(server, "work", capacity=1)
        queue.put(1)
        with pytest.raises(dps.DeadlineExceeded) as late:
            queue.put(2, timeout=3.0)
        told.append(str(late.value))
        assert queue.get() == 1
        with pytest.raises(dps.DeadlineExceeded) as late:
            queue.get(timeout=3.0)
        told.append(str(late.value))
        assert queue.size() == 0  # the second put was withdrawn
        queue.put(3)
        assert queue.get() == 3

    with World(1) as world:
        world.process("chief", chief)
        process = world.process("worker:0", slow)
        world.run(60.0, stop=lambda: process.state == "ended")
        assert process.error is None
    assert told[0].startswith("worker:0: put: queue 'work' is full (1 of 1 items); nobody has got one yet; waited 3.")
    assert told[1].startswith("worker:0: get: queue 'work' is empty; the last item was put by worker:0 5 s ago; waited")


def test_a_chief_that_is_lost_is_named_and_its_queues_are_gone_with_it() -> None:
    told: list[str] = []

    def use() -> None:
        server = dps.Server(None, "worker", 0, chief=CHIEF, bind="worker0:0")
        queue = dps.data.queue(server, "work")
        queue.put(1)
        server.runtime.sleep(2.0)
        with pytest.raises(dps.DeadlineExceeded) as late:
            queue.get(timeout=3.0)
        told.append(str(late.value))
        server.runtime.sleep(5.0)
        with pytest.raises(dps.Aborted, match="the chief was started again, and the items are lost"):
            queue.get()
        again = dps.data.queue(server, "work")
        again.put(2)
        assert again.get() == 2

    with World(1, faults=[Kill("chief", at=1.0, restart_after=7.0)]) as world:
        world.process("chief", chief)
        process = world.process("worker:0", use)
        world.run(60.0, stop=lambda: process.state == "ended")
        assert process.error is None
    assert told == ["worker:0: get: the chief at chief:2220 does not answer; waited 3.0 s"]


def always_yours(line: QueueState, client: int, number: int) -> Any:
    return True, finish(line, client, number)[1]


def put_anew(line: QueueState, client: int, number: int, value: Any, asker: Any) -> Any:
    line.clients[client].put_number = 0
    return put(line, client, number, value, asker)


def thrown_away(line: QueueState, known: Any, numbers: list[int]) -> None:
    for number in numbers:
        known.given.pop(number)


finish, put = QueueState.finish_get, QueueState.put


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("finish_get", always_yours),
        ("put", put_anew),
        ("drop_node", lambda line, address: []),
        ("_give_back", thrown_away),
    ],
)
def test_a_queue_that_forgets_a_rule_is_caught(name: str, mutant: Any) -> None:
    with patch.object(QueueState, name, mutant):
        assert any(run(seed) for seed in range(200))
