"""Stages with little state: map, batch, repeat and shard."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from typing import Any

import numpy as np

from dps.data.arrays import Arrays, stack_examples
from dps.data.sources import call_guarded, function_name
from dps.data.stage import (
    Block,
    Cursor,
    DerivedCursor,
    DerivedStage,
    FullBlocks,
    Stage,
    State,
    check_stage,
    state_before,
)
from dps.errors import ConfigError


def read_example(cursor: Cursor, arrays: Arrays | None) -> list[Any]:
    """The next example, or none at the end. `arrays`: those of the stage, of which the cursor gives row numbers."""
    block = cursor.read_block(1)
    return list(block) if arrays is None else [arrays.row(number) for number in block]


class MapCursor(DerivedCursor):
    def __init__(self, stage: Map, of: Cursor, at: State | None) -> None:
        super().__init__(stage, of, at)
        self._function, self._arrays = stage.function, stage.of.arrays
        self._parts = takes_parts(stage.function)

    def read_block(self, count: int) -> Block:
        # One at a time: a failure loses no more than one.
        return [self._call_function(element) for element in read_example(self._of, self._arrays)]

    def _call_function(self, element: Any) -> Any:
        function = self._function
        parts = element if type(element) is tuple and len(element) == self._parts else (element,)
        return call_guarded(lambda: function(*parts), f"map: {function_name(function)}", lambda: "")


class Map(DerivedStage):
    """A function of each element."""

    name = "map"
    arrays = None
    cursor = MapCursor

    def __init__(self, of: Stage, function: Callable[..., Any]) -> None:
        self.of, self.function = of, function


def takes_parts(function: Callable[..., Any]) -> int:
    """How many arguments a function needs, if that is more than one; else 0."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = sum(p.kind in places and p.default is inspect.Parameter.empty for p in parameters)
    return needed if needed > 1 else 0


class BatchCursor(DerivedCursor):
    _stage: BatchStage

    def __init__(self, stage: BatchStage, of: Cursor, at: State | None) -> None:
        super().__init__(stage, FullBlocks(of), at)

    def read_block(self, count: int) -> Block:
        size, arrays = self._stage.size, self._stage.of.arrays
        block = self._of.read_block(size)
        if not len(block) or (len(block) < size and self._stage.drop_remainder):
            return []
        return [stack_examples(block) if arrays is None else arrays.gather_rows(block)]


class BatchStage(DerivedStage):
    """Consecutive examples stacked into arrays with one more axis, in front."""

    name = "batch"
    arrays = None
    cursor = BatchCursor

    def __init__(self, of: Stage, size: int, drop_remainder: bool) -> None:
        self.of, self.size, self.drop_remainder = of, size, drop_remainder


class Repeat:
    """Several passes over what comes before, each an epoch of its own."""

    name = "repeat"

    def __init__(self, of: Stage, times: int | None) -> None:
        self.of, self.times, self.arrays = of, times, of.arrays
        self.numbers = {"pass": None if times is None else times - 1}

    def open_cursor(self, epoch: int, at: State | None) -> RepeatCursor:
        at = check_stage(at, self)
        return RepeatCursor(self, epoch * (self.times or 1), at)


class RepeatCursor(DerivedCursor):
    _stage: Repeat

    def __init__(self, stage: Repeat, first: int, at: State | None) -> None:
        self._first, self._pass = first, 0 if at is None else at["pass"]
        super().__init__(stage, stage.of.open_cursor(first + self._pass, state_before(at)), at)
        self._empty = at is None
        """Whether this pass has given nothing yet: then there is nothing to repeat."""

    def read_block(self, count: int) -> Block:
        block = self._of.read_block(count)
        while not len(block) and not self._empty and self._pass + 1 != self._stage.times:
            self._of.close()
            self._pass, self._empty = self._pass + 1, True
            self._of = self._stage.of.open_cursor(self._first + self._pass, None)
            block = self._of.read_block(count)
        self._empty = self._empty and not len(block)
        return block

    def state(self) -> State:
        return {**super().state(), "pass": self._pass}


class ShardCursor(DerivedCursor):
    _stage: ShardStage

    def __init__(self, stage: ShardStage, of: Cursor, at: State | None) -> None:
        super().__init__(stage, FullBlocks(of), at)
        self._next = 0 if at is None else at["next"]
        """The place of the next element that is read, within a group of `shards` elements."""

    def read_block(self, count: int) -> Block:
        shards = self._stage.shards
        skipped = (self._stage.shard - self._next) % shards
        block = self._of.read_block(skipped + 1 + (count - 1) * shards)
        self._next = (self._next + len(block)) % shards
        return block[skipped::shards]

    def state(self) -> State:
        return {**super().state(), "next": self._next}


class ShardStage(DerivedStage):
    """Every `shards`-th element, from one on."""

    name = "shard"
    cursor = ShardCursor

    def __init__(self, of: Stage, shards: int, shard: int) -> None:
        self.of, self.shards, self.shard, self.arrays = of, shards, shard, of.arrays
        self.numbers = {"next": shards - 1}


def sharded(stage: Stage, shards: int, shard: int) -> Stage:
    """The shard of a stage. A function before it is called for the shard's own elements only."""
    if isinstance(stage, Map):
        return Map(sharded(stage.of, shards, shard), stage.function)
    return ShardStage(stage, shards, shard)


class ShuffleBuffer:
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

    def add_elements(self, elements: Iterable[Any]) -> None:
        """Put elements in the buffer."""
        self.held.extend(enumerate(elements, self.read))
        self.filled = len(self.held)

    def exchange_elements(self, elements: Iterable[Any]) -> list[Any]:
        """Exchange each of these elements for one of the buffer."""
        held, found, first = self.held, [], self.read
        size = len(held)
        for (number, element), draw in zip(enumerate(elements, first), self._draws, strict=False):
            place = draw % size
            found.append(held[place][1])
            held[place] = (number, element)
        self.given += len(found)
        return found

    def drain_elements(self, count: int) -> list[Any]:
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

    def __init__(self, of: Stage, size: int, seed: int, drawn: bool) -> None:
        """`drawn`: the program gave no seed. A position's is then as good, and later epochs have its orders, too."""
        self.of, self.size, self.seed, self.drawn, self.arrays = of, size, seed, drawn, of.arrays
        self.numbers = {"seed": None, "filled": size, "given": None, "drained": size, "first": None}

    def open_cursor(self, epoch: int, at: State | None) -> ShuffleCursor:
        at = check_stage(at, self)
        if at is not None and (at["seed"] != self.seed or (at["given"] and at["filled"] != self.size)):
            raise ConfigError(
                f"position: shuffle: got one of seed {at['seed']} and a buffer of {at['filled']}, this dataset has "
                f"{self.seed} and {self.size}; is it of another dataset?"
            )
        of = FullBlocks(self.of.open_cursor(epoch, state_before(at)))
        buffer = ShuffleBuffer(self.seed, epoch) if at is None else restore_buffer(of, at, epoch)
        return ShuffleCursor(self, of, at, buffer)


def with_seeds_of(at: State | None, stage: Any) -> Any:
    """The stage with the seeds of a state in place of those that this process has drawn. The given one stays as it is:
    other datasets and iterators use it."""
    at = check_stage(at, stage)
    if at is None or not has_drawn_order(stage):
        return stage
    found = copy(stage)
    found.of = with_seeds_of(state_before(at), stage.of)
    if getattr(stage, "drawn", False):
        found.seed = at["seed"]
    return found


def has_drawn_order(stage: Any) -> bool:
    """Whether a stage, or one before it, shuffles by a seed that this process has drawn."""
    return stage is not None and (getattr(stage, "drawn", False) or has_drawn_order(getattr(stage, "of", None)))


def restore_buffer(of: FullBlocks, at: State, epoch: int) -> ShuffleBuffer:
    """Fill the buffer of a cursor's state by reading its elements again. `of` is at the element of the number
    `first`."""
    buffer = ShuffleBuffer(at["seed"], epoch)
    buffer.add_elements(range(at["filled"]))
    buffer.exchange_elements(range(at["given"]))
    if at["drained"]:
        buffer.drain_elements(at["drained"])
    first = at["first"]
    again = of.read_block(buffer.read - first) if buffer.read > first else ()
    if len(again) != buffer.read - first or any(number < first for number, _ in buffer.held):
        raise ConfigError(
            f"position: shuffle: got first={first} after {buffer.read} elements; is it of another dataset?"
        )
    buffer.held = [(number, again[number - first]) for number, _ in buffer.held]
    return buffer


class ShuffleCursor(DerivedCursor):
    """A buffer between two stages.

    Its state is how much was read and given. The elements in the buffer are read again: from a state of the stage
    before that was noted ahead of all of them.
    """

    def __init__(self, stage: Shuffle, of: FullBlocks, at: State | None, buffer: ShuffleBuffer) -> None:
        super().__init__(stage, of, at)
        self._size, self._seed = stage.size, stage.seed
        self._buffer = buffer
        self._noted = [(0, of.state()) if at is None else (at["first"], at["of"])]
        """Element numbers, and the states of the stage before when it was about to give these elements."""

    def read_block(self, count: int) -> Block:
        buffer = self._buffer
        if buffer.filled < self._size and not buffer.given and not buffer.drained:
            buffer.add_elements(self._read_elements(self._size - buffer.filled))
        if buffer.drained or buffer.filled < self._size:
            return buffer.drain_elements(count)
        self._note_state()
        return buffer.exchange_elements(self._read_elements(count)) or buffer.drain_elements(count)

    def _read_elements(self, count: int) -> list[Any]:
        block = self._of.read_block(count)
        found: list[Any] = block.tolist() if isinstance(block, np.ndarray) else block
        return found

    def _note_state(self) -> None:
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
            "stage": self._stage.name, "seed": self._seed, "filled": buffer.filled, "given": buffer.given,
            "drained": buffer.drained, "first": first, "of": of,
        }  # fmt: skip
