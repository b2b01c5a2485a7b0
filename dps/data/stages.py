"""Stages with little state: map, batch, repeat and shard."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from dps.data.arrays import Arrays, stacked
from dps.data.sources import guarded, named
from dps.data.stage import Block, Cursor, Stage, State, check, full


class Rows:
    """Row numbers as examples: what comes after stages that only choose rows."""

    def __init__(self, cursor: Cursor, arrays: Arrays | None) -> None:
        self._cursor, self._arrays = cursor, arrays

    def take(self, count: int) -> list[Any]:
        """Examples, as `Cursor.take`."""
        block = self._cursor.take(count)
        if self._arrays is None:
            return list(block)
        return [self._arrays.row(number) for number in block]


class Map:
    """A function of each element."""

    name = "map"
    arrays = None

    def __init__(self, of: Stage, function: Callable[..., Any]) -> None:
        self.of, self.function = of, function

    def open(self, epoch: int, at: State | None) -> MapCursor:
        at = check(at, self.name)
        return MapCursor(self, self.of.open(epoch, at and at["of"]))


class MapCursor:
    def __init__(self, stage: Map, of: Cursor) -> None:
        self._function, self._of = stage.function, of
        self._rows = Rows(of, stage.of.arrays)
        self._parts = takes_parts(stage.function)

    def take(self, count: int) -> Block:
        return [self._called(element) for element in self._rows.take(1)]  # a failure loses no more than one

    def _called(self, element: Any) -> Any:
        function = self._function
        if type(element) is tuple and len(element) == self._parts:
            return guarded(lambda: function(*element), f"map: {named(function)}", lambda: "")
        return guarded(lambda: function(element), f"map: {named(function)}", lambda: "")

    def state(self) -> State:
        return {"stage": Map.name, "of": self._of.state()}

    def close(self) -> None:
        self._of.close()


def takes_parts(function: Callable[..., Any]) -> int:
    """How many arguments a function needs, if that is more than one; else 0."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = sum(p.kind in places and p.default is inspect.Parameter.empty for p in parameters)
    return needed if needed > 1 else 0


class Batch:
    """Consecutive examples stacked into arrays with one more axis, in front."""

    name = "batch"
    arrays = None

    def __init__(self, of: Stage, size: int, drop_remainder: bool) -> None:
        self.of, self.size, self.drop_remainder = of, size, drop_remainder

    def open(self, epoch: int, at: State | None) -> BatchCursor:
        at = check(at, self.name)
        return BatchCursor(self, self.of.open(epoch, at and at["of"]))


class BatchCursor:
    def __init__(self, stage: Batch, of: Cursor) -> None:
        self._stage, self._of = stage, of

    def take(self, count: int) -> Block:
        size, arrays = self._stage.size, self._stage.of.arrays
        block = full(self._of, size)
        if not len(block) or (len(block) < size and self._stage.drop_remainder):
            return []
        return [stacked(block) if arrays is None else arrays.gather(block)]

    def state(self) -> State:
        return {"stage": Batch.name, "of": self._of.state()}

    def close(self) -> None:
        self._of.close()


class Repeat:
    """Several passes over what comes before, each an epoch of its own."""

    name = "repeat"

    def __init__(self, of: Stage, times: int | None) -> None:
        self.of, self.times, self.arrays = of, times, of.arrays

    def open(self, epoch: int, at: State | None) -> RepeatCursor:
        at = check(at, self.name)
        return RepeatCursor(self, epoch * (self.times or 1), at)


class RepeatCursor:
    def __init__(self, stage: Repeat, first: int, at: State | None) -> None:
        self._stage, self._first = stage, first
        self._pass = 0 if at is None else at["pass"]
        self._of = stage.of.open(first + self._pass, at and at["of"])
        self._empty = at is None
        """Whether this pass has given nothing yet: then there is nothing to repeat."""

    def take(self, count: int) -> Block:
        block = self._of.take(count)
        while not len(block) and not self._empty and self._pass + 1 != self._stage.times:
            self._of.close()
            self._pass, self._empty = self._pass + 1, True
            self._of = self._stage.of.open(self._first + self._pass, None)
            block = self._of.take(count)
        self._empty = self._empty and not len(block)
        return block

    def state(self) -> State:
        return {"stage": Repeat.name, "pass": self._pass, "of": self._of.state()}

    def close(self) -> None:
        self._of.close()


class Shard:
    """Every `shards`-th element, from one on."""

    name = "shard"

    def __init__(self, of: Stage, shards: int, shard: int) -> None:
        self.of, self.shards, self.shard, self.arrays = of, shards, shard, of.arrays

    def open(self, epoch: int, at: State | None) -> ShardCursor:
        at = check(at, self.name)
        return ShardCursor(self, self.of.open(epoch, at and at["of"]), 0 if at is None else at["next"])


class ShardCursor:
    def __init__(self, stage: Shard, of: Cursor, at: int) -> None:
        self._stage, self._of, self._next = stage, of, at
        """`_next`: the place of the next element that is read, within a group of `shards` elements."""

    def take(self, count: int) -> Block:
        shards = self._stage.shards
        skipped = (self._stage.shard - self._next) % shards
        block = full(self._of, skipped + 1 + (count - 1) * shards)
        self._next = (self._next + len(block)) % shards
        return block[skipped::shards]

    def state(self) -> State:
        return {"stage": Shard.name, "next": self._next, "of": self._of.state()}

    def close(self) -> None:
        self._of.close()


def sharded(stage: Stage, shards: int, shard: int) -> Stage:
    """The shard of a stage. A function before it is called for the shard's own elements only."""
    if isinstance(stage, Map):
        return Map(sharded(stage.of, shards, shard), stage.function)
    return Shard(stage, shards, shard)
