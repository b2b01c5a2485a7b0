"""When a wait is told."""

from __future__ import annotations

from dps.process.telemetry import LogThrottle


def test_a_wait_is_told_after_two_seconds_and_then_every_ten() -> None:
    throttle = LogThrottle()
    assert [second for second in range(40) if throttle.is_due(100.0 + second)] == [2, 12, 22, 32]


def test_what_is_there_within_two_seconds_is_never_told_and_the_next_wait_begins_anew() -> None:
    throttle = LogThrottle()
    assert not throttle.is_due(0.0) and not throttle.is_due(1.9)
    throttle.end_wait()
    assert not throttle.is_due(1.95) and not throttle.is_due(3.9) and throttle.is_due(3.95)
