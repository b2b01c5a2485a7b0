"""Hooks say what they take, in one line, when they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
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
        (lambda: dps.CheckpointSaver(seconds="60"), "CheckpointSaver: got seconds='60', wanted a number above 0"),  # type: ignore[arg-type]
        (lambda: dps.CheckpointSaver(seconds=True), "CheckpointSaver: got seconds=True"),
        (lambda: dps.CheckpointSaver(steps="60"), "CheckpointSaver: got steps='60', wanted a whole number from 1"),  # type: ignore[arg-type]
        (lambda: dps.LogMetrics(seconds=np.array([1, 2])), "LogMetrics: got seconds=array"),  # type: ignore[arg-type]
        (lambda: dps.Profiler(seconds=1j), "Profiler: got seconds=1j"),  # type: ignore[arg-type]
        (lambda: dps.StepCounter(steps=np.array(2.5)), "StepCounter: got steps=array"),  # type: ignore[arg-type]
        (lambda: dps.StepCounter(steps=-(10**30)), "StepCounter: got steps=-10"),
        (lambda: dps.LogMetrics(batch="32"), "LogMetrics: got batch='32', wanted the examples in one push"),  # type: ignore[arg-type]
        (lambda: dps.LogMetrics(batch=0), "LogMetrics: got batch=0"),
        (lambda: dps.GlobalStepWaiter(1, timeout=np.array([1, 2])), "GlobalStepWaiter: got timeout="),  # type: ignore[arg-type]
        (lambda: dps.StopAtStep(np.array(2.5)), "StopAtStep: got last_step=array"),  # type: ignore[arg-type]
        (lambda: dps.SummarySaver(""), "SummarySaver: got directory='', wanted the path of a folder, or None"),
        (lambda: dps.SummarySaver(b"logs"), "SummarySaver: got directory=b'logs'"),  # type: ignore[arg-type]
        (lambda: dps.Profiler("a\0b"), "Profiler: got directory="),
        (lambda: dps.Profiler(3), "Profiler: got directory=3"),  # type: ignore[arg-type]
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


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    stop = dps.StopAtStep(np.int64(3))
    assert type(stop.last_step) is int  # progress displays know it
    saver = dps.SummarySaver("x", steps=np.int32(7), batch=np.int64(8))
    assert (saver._timer.every_steps, saver.batch) == (7, 8)
    assert dps.Profiler("x", seconds=np.float32(0.5), length=np.int64(2))._timer is not None
