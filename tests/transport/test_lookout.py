"""A wait that usually is short looks before it sleeps, while nobody else wants the core."""

from __future__ import annotations

import os
import time

import pytest

from dps.transport.sockets import wakeups
from dps.transport.sockets.wakeups import DISTURBED_S, MOST_SLEPT, Lookout

READY = [(7, 1)]


class Scene:
    """A descriptor that becomes ready at a time, on a clock that looks and sleeps move."""

    def __init__(self, patch: pytest.MonkeyPatch, look_s: float = 2e-6) -> None:
        self.at, self.look_s, self.ready_at = 100.0, look_s, 0.0
        self.slept: list[float] = []
        self.looks = 0
        patch.setattr(time, "monotonic", lambda: self.at)
        patch.setattr(os, "sched_yield", self._offer)
        self.lookout = Lookout(self._poll)

    def _offer(self) -> None:
        self.at += self.look_s

    def _poll(self, wait_ms: float) -> list[tuple[int, int]]:
        self.looks += not wait_ms
        if wait_ms:
            self.slept.append(wait_ms / 1000)
            self.at = max(self.at, min(self.at + wait_ms / 1000, self.ready_at))
        return READY if self.at >= self.ready_at else []

    def began_asleep(self, comes_s: float) -> bool:
        """Whether a wait for what comes in so many seconds slept without a look."""
        self.wait(comes_s)
        return self.slept == [1.0] and not self.looks

    def wait(self, comes_s: float, wait_s: float = 1.0) -> bool:
        """Wait for what comes in so many seconds; returns whether the thread has slept."""
        self.slept.clear()
        self.looks = 0
        self.ready_at = self.at + comes_s
        assert self.lookout.wait(wait_s) == (READY if comes_s <= wait_s else [])
        return bool(self.slept)


def test_short_waits_do_not_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    assert not any(scene.wait(0.2e-3) for _ in range(20))


def test_long_waits_soon_sleep_at_once_and_short_ones_look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    waits = [scene.began_asleep(8e-3) for _ in range(200)]
    assert waits.count(False) < 10 and not waits[0]
    slept = [scene.wait(0.1e-3) for _ in range(2 * MOST_SLEPT)]
    assert slept[0] and not any(slept[-MOST_SLEPT:])


def test_a_look_ends_with_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    began = scene.at
    scene.wait(1.0, wait_s=0.3e-3)
    assert scene.at - began == pytest.approx(0.3e-3, abs=4e-6)


def test_whoever_wants_the_core_gets_it_for_twice_as_many_waits_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, look_s=2 * DISTURBED_S)
    for slept in (1, 3, 7, 15):
        assert scene.wait(0.2e-3)  # it looks once, and is disturbed
        assert all(scene.wait(0.2e-3) for _ in range(slept))
    scene.look_s = 2e-6
    looked = [scene.wait(0.2e-3) for _ in range(2 * MOST_SLEPT)]
    assert looked[0] is False and not any(looked[-MOST_SLEPT:])


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="needs eventfd, which Linux has")
def test_a_descriptor_wakes_a_wait_whether_it_looks_or_sleeps() -> None:
    poller, wake = wakeups.Poller(), wakeups.Wake()
    poller.register_fd(wake.fd)
    lookout = Lookout(poller.poll)
    assert lookout.wait(0.02) == []
    wake.set()
    began = time.monotonic()
    assert [fd for fd, _ in lookout.wait(5.0)] == [wake.fd] and time.monotonic() - began < 2.0
    wake.close()
