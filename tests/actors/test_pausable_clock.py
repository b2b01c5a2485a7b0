"""The clock that stands still while its process does."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dps.actors.pausable_clock import PausableClock


class Stopped:
    """A runtime, and an endpoint whose `receive` takes as long as it is told."""

    silence_s = 5.0

    def __init__(self) -> None:
        self.time, self.takes = 100.0, 0.0

    def now(self) -> float:
        return self.time

    def receive(self, timeout_s: float) -> Any:
        self.time += self.takes
        return None


@pytest.mark.parametrize(
    ("wait_s", "took_s", "counts"), [(0.5, 0.5, True), (0.5, 2.4, True), (0.5, 2.6, False), (0.0, 30.0, False)]
)
def test_a_wait_that_took_much_longer_than_it_should_does_not_count(wait_s: float, took_s: float, counts: bool) -> None:
    world: Any = Stopped()
    time = PausableClock(world)
    world.takes = took_s
    time.receive(world, wait_s)
    assert time.now() == pytest.approx(100.0 + (took_s if counts else 0.0))
    assert time.stood_still_s == pytest.approx(0.0 if counts else took_s)


def test_time_between_waits_counts() -> None:
    world: Any = Stopped()
    time = PausableClock(world)
    world.time += 60.0
    time.receive(world, 1.0)
    assert time.now() == 160.0


def test_nothing_is_waited_for_exactly_when_the_time_to_wait_for_has_come() -> None:
    """Else a node in the simulator would turn for ever at one virtual time: it waits for 0 s, and nothing is due."""
    world: Any = Stopped()
    draw = random.Random(1)
    for _ in range(10_000):
        time = PausableClock(world)
        world.time, time.stood_still_s = draw.uniform(0, 100), draw.uniform(0, 10)
        until = time.now() + draw.choice([0.0, 1e-15, -1e-15, 1e-14, -1e-14])
        time.receive(world, 5.0, until)
        assert (time.asked_s == 0.0) == (until <= time.received_at)
