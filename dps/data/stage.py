"""The interfaces of a dataset's stages, and of the cursors that read through them.

A stage is a part of a pipeline, such as a shuffle. It is plain settings and may be opened any number of times. A cursor
is one reading of a stage: it gives the next elements, and says where it is as plain data.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from dps.errors import ConfigError
from dps.training.definition import whole_number

if TYPE_CHECKING:
    from dps.data.arrays import Arrays

State = dict[str, Any]
"""The state of a cursor: numbers, text, lists and dicts. `stage` names the stage, `of` is the state of the stage
before."""

Block = Any
"""Consecutive elements: a list of them, or where the stage has `arrays`, their row numbers, as a list or an array."""


class OneReader:
    """A block in which one thread may be at a time. ConfigError for another one, which would take elements twice or
    break the sockets."""

    def __init__(self, what: str) -> None:
        """`what`: whose block it is, for the message."""
        self._what, self._lock = what, threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise ConfigError(f"{self._what}: another thread uses this iterator; make one for each thread")

    def __exit__(self, *about: object) -> None:
        self._lock.release()


class Cursor(Protocol):
    """One reading of a stage. Belongs to one thread at a time."""

    def read_block(self, count: int) -> Block:
        """The next elements: from 1 to `count` of them, or none at the end. May block while they are read."""

    def state(self) -> State:
        """The state of the cursor. A cursor that is opened with it gives the elements that this one gives next."""

    def close(self) -> None:
        """Nothing more is read; a second call does nothing."""


class Stage(Protocol):
    """A part of a pipeline."""

    @property
    def name(self) -> str:
        """The name of the stage in states."""

    @property
    def numbers(self) -> Mapping[str, int | None]:
        """The whole numbers from 0 in a state, and how large each can be; None: any."""

    @property
    def arrays(self) -> Arrays | None:
        """The arrays of which cursors give row numbers; None where they give the elements themselves."""

    def open_cursor(self, epoch: int, at: State | None) -> Cursor:
        """A cursor at the beginning of an epoch, or where the state of an earlier one says."""


def check_position(position: Any) -> None:
    """ConfigError unless this may be the position of an iterator."""
    if not isinstance(position, dict) or position.keys() != {"epoch", "at"} or position["at"] is None:
        raise ConfigError(f"position: got {position!r:.60}, wanted the position of an iterator")
    whole_number("position: got epoch ", position["epoch"], 0)


def check_stage(at: State | None, stage: Any) -> State | None:
    """The state, if it is of this kind of stage, and has the numbers that it has. Raises ConfigError for one of another
    pipeline."""
    if at is None:
        return None
    found = at.get("stage") if isinstance(at, dict) else at
    if found != stage.name:
        raise ConfigError(
            f"position: got {found!r:.60} where this dataset has {stage.name!r}; is it of another dataset?"
        )
    for number, most in stage.numbers.items():
        got = f"position: {stage.name}: got {number}="
        if whole_number(got, at.get(number), 0) > (at[number] if most is None else most):
            raise ConfigError(f"{got}{at[number]}, wanted 0 to {most}; is it of another dataset?")
    return at


def state_before(at: State | None) -> State | None:
    """The part of a stage's state that is of the stage before."""
    return None if at is None else at.get("of") or {"stage": "nothing"}


class DerivedCursor:
    """A cursor that reads through that of the stage before."""

    def __init__(self, stage: Any, of: Cursor, at: State | None) -> None:
        """`at`: the state with which it is opened."""
        self._stage, self._of = stage, of

    def state(self) -> State:
        return {"stage": self._stage.name, "of": self._of.state()}

    def close(self) -> None:
        self._of.close()


class DerivedStage:
    """A stage that reads another one, through cursors of the class `cursor`."""

    name: ClassVar[str]
    cursor: ClassVar[type[Any]]
    numbers: Mapping[str, int | None] = {}
    of: Stage

    def open_cursor(self, epoch: int, at: State | None) -> Cursor:
        at = check_stage(at, self)
        made: Cursor = self.cursor(self, self.of.open_cursor(epoch, state_before(at)), at)
        return made


class FullBlocks:
    """A cursor whose blocks have the wanted size. Elements that were read before an error begin the next block, and its
    state is the one before them: who goes on from there meets the error again."""

    def __init__(self, of: Cursor) -> None:
        self._of = of
        self._held: Block = []
        """The elements that were read before an error."""
        self._before: State = {}
        """The state of `of` before the elements held."""

    def read_block(self, count: int) -> Block:
        """The next `count` elements; fewer only at the end. After an error the next call has the same `count`."""
        if not len(self._held):
            if count == 1:
                return self._of.read_block(1)
            self._before = self._of.state()
        while len(self._held) < count:
            more = self._of.read_block(count - len(self._held))
            if not len(more):
                break
            self._held = join_blocks(self._held, more) if len(self._held) else more
        found, self._held = self._held, []
        return found

    def state(self) -> State:
        return self._before if len(self._held) else self._of.state()

    def close(self) -> None:
        self._of.close()


def join_blocks(first: Block, second: Block) -> Block:
    """Two blocks as one. A list is made longer: one element at a time, copies would take the square of the size."""
    if isinstance(first, np.ndarray):
        return np.concatenate([first, second])
    first.extend(second)
    return first
