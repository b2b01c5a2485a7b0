"""A gradient in pieces: its memory goes while it is applied, and who waits for that is told when half has gone."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from dps.ps.store.gradients import Pieces

PIECE = np.zeros(4, np.float32).nbytes


def told_of(at: int, group_nbytes: int, count: int = 6) -> list[int]:
    """How many of the pieces were still in memory each time somebody was told."""
    arrays = [np.zeros(4, np.float32) for _ in range(count)]
    alive, found = [weakref.ref(array) for array in arrays], list[int]()
    pieces = Pieces(arrays, at, lambda: found.append(sum(ref() is not None for ref in alive)))
    arrays.clear()
    for group in pieces.taken(group_nbytes):
        group.clear()
    return found


@pytest.mark.parametrize(
    ("at", "group", "left"),
    [(3, 1, 3), (3, 3, 3), (3, 2, 2), (3, 6, 0), (6, 2, 0), (1, 4, 2)],
    ids=["one by one", "half at a time", "the group that it ends in goes first", "all at once", "the end", "the start"],
)
def test_who_waits_for_some_of_the_pieces_is_told_once_when_these_are_no_longer_in_memory(
    at: int, group: int, left: int
) -> None:
    assert told_of(at, group * PIECE) == [left]


@pytest.mark.parametrize("at", [-1, 0, 7], ids=["before", "at the start", "behind"])
def test_nobody_is_told_by_an_arena_in_which_that_piece_does_not_lie(at: int) -> None:
    assert told_of(at, 2 * PIECE) == []


def test_all_pieces_come_in_turn_in_groups_of_so_many_bytes_and_more() -> None:
    pieces = Pieces(np.arange(20, dtype=np.float32).reshape(5, 4))
    groups = [[float(piece[0]) for piece in group] for group in pieces.taken(2 * PIECE)]
    assert groups == [[0.0, 4.0], [8.0, 12.0], [16.0]]
