"""When a wait is told."""

from __future__ import annotations

from dps.process.telemetry import LogThrottle


def test_a_wait_is_told_after_two_seconds_and_then_every_ten() -> None:
    patience = LogThrottle()
    assert [second for second in range(40) if patience.due(100.0 + second)] == [2, 12, 22, 32]


def test_what_is_there_within_two_seconds_is_never_told_and_the_next_wait_begins_anew() -> None:
    patience = LogThrottle()
    assert not patience.due(0.0) and not patience.due(1.9)
    patience.over()
    assert not patience.due(1.95) and not patience.due(3.9) and patience.due(3.95)
