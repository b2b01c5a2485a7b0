"""A gradient in pieces: its memory goes while it is applied."""

from __future__ import annotations

import weakref

import numpy as np

from dps.ps.store.gradients import GradientPieces

PIECE = np.zeros(4, np.float32).nbytes


def test_the_memory_of_a_group_goes_when_the_next_one_is_asked_for() -> None:
    arrays = [np.zeros(4, np.float32) for _ in range(6)]
    alive = [weakref.ref(array) for array in arrays]
    pieces = GradientPieces(arrays)
    arrays.clear()
    left = []
    for group in pieces.taken(2 * PIECE):
        left.append(sum(ref() is not None for ref in alive))
        group.clear()
    assert left == [6, 4, 2] and not any(ref() is not None for ref in alive)


def test_all_pieces_come_in_turn_in_groups_of_so_many_bytes_and_more() -> None:
    pieces = GradientPieces(np.arange(20, dtype=np.float32).reshape(5, 4))
    groups = [[float(piece[0]) for piece in group] for group in pieces.taken(2 * PIECE)]
    assert groups == [[0.0, 4.0], [8.0, 12.0], [16.0]]
