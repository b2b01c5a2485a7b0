"""benchmarks/two_workers.py: what two workers make of two cores."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from benchmarks.two_workers import ALONE, APART, Meeting, local_loop, main, ratios
from dps.monitor.loops import Computing, MeasuredLoop


def test_a_ratio_adds_the_rates_of_both_workers_and_is_the_median_of_the_rounds() -> None:
    first = [{"steps": 4.0, ALONE: 2.0, APART: 2.0, "step": took} for took in (4.0, 2.0, 8.0)]
    second = [{"steps": 4.0, APART: 4.0, "step": 4.0}] * 3
    assert ratios(first, second) == {APART: 1.5, "step": 1.0}


def test_nobody_goes_on_before_both_have_met(tmp_path: Path) -> None:
    (tmp_path / "met").write_bytes(bytes(32))
    passed = list[tuple[int, int]]()

    def work(task: int) -> None:
        meeting = Meeting(str(tmp_path / "met"), task)
        for number in range(50):
            meeting.meet()
            passed.append((number, task))

    threads = [threading.Thread(target=work, args=(task,)) for task in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(passed) == [(number, task) for number in range(50) for task in (0, 1)]
    assert all(abs(at - passed.index((number, 1 - task))) <= 3 for at, (number, task) in enumerate(passed))


def test_the_local_loop_trains() -> None:
    params = MeasuredLoop().params()
    before = {name: values.copy() for name, values in params.items()}
    local_loop(params, Computing(1))(2)
    assert all((params[name] != values).any() for name, values in before.items())


@pytest.mark.nightly
@pytest.mark.slow
def test_the_program_measures(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "1", "--elements", "1000", "--milliseconds", "0.5"]) == 0
    out = capfd.readouterr().out
    assert out.count("two local processes") >= 2 and "two workers, overlapped" in out
