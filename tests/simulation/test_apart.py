"""The global step where pushes go to some ps alone, under faults; and planted faults that the checker finds."""

from __future__ import annotations

from typing import Any

import pytest

from dps.chief import checkpoints
from dps.client import push_operations, pushing
from dps.messages.sessions import STEP_PS
from dps.ps.intake.intake import PushOf
from dps.ps.modes import asynchronous, counting
from dps.transport.message import changed
from tests.seeds import cut
from tests.simulation.apart import run


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", cut(34, 8, 26, nightly=26))
def test_each_push_counts_once_whatever_ps_it_goes_to(seeds: range) -> None:
    for seed in seeds:
        found = run("async", seed)
        assert not found, "\n".join(found)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", cut(21, 2, 19, nightly=19))
def test_each_push_counts_once_where_the_step_ps_gets_all(seeds: range) -> None:
    for seed in seeds:
        found = run("bounded", seed)
        assert not found, "\n".join(found)


def caught(words: str, mode: str = "async") -> None:
    assert any(any(words in text for text in run(mode, seed)[:-1]) for seed in range(60)), f"nobody noticed {words!r}"


def test_a_count_that_is_taken_again_when_it_comes_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(self: counting.StepCounts, ps: int, pushes: int) -> int:
        self._taken[ps] = self._taken.get(ps, 0) + pushes
        return pushes

    monkeypatch.setattr(counting.StepCounts, "take_counted", take)
    caught("which has counted")


def test_a_push_that_is_counted_again_when_it_is_sent_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(self: asynchronous.AsyncMode, ledger: Any, number: int, sender: Any) -> None:
        if self.shard.step_counts.counted and number in ledger.results:
            self._counting.count_push(ledger, number)
        answer_repeated(self, ledger, number, sender)

    answer_repeated: Any = asynchronous.AsyncMode.answer_repeated
    monkeypatch.setattr(asynchronous.AsyncMode, "answer_repeated", answer)
    caught("was counted 2 times")


def test_a_checkpoint_that_forgets_what_was_not_told_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(self: checkpoints.Checkpoints, cut: str, cuts: dict[int, Any]) -> None:
        first = self.plan.ps[0]
        as_told = {ps: changed(c, counted=c.step if ps == first else 0) for ps, c in cuts.items()}
        whole(self, cut, as_told)

    whole: Any = checkpoints.Checkpoints._write
    monkeypatch.setattr(checkpoints.Checkpoints, "_write", write)
    caught("and its values have made")


def test_a_ps_that_tells_its_counts_once_and_never_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting.StepCounts, "record_told", lambda self, pushes, step: False)
    caught("the step ps never heard of")


@pytest.mark.slow
def test_a_push_that_two_ps_count_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: Any = asynchronous.AsyncMode._record_applied

    def record(self: asynchronous.AsyncMode, *about: Any) -> None:
        row, push, *more = about
        by = self.shard.ps if push.counted_by != STEP_PS else STEP_PS
        of = PushOf(row.task, row.incarnation, push.number, push.step, push.counter, push.clock, by)
        recorded(self, row, of, *more)

    monkeypatch.setattr(asynchronous.AsyncMode, "_record_applied", record)
    caught("was counted 2 times")


def test_a_step_that_nobody_has_made_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    step: Any = asynchronous.AsyncMode._step

    def above(self: asynchronous.AsyncMode, computed_at: int, counted_by: int) -> int:
        return int(step(self, computed_at, counted_by)) + (counted_by == self.shard.ps)

    monkeypatch.setattr(asynchronous.AsyncMode, "_step", above)
    caught("is a step that nobody has made")


@pytest.mark.nightly
def test_a_session_that_takes_the_step_ps_at_its_word_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pushing, push_operations):
        monkeypatch.setattr(module, "step_of", lambda told, known, made, apart: told)
    caught("follows a push of step")


@pytest.mark.slow
def test_a_ps_that_never_hears_of_the_others_steps_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting.StepCounts, "heard", property(lambda self: 0, lambda self, step: None), raising=False)
    caught("pushes after step")
