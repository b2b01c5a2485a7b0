"""Hooks say what they take, in one line, when they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dps
from dps.errors import ConfigError
from dps.hooks import Timer


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dps.StopAtStep(), "StopAtStep: got last_step=None and num_steps=None, wanted one of them"),
        (lambda: dps.StopAtStep(3, 4), "StopAtStep: got last_step=3 and num_steps=4, wanted one of them"),
        (lambda: dps.StopAtStep(last_step=-1), "last_step=-1"),
        (lambda: dps.StopAtStep(num_steps="9"), "num_steps='9'"),  # type: ignore[arg-type]
        (lambda: dps.CheckpointSaver(steps=5, seconds=5), "CheckpointSaver: got steps=5 and seconds=5,"),
        (lambda: dps.CheckpointSaver(steps=0), "steps=0"),
        (lambda: dps.CheckpointSaver(seconds=-2), "seconds=-2"),
        (lambda: dps.StepCounter(steps=2.5), "whole number"),  # type: ignore[arg-type]
        (lambda: dps.LogMetrics(steps=True), "whole number"),
        (lambda: dps.LogMetrics(steps=5, seconds=5.0), "LogMetrics: got steps=5 and seconds=5.0, wanted one of them"),
        (lambda: dps.StepCounter(steps=5, seconds=5.0), "StepCounter: got steps=5 and seconds=5.0, wanted one of them"),
        (lambda: dps.SummarySaver("x", steps=1, seconds=1), "SummarySaver: got steps=1 and seconds=1,"),
        (lambda: dps.SummarySaver("x", batch=0), "batch=0"),
        (lambda: Timer(), "Timer: got steps=None and seconds=None, wanted one of them"),
        (lambda: Timer(every_s=float("nan")), "above 0"),
    ],
)
def test_arguments_that_do_not_fit_are_told(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_without_a_choice_hooks_that_log_fire_every_hundred_steps_and_with_one_as_it_says() -> None:
    for kind in (dps.LogMetrics, dps.StepCounter):
        made = [kind()._timer, kind(7)._timer, kind(seconds=2.0)._timer, kind(None, 3.0)._timer]
        fires = [timer.every_steps or timer.every_s for timer in made]
        assert fires == [100, 7, 2.0, 3.0] and [timer.every_s for timer in made] == [None, None, 2.0, 3.0]
