"""A dense push of one shard as messages whose arrays are the user's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dps.client.transfers import About
from dps.protocol import RUN, Push
from dps.transport.wire import Array
from dps.variables.layout import Gradient, split
from dps.variables.plan import Arena, Part, Plan, ShardLayout, piece_size

SMALL = 4
"""Variables of less than the shortest piece by this are gathered with their neighbours, and no less of a longer one is
sent alone to fill a message: a frame costs as much as to copy that much."""


def own_pieces(
    plan: Plan, layout: ShardLayout, gradients: Mapping[int, Gradient], smallest: int, about: About
) -> list[Push] | None:
    """The messages of a push of all trained parts of a shard, from gradients that are all dense, in pieces as of
    `piece_size`.

    Their arrays are views of the gradients, which must not change while such a message may count. None where most of
    the bytes are in small variables: those are better gathered into a run that is used again.
    """
    small = smallest // SMALL
    if layout.gradient_nbytes < small:
        return None
    sizes = layout.gradient_sizes
    large = int(sizes[sizes >= small].sum())
    if not large or 2 * large < layout.gradient_nbytes:
        return None
    trained = (arena for arena in layout.arenas if arena.optimizer is not None)
    spans = [span for arena in trained for span in _spans(plan, arena, gradients, small)]
    return [
        Push(
            *about[:4], RUN, layout.gradient_nbytes, [offset for offset, _ in piece], [], *about[4:],
            tuple([data for _, data in piece]),
        )
        for piece in _cut(spans, piece_size(layout.gradient_nbytes, smallest), small)
    ]  # fmt: skip


def _bytes(plan: Plan, part: Part, gradients: Mapping[int, Gradient]) -> Array:
    """The gradient of a part, which is dense, as it lies: bytes."""
    gradient = gradients[part.variable]
    assert isinstance(gradient, np.ndarray), "a push of all of a shard is dense"
    source = np.ascontiguousarray(split(gradient, part, len(plan.parts_of[part.variable])))
    return source.reshape(-1).view(np.uint8)


def _spans(plan: Plan, arena: Arena, gradients: Mapping[int, Gradient], small: int) -> Iterator[tuple[int, Array]]:
    """The bytes of an arena's gradients, in order, each with its offset in the run; small neighbours as one."""
    at, held = arena.offset, 0
    together: list[Array] = []
    for part in arena.parts:
        data = _bytes(plan, part, gradients)
        if data.nbytes < small:
            together.append(data)
            held += data.nbytes
            continue
        if together:
            yield at, np.concatenate(together)
            at, together, held = at + held, [], 0
        yield at, data
        at += data.nbytes
    if together:
        yield at, np.concatenate(together)


def _cut(spans: list[tuple[int, Array]], piece_nbytes: int, least: int) -> list[list[tuple[int, Array]]]:
    """Spans in pieces of at most `piece_nbytes` bytes; what is cut off is at a multiple of 64, or ends there."""
    pieces: list[list[tuple[int, Array]]] = [[]]
    room = most = max(piece_nbytes, 64)
    for offset, data in spans:
        at = 0
        while at < data.nbytes:
            left = data.nbytes - at
            if left > room and room < max(least, 64):
                pieces.append([])
                room = most
            n = left if left <= room else room // 64 * 64
            pieces[-1].append((offset + at, data[at : at + n]))
            at, room = at + n, room - n
    return pieces
