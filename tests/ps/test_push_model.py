"""Whole pushes, doubled, early, late, stale and not finite: the ps, its ordinary road alone, and a model agree."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from dps.messages.sessions import SHARED, Push, Pushed
from dps.ps.intake.ledger import Ledger
from dps.ps.modes import asynchronous, quorum, whole_pushes
from dps.ps.store.store import Store
from dps.training.update_modes import Async, Bounded, SyncReplicas
from dps.transport.current import runtime
from tests.ps.push_model import AsyncModel, Model, Sent, SyncModel
from tests.ps.test_modes import sender
from tests.ps.test_whole_pushes import LAYOUT, Ps, nothing_is_usual
from tests.tuned import tune

SEEDS, EVENTS, ELEMENTS, PLACES = 40, 60, 6, 4
UPDATES: dict[str, Any] = {"async": Async(), "bounded": Bounded(3), "sync": SyncReplicas()}


@pytest.fixture(autouse=True)
def everything_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, shard_nbytes=1)


class World:
    """A ps and a model of it, which get the same messages. `ordinary`: the ps admits no push."""

    def __init__(self, update: str, seed: int, ordinary: bool) -> None:
        self.draw, self.is_sync = random.Random(seed), update == "sync"
        self.ps, self.ordinary = Ps(UPDATES[update], workers := self.draw.choice([1, 2, 3])), ordinary
        self.ps.steps({}, ordinary=True)
        store, kind = self.ps.shard.store, SyncModel if self.is_sync else AsyncModel
        self.model: Model = kind(np.zeros(ELEMENTS, np.float32), store.step, store.counter)
        self.model.next = dict.fromkeys(range(workers), 2)
        self.memories = [runtime().share(64 * PLACES) for _ in range(workers)]
        self.sent: dict[tuple[int, int], Sent] = {}
        self.found: dict[tuple[int, int], tuple[str, int, int]] = {}
        self.changed = ""
        """A result that was told otherwise before."""

    def send(self) -> None:
        """One message of a push, drawn."""
        draw, worker = self.draw, self.draw.randrange(len(self.memories))
        number = self.model.next[worker]
        waits = self.is_sync and number > 2 and (worker, number - 1) not in self.model.outcomes
        if waits or draw.random() < 0.25:
            number -= 1  # it comes again
        elif not self.is_sync and draw.random() < 0.3:
            number += 1  # before the one that precedes it
        if number < 2:
            return
        sent = self.sent.setdefault((worker, number), self._made(worker, number))
        memory, place = self.memories[worker], 64 * (number % PLACES)
        memory.array[place : place + 4 * ELEMENTS].view(np.float32)[:] = sent.gradient
        about = SHARED, LAYOUT.gradient_nbytes, [], [memory.name, place]
        message = Push(1, number, sent.step, sent.counter, *about, lend=draw.random() < 0.5)
        with pytest.MonkeyPatch.context() as patch:
            if self.ordinary:
                patch.setattr(whole_pushes, "admit_push", nothing_is_usual)
            self.ps.node.handle("ps", message, sender(worker + 1, len(self.sent)))
        self.model.push(sent)
        for incarnation, answer in self.ps.node.take():
            if isinstance(answer, Pushed):
                outcome = answer.status, answer.step, answer.staleness
                if self.found.setdefault((incarnation - 1, answer.number), outcome) != outcome:
                    self.changed = f"push {answer.number} of incarnation {incarnation} has another result: {outcome}"

    def _made(self, worker: int, number: int) -> Sent:
        draw, model = self.draw, self.model
        late, gradient = draw.random() < 0.1, np.array([draw.uniform(-9, 9) for _ in range(ELEMENTS)], np.float32)
        if draw.random() < 0.1:
            gradient[draw.randrange(ELEMENTS)] = draw.choice([np.nan, np.inf])
        return Sent(worker, number, model.step - late, model.counter - draw.choice([0, 0, 1, 2]), gradient)

    def disagreement(self) -> str:
        """How ps and model differ, "" if they do not."""
        store, model = self.ps.shard.store, self.model
        values = store.arenas[0].values[:ELEMENTS]
        if values.tobytes() != model.values.tobytes():
            return f"values {values}, wanted {model.values}"
        if (store.step, store.counter) != (model.step, model.counter):
            return f"step and version {store.step, store.counter}, wanted {model.step, model.counter}"
        return self.changed or ("" if self.found == model.outcomes else f"results {self.found}, not {model.outcomes}")


def disagreement(update: str, ordinary: bool = False) -> str:
    """The first one of all seeds."""
    for seed in range(SEEDS):
        world = World(update, seed, ordinary)
        for _ in range(EVENTS):
            world.send()
            if found := world.disagreement():
                return f"seed {seed}: {found}"
    return ""


@pytest.mark.parametrize("ordinary", [False, True])
@pytest.mark.parametrize("update", UPDATES)
def test_a_ps_and_the_model_agree(update: str, ordinary: bool) -> None:
    assert not disagreement(update, ordinary)


@pytest.mark.parametrize("update", UPDATES)
def test_the_pushes_of_these_tests_are_admitted_and_staged(update: str) -> None:
    world = World(update, 1, ordinary=False)
    for _ in range(10 * EVENTS):
        world.send()
    made = world.ps.shard.store.step
    assert made // 4 < len(world.ps.together) < made


# -- planted bugs ---------------------------------------------------------------------------------------------------


def test_a_sum_in_the_order_of_arrival_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_pushes, "sorted", lambda pushes, key: list(pushes), raising=False)
    assert "values" in disagreement("sync")


@pytest.mark.parametrize("update", UPDATES)
def test_a_push_that_is_applied_each_time_it_comes_is_caught(update: str, monkeypatch: pytest.MonkeyPatch) -> None:
    admitted = whole_pushes.admit_push

    def forgetful(books: Any, row: Ledger, number: int, step: int, is_whole: bool) -> str:
        again = row.done and number == row.done
        if again:
            row.done -= 1
        return admitted(books, row, number, books.step if again else step, is_whole)

    monkeypatch.setattr(whole_pushes, "admit_push", forgetful)
    assert disagreement(update)


@pytest.mark.parametrize("update", UPDATES)
def test_a_gradient_with_nan_that_is_applied_is_caught(update: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "problem", lambda self, update: "")
    assert disagreement(update)


def test_a_push_that_is_kept_while_the_quorum_is_busy_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum.Quorum, "undisturbed", property(lambda self: len(self.counted)))
    assert disagreement("sync")


def test_a_push_of_an_earlier_step_that_is_kept_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    admitted = whole_pushes.admit_push

    def lenient(books: Any, row: Ledger, number: int, step: int, is_whole: bool) -> str:
        return admitted(books, row, number, books.step, is_whole)

    monkeypatch.setattr(whole_pushes, "admit_push", lenient)
    assert disagreement("sync")


def test_a_version_that_is_counted_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = asynchronous.AsyncMode.commit_pushes

    def counts_before(self: asynchronous.AsyncMode, pushes: Any, step: int, counter: int) -> None:
        self.shard.store.counter = counter  # before the values are there
        commit(self, pushes, step, counter)

    monkeypatch.setattr(asynchronous.AsyncMode, "commit_pushes", counts_before)
    assert "results" in disagreement("async")
