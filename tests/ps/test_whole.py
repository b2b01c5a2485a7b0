"""Values leave in pieces that end where parts do once it is known that each of them leaves within a moment."""

from __future__ import annotations

from typing import Any

import pytest

from dps.messages.sessions import NO_BASE, Pull, Values
from dps.transport.current import runtime
from dps.transport.tuning import ServingTuning
from tests.ps.test_ahead import LAYOUT, Ps
from tests.ps.test_modes import sender
from tests.tuned import tune

PIECE = 16


class Timed(Ps):
    """A ps whose pieces leave one after the other, each within `seconds`."""

    def __init__(self, patch: pytest.MonkeyPatch, *incarnations: int) -> None:
        tune(patch, piece_nbytes=PIECE)
        super().__init__(*incarnations)
        self.now, self.seconds, self.requests = 50.0, 0.01, 0
        patch.setattr(type(runtime()), "now", lambda _: self.now)
        answer = self.desk.answer

        def timed(to: Any, message: Any = None, done: Any = None) -> None:
            self.now += self.seconds
            answer(to, message, done)

        self.desk.answer = timed  # type: ignore[method-assign]

    def pull(self, incarnation: int = 1, whole: bool = True) -> list[Values]:
        self.requests += 1
        self.shard.reading.answer_pull(
            sender(incarnation, self.requests), Pull(1, 0, 0, 0, NO_BASE, [], keeps_memory=whole)
        )
        return [message for _, message in self.desk.take()]


def are_whole(pieces: list[Values]) -> bool:
    return all(
        LAYOUT.is_whole(offset, array.nbytes)
        for piece in pieces
        for offset, array in zip(piece.offsets, piece.arrays, strict=True)
    )


def test_the_first_answer_is_cut_for_a_connection_of_which_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    ps = Timed(monkeypatch, 1)
    first, second = ps.pull(), ps.pull()
    assert not are_whole(first) and are_whole(second) and len(second) < len(first)
    assert sum(a.nbytes for p in second for a in p.arrays) == LAYOUT.data_nbytes
    assert [{p.answer for p in pieces} for pieces in (first, second)] == [{1}, {2}]


def test_only_who_asks_for_it_gets_whole_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    ps = Timed(monkeypatch, 1, 2)
    ps.pull(1)
    assert not are_whole(ps.pull(1, whole=False))
    assert not are_whole(ps.pull(2)), "its connection may be another one"


def test_a_connection_that_has_become_slow_gets_small_pieces_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ps = Timed(monkeypatch, 1)
    ps.pull()
    ps.seconds = 60.0
    assert are_whole(ps.pull())
    assert not are_whole(ps.pull())
    ps.seconds = 0.01
    ps.pull()
    assert are_whole(ps.pull())


def test_pieces_are_as_long_as_what_leaves_within_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    ps = Timed(monkeypatch, 1)
    ps.pull()
    together = ps.pull()
    monkeypatch.setattr(ps.shard.reading._sending, "_tuning", ServingTuning(whole_nbytes=PIECE))
    apart = ps.pull()
    assert are_whole(together) and are_whole(apart) and len(together) < len(apart)
    monkeypatch.setattr(ps.shard.reading._sending, "_tuning", ServingTuning(longest_nbytes=LAYOUT.longest_part - 1))
    assert not are_whole(ps.pull())
