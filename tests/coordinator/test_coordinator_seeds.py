"""A coordinator under faults: each call has one outcome, which is the right one, and was executed; no wait is endless.

Workers and ps are killed, stopped and cut off, and messages are lost, doubled and reordered. What a function has done
is written down outside of the world.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import dps
from dps.calls import actor as queue
from dps.calls.actor import CallQueue
from dps.calls.functions import pack_value
from dps.calls.messages import Returned
from dps.coordinator import coordinator as coordinators
from dps.coordinator import dispatcher, schedule
from dps.coordinator.worker import Worker
from dps.transport.current import runtime
from dps.transport.sim import Kill, Network, Partition, Pause, World
from dps.transport.sim.world import Fault
from tests.coordinator import world as cluster
from tests.seeds import chunks

SERVED = "tests.coordinator.test_coordinator_seeds"
OVER = ("ended", "killed")


@dataclass
class Books:
    """What happened in the world that runs now."""

    begun: Counter[int] = field(default_factory=Counter)
    """How often each call was begun."""
    ended: Counter[int] = field(default_factory=Counter)
    at: dict[str, list[int]] = field(default_factory=dict)
    """The elements that each process of a worker took of its dataset."""
    outcomes: dict[int, list[Any]] = field(default_factory=dict)
    """What the program was told of each call, each time that it asked."""
    wrong: list[str] = field(default_factory=list)


books = Books()


# -- what workers run ------------------------------------------------------------------------------------------


def work(number: int, seconds: float, before: int = 0) -> int:
    books.begun[number] += 1
    runtime().sleep(seconds)
    books.ended[number] += 1
    return number * 10 + before % 10


def push(session: dps.Session, number: int, array: Any) -> Any:
    books.begun[number] += 1
    session.pull()
    session.push({"w": np.ones(2)})
    books.ended[number] += 1
    return array * 2


def fail(number: int, seconds: float) -> None:
    books.begun[number] += 1
    runtime().sleep(seconds)
    books.ended[number] += 1
    raise ValueError(f"call {number}")


def take(number: int, batches: Any) -> int:
    books.begun[number] += 1
    found = next(batches)
    books.at.setdefault(f"{runtime().name} {id(batches)}", []).append(found)
    books.ended[number] += 1
    return int(found)


def naturals() -> Any:
    return iter(range(1_000_000))


# -- the program that schedules --------------------------------------------------------------------------------


class Program:
    """Schedules calls in rounds, joins, and asks for every outcome."""

    def __init__(self, seed: int, trains: bool, checkpoint: bool) -> None:
        self._draw = random.Random(f"program {seed}")
        self._trains, self._checkpoint = trains, checkpoint
        self._number = 0
        self.values: dict[int, tuple[Any, Any]] = {}
        """For each call its remote value, and what its outcome must be."""

    def __call__(self, server: dps.Server) -> None:
        with dps.Coordinator(server, timeout=120.0, queue_size=self._draw.choice([4, 100])) as coordinator:
            if not self._trains:
                self._rounds(coordinator, None)
                return
            directory = "run" if self._checkpoint else None
            params = {"w": np.zeros(2)}
            sgd, late = dps.optim.SGD(1.0), 120.0
            with dps.Session(server, params, optimizer=sgd, checkpoint_dir=directory, timeout=late) as session:
                self._rounds(coordinator, session)

    def _rounds(self, coordinator: dps.Coordinator, session: dps.Session | None) -> None:
        batches = iter(coordinator.create_per_worker_dataset(naturals))
        for _ in range(2):
            fails = False
            for _ in range(self._draw.randint(3, 7)):
                fails |= self._schedule(coordinator, session, batches)
            failed = False
            try:
                coordinator.join()
            except ValueError as error:
                failed = True
                if "call " not in str(error):
                    books.wrong.append(f"join raised {error!r}")
            if failed != fails:
                books.wrong.append(f"join {'raised' if failed else 'did not raise'}, and a call fails: {fails}")
            if not coordinator.done():
                books.wrong.append("join has returned, and calls are open")
            for number, (value, wanted) in self.values.items():
                self._ask(number, value, wanted, fails)
            self.values.clear()

    def _schedule(self, coordinator: dps.Coordinator, session: dps.Session | None, batches: Any) -> bool:
        """Schedule a call; returns whether it fails."""
        draw, number, seconds = self._draw, self._number, self._draw.choice([0.0, 0.3, 2.0, 2.0, 9.0])
        self._number += 1
        books.outcomes[number] = []
        kinds = ["work"] * 5 + ["take", "take", "fail"] + ["push"] * (4 if session else 0)
        kind = draw.choice(kinds)
        if kind == "work":
            earlier = [(value, wanted) for value, wanted in self.values.values() if isinstance(wanted, int)]
            before, digit = draw.choice(earlier) if earlier and draw.random() < 0.4 else (0, 0)
            made = coordinator.schedule(work, (number, seconds, before)), number * 10 + digit % 10
        elif kind == "push":
            array = np.full(3, number)
            made = coordinator.schedule(push, (session, number), {"array": array}), array * 2
            array[:] = -1  # it was copied
        elif kind == "take":
            made = coordinator.schedule(take, (number, batches)), "a number"
        else:
            made = coordinator.schedule(fail, (number, seconds)), ValueError
        self.values[number] = made
        return kind == "fail"

    def _ask(self, number: int, value: Any, wanted: Any, fails: bool) -> None:
        for _ in range(2):
            try:
                found = value.fetch(timeout=0.0)
            except Exception as error:
                found = error
            books.outcomes[number].append(found)
            if isinstance(found, dps.Cancelled):
                right = fails
            elif wanted is ValueError:
                right = isinstance(found, ValueError) and f"call {number} " in str(found)
            elif isinstance(wanted, str):
                right = isinstance(found, int)
            else:
                right = bool(np.all(found == wanted))
            if not right:
                books.wrong.append(f"call {number}: got {found!r}, wanted {wanted!r}")
            if not isinstance(found, dps.Cancelled) and not books.ended[number]:
                books.wrong.append(f"call {number} has the outcome {found!r} and was not executed")


# -- the world -------------------------------------------------------------------------------------------------


def faults_of(draw: random.Random, workers: int, ps: bool) -> list[Fault]:
    found: list[Fault] = []
    for _ in range(draw.randint(0, 4)):
        task = draw.randrange(workers)
        at, name = draw.uniform(0.5, 12.0), f"worker:{task}"
        kind = draw.choice(["kill", "kill", "pause", "partition"])
        if kind == "kill":
            back_s = draw.choice([0.3, 1.5, 6.0, None if task else 6.0])  # one worker, at least, comes back
            found.append(Kill(name, at, restart_after=back_s))
        elif kind == "pause":
            found.append(Pause(name, at, draw.choice([0.5, 8.0])))
        else:
            found.append(Partition(name, at, draw.choice([0.5, 3.0, 8.0]), one_way=draw.random() < 0.3))
    if ps:
        found.append(Kill("ps:0", draw.uniform(3.0, 12.0), restart_after=1.0))
    return found


def made(seed: int) -> tuple[World, bool]:
    """A world, and whether none of its processes fails."""
    draw = random.Random(f"coordinator {seed}")
    rough = draw.random() < 0.6
    network = Network(
        latency_s=draw.choice([1e-4, 1e-3, 1e-2]), loss=draw.choice([0.02, 0.1]) if rough else 0.0,
        double=0.1 if rough else 0.0, reorder=0.1 if rough else 0.0,
    )  # fmt: skip
    workers, trains = draw.randint(2, 4), draw.random() < 0.4
    kills_ps = trains and draw.random() < 0.4
    faults = faults_of(draw, workers, kills_ps)
    world = World(seed, network, faults=faults, trace=False)
    program = Program(seed, trains, checkpoint=kills_ps)

    def client() -> None:
        with cluster.client() as server:
            program(server)

    world.process("chief", lambda: cluster.chief(1, workers))
    world.process("ps:0", lambda: cluster.ps(0), restarts=1)
    for task in range(workers):
        world.process(f"worker:{task}", lambda task=task: cluster.worker(task, [SERVED]))  # type: ignore[misc]
    world.process("client", client)
    return world, not faults


def run(seed: int) -> list[str]:
    """What is wrong; empty when nothing is."""
    global books
    books = Books()
    world, quiet = made(seed)
    with world:
        client = world.processes["client"]
        world.run(900.0, stop=lambda: client.state in OVER)
        found = list(books.wrong)
        if client.state not in OVER:
            found.append(f"the program did not end: {client.state}")
        found += [f"{name}: {p.error!r}" for name, p in world.processes.items() if p.error]
        found += [f"{name}: {error!r}" for name, p in world.processes.items() for error in p.task_errors]
    for number, outcomes in books.outcomes.items():
        if len(outcomes) != 2 and not found:
            found.append(f"call {number} has {len(outcomes)} outcomes")
        elif len(outcomes) == 2 and repr(outcomes[0]) != repr(outcomes[1]):
            found.append(f"call {number} has two outcomes: {outcomes}")
    for number, times in books.begun.items():
        if quiet and times > 1:
            found.append(f"call {number} was executed {times} times")
    for name, taken in books.at.items():
        if taken != list(range(len(taken))):
            found.append(f"{name} took {taken} of its dataset")
    return [f"seed {seed}: {text}" for text in found]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", chunks())
def test_every_call_has_one_outcome_and_was_executed(seeds: range) -> None:
    for seed in seeds:
        found = run(seed)
        assert not found, "\n".join(found)


# -- planted bugs ----------------------------------------------------------------------------------------------


def forgets(self: schedule.CallSchedule, worker: str) -> list[Any]:
    self.running.pop(worker, None)
    return self._assign_calls()


def answers_before_it_runs(self: Worker, call: Any) -> Any:
    if call.function.endswith(":work"):
        return Returned(call.number, *pack_value(0, "x"))
    return outcome(self, call)


def runs_copies_again(self: CallQueue, call: Any, address: str, asker: Any) -> None:
    known = self.clients.get(call.client)
    if known is not None:
        self._remove_queued(known)
    self.clients[call.client] = queue.CallClient(call, address, asker)
    self._queue.append(call)


def takes_an_older_outcome(self: CallQueue, outcome: Any) -> Any:
    call, self.running = self.running, None
    assert call is not None
    client = self.clients.get(call.client)
    if client is not None:
        client.state, client.outcome = queue.CallState.OVER, outcome
    return client


def does_not_say_what_is_missing(self: CallQueue, client: int, number: int, asker: Any) -> Any:
    known = self.clients.get(client)
    return None if known is None or number > known.call.number else self._outcome_of(known, number, asker)


def does_not_wait_for_values(self: schedule.CallSchedule, call: Any) -> None:
    del self.waiting[call]
    call.state = schedule.ScheduledState.QUEUED
    self.queue.append(call)


def keeps_the_queue(self: schedule.CallSchedule, why: str) -> None:
    self.waiting.clear()


outcome: Callable[..., Any] = Worker._run_call


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("cls", "name", "mutant", "first"),
    [
        (schedule.CallSchedule, "remove_worker", forgets, 0),
        (Worker, "_run_call", answers_before_it_runs, 0),
        (dispatcher.Dispatcher, "lost", lambda self, address, silent_s: None, 15),
        (schedule.CallSchedule, "cancel_calls", keeps_the_queue, 0),
        (schedule.CallSchedule, "_check_needs", does_not_wait_for_values, 0),
        (coordinators.Coordinator, "_raise_first_error", lambda self: None, 0),
        (CallQueue, "add_call", runs_copies_again, 0),
        (CallQueue, "record_outcome", takes_an_older_outcome, 44),
        (CallQueue, "find_outcome", does_not_say_what_is_missing, 0),
    ],
)
def test_planted_bugs_are_found(cls: type, name: str, mutant: Any, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cls, name, mutant)
    assert any(run(seed) for seed in range(first, first + 60)), f"no seed notices a broken {cls.__name__}.{name}"
