"""What workers tell of their loops' time: sound under faults, and enough to name who is slow and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dps
from dps.launch.commands.simulate import SimulatedCluster
from dps.launch.runs.why import sentence
from dps.ps.intake.ledger import Ledger
from dps.training.update_modes import to_wire
from dps.transport.current import runtime
from dps.transport.sim import Compute, Network
from tests.seeds import FIRST
from tests.simulation.scenario import run, scenario

LEAST_COMPUTED_S = 0.05
"""Of a step in `scenario`."""


@pytest.fixture
def ledgers(monkeypatch: pytest.MonkeyPatch) -> list[Ledger]:
    """All ledgers that are made."""
    found: list[Ledger] = []
    make: Callable[..., None] = Ledger.__init__

    def made(self: Ledger, *args: Any) -> None:
        make(self, *args)
        found.append(self)

    monkeypatch.setattr(Ledger, "__init__", made)
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "seeds", [2, pytest.param(8, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("mode", ["async", "at once", "sync", "steps", "bounded"])
def test_sums_never_fall_and_nothing_is_counted_twice_under_faults(
    mode: str, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any incarnation: no more time than has passed since it was admitted, and no step without its computing."""
    admitted: dict[int, float] = {}
    reports, record, make = list[int](), Ledger.record_times, Ledger.__init__

    def made(self: Ledger, *args: Any) -> None:
        make(self, *args)
        admitted[id(self)] = runtime().now()

    def recorded(self: Ledger, told: Any) -> None:
        before = None if self.times is None else self.times.sums
        record(self, told)
        assert self.times is not None
        sums = self.times.sums
        assert before is None or all(now >= then for now, then in zip(sums, before, strict=True))
        assert sums.total_s <= runtime().now() - admitted[id(self)] + 1e-6
        if not assigns:  # an assignment is a push, and computes nothing
            assert sums.computed_s >= LEAST_COMPUTED_S * (sums.steps - 1) - 1e-6
        reports.append(sums.steps)

    monkeypatch.setattr(Ledger, "__init__", made)
    monkeypatch.setattr(Ledger, "record_times", recorded)
    for seed in range(FIRST, FIRST + seeds):
        assigns = seed % 3 == 1
        found = run(scenario(mode, seed))
        assert not found, "\n".join(found)
    assert len(reports) > 5 * seeds


USUAL_S, FACTOR = 0.1, 4.0
NBYTES_S = 1e6
LASTS_S = 9.0


def train(server: Any, update: Any, data: dict[int, float], seen: list[str], look: Callable[[], str]) -> int:
    """Train for a while of virtual time, with a dataset that takes its time; returns the last global step."""

    def examples() -> Iterator[int]:
        while True:
            runtime().sleep(USUAL_S * data.get(server.task, 1.0))
            yield 1

    params = {"w": np.zeros(int(NBYTES_S * USUAL_S / 8), np.float32)}
    with dps.Session(server, params, optimizer=dps.optim.SGD(0.1), update=update, timeout=60) as session:
        began = runtime().now()
        for _ in dps.data.from_generator(examples):
            session.push({"w": session.pull()["w"]})
            if runtime().now() > began + LASTS_S:
                seen.append(look())
                return session.global_step
    return 0


SLOW = 2
WORDS = {"data": "reading data", "computing": "computing", "link": "moving values"}
MODES = [dps.Async(), dps.SyncReplicas(), dps.Bounded(2), dps.Local(2)]


def simulated(update: Any, slow: str, workers: int, ledgers: list[Ledger], ps: int = 1) -> tuple[str, int]:
    """What is said of a run, and how far it comes. The slow worker is the one of four that is left out of three."""
    at = SLOW if workers == 4 else -1
    network = Network(latency_s=1e-4, bytes_per_s=NBYTES_S)
    if slow == "link" and at == SLOW:
        less = replace(network, bytes_per_s=NBYTES_S / FACTOR)
        network = replace(network, links={(f"worker:{SLOW}", "*"): less, ("*", f"worker:{SLOW}"): less})
    seen: list[str] = []

    def look() -> str:
        told = {ledger.name: ledger.times.as_dict() for ledger in ledgers if ledger.times is not None}
        return sentence(told, to_wire(update))

    cluster = SimulatedCluster(
        train, update, {at: FACTOR} if slow == "data" else {}, seen, look, ps=ps, workers=workers, seed=3,
        network=network, compute=Compute(USUAL_S, 0.1, {at: FACTOR} if slow == "computing" and at >= 0 else {}),
    )  # fmt: skip
    with cluster:
        done = cluster.run(until_s=900.0)
    assert not done.errors, done.errors
    return seen[0], max(done.results)


def marks(slow: str, mode: int) -> list[Any]:
    """Two of all cases are tried with `make examples`, and the rest nightly."""
    return [pytest.mark.slow if (slow, mode) in {("computing", 1), ("link", 3)} else pytest.mark.nightly]


CASES = [pytest.param(slow, MODES[mode], marks=marks(slow, mode)) for slow in WORDS for mode in range(len(MODES))]


@pytest.mark.parametrize(("slow", "update"), CASES)
def test_a_slow_worker_is_named_with_its_cause_and_what_it_costs(slow: str, update: Any, ledgers: list[Ledger]) -> None:
    text, reached = simulated(update, slow, 4, ledgers)
    assert text.startswith("worker 2 is ") and f" % of it {WORDS[slow]}; " in text, text
    if isinstance(update, dps.Async):
        assert text.endswith("; taking it away gains nothing")
        return
    ledgers.clear()
    said, without = simulated(update, slow, 3, ledgers)
    promised = float(text.partition("without it ")[2].partition(" ")[0])
    assert said == "" and 0.8 <= promised / (without / reached) <= 1.2, (text, without / reached)


def test_what_workers_wait_for_each_other_is_known_with_several_ps(ledgers: list[Ledger]) -> None:
    text, _ = simulated(dps.SyncReplicas(), "computing", 4, ledgers, ps=2)
    assert text.startswith("worker 2 is ") and " % of it computing; without it " in text
    waited = {ledger.name: ledger.times.sums.waited_s for ledger in ledgers if ledger.times is not None}
    assert waited.keys() == {f"worker:{task}" for task in range(4)}
    assert waited["worker:2"] < 0.5 and all(waited[f"worker:{task}"] > 2.0 for task in (0, 1, 3)), waited
