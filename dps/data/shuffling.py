"""A shuffle with a bounded buffer: the same order for the same seed and epoch, in every process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from dps.data.stage import Block, Cursor, Stage, State, check, full


class Buffer:
    """A shuffle buffer: elements go in in the order in which they were read and come out in random order, a function of
    seed and epoch alone.

    It is filled first. Then one element is drawn for each that is read, which takes its place; at the end the rest
    leaves in random order. Elements are numbered as they are read, from 0.
    """

    def __init__(self, seed: int, epoch: int) -> None:
        self._bits = np.random.PCG64([seed, epoch])
        self._draws = _draws(self._bits)
        self.held: list[tuple[int, Any]] = []
        """The numbers and elements in the buffer."""
        self.filled = self.given = self.drained = 0
        """How many elements were put in, given in exchange for another one, and given at the end."""

    @property
    def read(self) -> int:
        """How many elements were put in."""
        return self.filled + self.given

    def fill(self, elements: Iterable[Any]) -> None:
        """Put elements in the buffer."""
        self.held.extend(enumerate(elements, self.read))
        self.filled = len(self.held)

    def give(self, elements: Iterable[Any]) -> list[Any]:
        """Exchange each of these elements for one of the buffer."""
        held, found, first = self.held, [], self.read
        size = len(held)
        for (number, element), draw in zip(enumerate(elements, first), self._draws, strict=False):
            place = draw % size
            found.append(held[place][1])
            held[place] = (number, element)
        self.given += len(found)
        return found

    def drain(self, count: int) -> list[Any]:
        """Take up to `count` elements out."""
        if not self.drained:
            order = np.argsort(self._bits.random_raw(len(self.held)), kind="stable").tolist()
            self.held = [self.held[place] for place in order]
        found = [element for _, element in self.held[self.drained : self.drained + count]]
        self.drained += len(found)
        return found


def _draws(bits: np.random.PCG64) -> Iterator[int]:
    """Whole numbers of 64 bits: the same with every version of numpy, which other draws need not be."""
    while True:
        yield from bits.random_raw(256).tolist()


class Shuffle:
    """Gives elements in random order, as far as a buffer of them allows."""

    name = "shuffle"

    def __init__(self, of: Stage, size: int, seed: int) -> None:
        self.of, self.size, self.seed, self.arrays = of, size, seed, of.arrays

    def open(self, epoch: int, at: State | None) -> ShuffleCursor:
        at = check(at, self.name)
        of = self.of.open(epoch, at and at["of"])
        if at is None:
            return ShuffleCursor(of, self.size, self.seed, Buffer(self.seed, epoch), (0, of.state()))
        return ShuffleCursor(of, self.size, at["seed"], restored(of, at, epoch), (at["first"], at["of"]))


def restored(of: Cursor, at: State, epoch: int) -> Buffer:
    """Fill the buffer of a cursor's state by reading its elements again. `of` is at the element of the number
    `first`."""
    buffer = Buffer(at["seed"], epoch)
    buffer.fill(range(at["filled"]))
    buffer.give(range(at["given"]))
    if at["drained"]:
        buffer.drain(at["drained"])
    again = full(of, buffer.read - at["first"]) if buffer.read > at["first"] else ()
    buffer.held = [(number, again[number - at["first"]]) for number, _ in buffer.held]
    return buffer


class ShuffleCursor:
    """A buffer between two stages.

    Its state is how much was read and given. The elements in the buffer are read again: from a state of the stage
    before that was noted ahead of all of them.
    """

    def __init__(self, of: Cursor, size: int, seed: int, buffer: Buffer, noted: tuple[int, State]) -> None:
        self._of, self._size, self._seed, self._buffer = of, size, seed, buffer
        self._noted = [noted]
        """Element numbers, and the states of the stage before when it was about to give these elements."""

    def take(self, count: int) -> Block:
        buffer = self._buffer
        if buffer.filled < self._size and not buffer.given and not buffer.drained:
            buffer.fill(self._read(self._size - buffer.filled))
        if buffer.drained or buffer.filled < self._size:
            return buffer.drain(count)
        self._note()
        return buffer.give(self._read(count)) or buffer.drain(count)

    def _read(self, count: int) -> list[Any]:
        block = full(self._of, count)
        found: list[Any] = block.tolist() if isinstance(block, np.ndarray) else block
        return found

    def _note(self) -> None:
        """Keep a state from time to time, and drop those that are no longer needed."""
        buffer, noted = self._buffer, self._noted
        if buffer.read - noted[-1][0] >= self._size:
            noted.append((buffer.read, self._of.state()))
            oldest = min(number for number, _ in buffer.held)
            while noted[1][0] <= oldest:
                del noted[0]

    def state(self) -> State:
        buffer, (first, of) = self._buffer, self._noted[0]
        return {
            "stage": Shuffle.name, "seed": self._seed, "filled": buffer.filled, "given": buffer.given,
            "drained": buffer.drained, "first": first, "of": of,
        }  # fmt: skip

    def close(self) -> None:
        self._of.close()
