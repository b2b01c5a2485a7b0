"""Which buffer a version is sent from: two of a large shard as long as readers move, then a third, then a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dps.ps.serving.buffer_wait import BufferWait, Wait
from dps.ps.store.gradients import Gradient
from dps.ps.store.hold import Hold
from dps.ps.store.store import Store
from dps.transport.current import runtime
from dps.transport.tuning import ORDINARY
from tests.ps.test_store import plan, run_of
from tests.tuned import tune

PACE = 1000.0

MOST_S, ROOM_S = ORDINARY.serving.buffer_wait_most_s, ORDINARY.serving.buffer_wait_s
WINDOW_S = ORDINARY.serving.window_s


class Sent:
    """A shard of which versions are sent, and a clock."""

    def __init__(self, patch: pytest.MonkeyPatch, large: bool = True) -> None:
        self.now = 50.0
        tune(patch, store__large_pieces=0 if large else 1 << 30, serving__slow_nbytes_s=PACE, small_nbytes=0)
        patch.setattr(type(runtime()), "now", lambda _: self.now)
        self.store = Store(plan().layouts[0], runtime())
        self.room = BufferWait(self.store)

    def update(self) -> None:
        self.store.apply_update(run_of(self.store, -1.0), self.store.step + 1)

    def hold(self, wait: Wait | None = None) -> Hold | None:
        return self.room.hold(Wait() if wait is None else wait, None)

    @property
    def most(self) -> int:
        return max(len(arena.buffers) for arena in self.store.arenas)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    return Sent(monkeypatch)


def older_and_newer(sent: Sent) -> tuple[Hold, Wait]:
    """A reader of the version before, and one who waits for room to read the current one."""
    first, wait = sent.hold(), Wait()
    sent.update()
    assert first is not None and sent.hold(wait) is None
    return first, wait


def test_readers_of_one_version_do_not_wait_for_each_other(sent: Sent) -> None:
    assert [sent.hold() is None for _ in range(4)] == [False] * 4


def test_a_reader_of_the_next_version_waits_for_the_one_before_and_then_reads(sent: Sent) -> None:
    first, wait = older_and_newer(sent)
    sent.update()  # what nobody reads is updated in place
    first.release()
    second = sent.hold(wait)
    assert second is not None and second.counter == 2 and sent.most == 2


def test_updates_go_on_while_a_reader_waits(sent: Sent) -> None:
    older_and_newer(sent)
    for _ in range(5):
        sent.update()
    assert sent.store.counter == 6 and sent.most == 2


def test_a_third_buffer_is_made_when_nothing_moves_and_nobody_waits_for_it_again(sent: Sent) -> None:
    _, wait = older_and_newer(sent)
    assert wait.until == sent.now + WINDOW_S
    sent.now = wait.until
    second = sent.hold(wait)
    assert second is not None and sent.room.copies == 0 and second.counter == 1
    sent.update()
    assert sent.most == 3
    second.release()
    assert sent.hold() is not None


def test_as_long_as_values_move_it_waits_but_not_for_ever(sent: Sent) -> None:
    _, wait = older_and_newer(sent)
    end, asked = sent.now + MOST_S, 0
    while sent.hold(wait) is None:
        assert sent.now < wait.until <= end
        sent.room.sent += round(2 * PACE * WINDOW_S)
        sent.now, asked = wait.until, asked + 1
    assert sent.now == end and asked == MOST_S / WINDOW_S


def test_when_all_buffers_are_read_and_nothing_moves_a_copy_follows_one_for_all(sent: Sent) -> None:
    _, wait = older_and_newer(sent)
    sent.now = wait.until
    held: list[Any] = [sent.hold(wait)]
    sent.update()
    waits = [Wait(), Wait()]
    assert [sent.hold(wait) for wait in waits] == [None, None] and waits[0].until == sent.now + WINDOW_S
    sent.now += WINDOW_S
    copies: list[Any] = [sent.hold(wait) for wait in waits]
    assert copies[0] is not None and copies[0] is copies[1] and copies[0].counter == 2
    assert sent.room.copies == 2 and held[0].counter == 1
    later = Wait()
    assert sent.hold(later) is None and later.until == sent.now + ROOM_S  # nobody waits for long once that was in vain
    held[0].release()
    assert sent.hold(later) is not None


def test_a_small_shard_makes_its_third_buffer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(monkeypatch, large=False)
    first = sent.hold()
    sent.update()
    second = sent.hold()
    assert first is not None and second is not None and (first.counter, second.counter) == (0, 1)


def test_a_waiting_reader_never_sees_a_mixture(sent: Sent) -> None:
    first, wait = older_and_newer(sent)
    sent.update()
    assert first.arrays[0].tolist() == [0.0] * first.arrays[0].size
    first.release()
    second = sent.hold(wait)
    assert second is not None
    sent.store.apply_update(Gradient([np.full(a.size, -1.0, a.dtype) for a in sent.store.layout.arenas], {}), 9)
    assert set(second.arrays[0].tolist()) == {2.0}
