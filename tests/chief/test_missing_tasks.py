"""Who is missing, as the chief's log says it."""

from __future__ import annotations

import pytest

from tests.chief.led import Led

WHERE = "--chief 127.0.0.1:2220"
PS = f"python -m dps.role --job ps --task {{}} {WHERE}"
WORKER = f"python -m dps.role --job worker --task {{}} {WHERE} --program PROGRAM"


def test_missing_ps_are_told_with_their_command_after_two_seconds_and_every_ten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    led = Led(where=WHERE)
    led.desk.pass_time(1.9)
    assert not caplog.messages
    led.desk.pass_time(0.2)
    assert caplog.messages == [f"chief: the chief waits for ps:0, ps:1; start each, as: {PS.format(0)}"]
    led.register("ps", 0)
    led.desk.pass_time(10.0)
    assert caplog.messages[1:] == [f"chief: the chief waits for ps:1; start it with: {PS.format(1)}"]


def test_then_the_workers_that_never_came_are_told(caplog: pytest.LogCaptureFixture) -> None:
    led = Led(where=WHERE)
    for task in (0, 1):
        led.register("ps", task)
    led.register("worker", 1)
    led.desk.pass_time(3.0)
    assert caplog.messages == [f"chief: the chief waits for worker:0; start it with: {WORKER.format(0)}"]
    led.register("worker", 0)
    led.desk.pass_time(30.0)
    assert len(caplog.messages) == 1  # they have not opened a session yet, and are there


def test_a_lost_ps_is_told_with_how_long_it_is_away(caplog: pytest.LogCaptureFixture) -> None:
    led = Led(checkpoint_dir="run", where=WHERE).train(0, 1)
    led.desk.pass_time(5.0)
    led.lose("ps", 1)
    led.desk.pass_time(4.0)
    assert caplog.messages[-1] == f"chief: the chief waits for ps:1 (3 s); start it with: {PS.format(1)}"


def test_the_last_workers_that_are_lost_are_told_while_the_run_waits_for_them(caplog: pytest.LogCaptureFixture) -> None:
    led = Led(where=WHERE).train(0, 1)
    led.lose("worker", 1)
    led.desk.pass_time(20.0)
    assert caplog.messages[-1] == "chief: worker:1 was silent for 1.0 s; the others go on without it"
    led.lose("worker", 0)
    led.know()
    led.desk.pass_time(4.0)
    told = "the chief waits for worker:0, worker:1 to come back, at most 50 s; start each, as:"
    assert caplog.messages[-1] == f"chief: {told} {WORKER.format(0)}"
    led.desk.pass_time(50.0)
    told_by_then = len(caplog.messages)
    led.desk.pass_time(30.0)
    assert len(caplog.messages) == told_by_then  # the run is over


@pytest.mark.parametrize("missing", ["nobody", "workers of a launcher", "workers of an owned cluster"])
def test_nothing_is_told_where_nobody_is_missing_or_somebody_else_starts_them(
    missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    launched = missing == "workers of a launcher"
    led = Led(where="" if launched else WHERE, owned="owned" in missing)
    if missing == "nobody":
        led.train(0, 1)
    else:
        for task in (0, 1):
            led.register("ps", task)
    led.desk.pass_time(50.0)
    assert not caplog.messages


def test_under_a_launcher_the_chief_names_the_missing_ps_without_a_command(caplog: pytest.LogCaptureFixture) -> None:
    led = Led()
    led.desk.pass_time(2.5)
    assert caplog.messages == ["chief: the chief waits for ps:0, ps:1"]


def test_where_no_number_is_known_any_ps_will_do(caplog: pytest.LogCaptureFixture) -> None:
    led = Led(ps=0, workers=0, where=WHERE)
    led.desk.pass_time(2.5)
    assert caplog.messages == [
        f"chief: the chief waits for a ps; start it with: {PS.format(0).replace(' --task 0', '')}"
    ]
