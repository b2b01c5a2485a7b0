"""What all tasks and sessions must agree on; a difference names both sides."""

from __future__ import annotations

from typing import Any

import pytest

from dps.chief.run import Agreement, check_fits
from dps.errors import ConfigError
from dps.training import update_modes as update
from dps.training.update_modes import Async, Bounded, SyncReplicas
from dps.variables.plan import VariableSpec, make_plan
from tests.variables.models import ADAM, SGD

SYNC, ASYNC, BOUNDED = (update.to_wire(mode) for mode in (SyncReplicas(), Async(), Bounded(2)))


def test_nobody_says_anything_and_it_is_async() -> None:
    assert Agreement(None).mode("worker:0", None) == ASYNC
    assert Agreement(None).mode("worker:0", {}) == ASYNC


def test_the_first_who_says_something_decides_and_those_who_say_nothing_take_it() -> None:
    agreement = Agreement(None)
    assert agreement.mode("ps:0", SYNC) == SYNC
    assert agreement.mode("worker:0", None) == SYNC and agreement.mode("worker:1", SYNC) == SYNC


@pytest.mark.parametrize(("chief", "first"), [(SYNC, None), (None, SYNC)])
def test_another_mode_is_refused_with_both_sides(chief: Any, first: Any) -> None:
    agreement = Agreement(chief)
    who = "the chief" if chief else "ps:1"
    if first:
        agreement.mode(who, first)
    with pytest.raises(ConfigError, match=rf"worker:3 wants Bounded\(staleness=2\), {who} has SyncReplicas\(\)"):
        agreement.mode("worker:3", BOUNDED)
    assert agreement.mode("worker:4", None) == SYNC


def test_the_same_mode_with_other_options_is_another_mode() -> None:
    agreement = Agreement(ASYNC)
    with pytest.raises(ConfigError, match=r"wants Async\(max_staleness=3\), the chief has Async\(\)"):
        agreement.mode("worker:0", update.to_wire(Async(max_staleness=3)))


def plan(optimizer: Any = SGD, shape: tuple[int, ...] = (2,)) -> Any:
    return make_plan([VariableSpec("w", shape, "<f4", optimizer)], (0,), lambda *_: 0, None)


RUN = {"update": SYNC, "checkpoint_dir": "run", "check_finite": True}


@pytest.mark.parametrize("settings", [{}, {"update": SYNC}, {"checkpoint_dir": "run", "keep": 9}])
def test_a_session_that_wants_the_same_or_nothing_fits(settings: dict[str, Any]) -> None:
    check_fits("worker:1", {}, settings, plan(), RUN)
    check_fits("worker:1", plan().to_wire(), settings, plan(), RUN)


@pytest.mark.parametrize(
    ("wanted", "settings", "words"),
    [
        (plan(shape=(3,)), {}, r"worker:1 does not fit the run: its w is float32 \(3,\), the run's is float32 \(2,\)"),
        (plan(ADAM), {}, "worker:1 does not fit the run: its optimizer of w is .*Adam.*, the run's is .*SGD"),
        (plan(), {"update": ASYNC}, r"worker:1 wants update Async\(\); the run has SyncReplicas\(\)"),
        (plan(), {"checkpoint_dir": "x"}, "worker:1 wants checkpoint_dir 'x'; the run has 'run'"),
    ],
)
def test_a_session_that_does_not_fit_is_told_both(wanted: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_fits("worker:1", wanted.to_wire(), settings, plan(), RUN)


def test_parts_and_placement_are_the_runs_whatever_a_later_session_would_choose() -> None:
    specs = [VariableSpec("w", (4,), "<f4", SGD)]
    run = make_plan(specs, (0, 1), lambda *_: 1, None)
    later = make_plan(specs, (0, 1), lambda *_: 0, lambda *_: 2)
    check_fits("worker:1", later.to_wire(), {}, run, {})
