"""What a worker of a chaos run writes down: a line for each push before it is sent, and one for its result.

This is the count that the values on the ps are compared with, so nothing of dps writes or reads it. Each line is one
`write` to a file opened for appending: what was written stays when the process is killed.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

Values = dict[str, tuple[float, float]]
"""By variable: the least and the greatest element of a worker's own part. Half an update makes them differ."""


@dataclass(frozen=True)
class Entry:
    """`at_s` is on CLOCK_MONOTONIC, which all processes of a machine share."""

    at_s: float


@dataclass(frozen=True)
class Opened(Entry):
    """The session is open: `step` is what its first run epoch began with."""

    epoch: int
    step: int


@dataclass(frozen=True)
class Sent(Entry):
    """A push is about to be sent."""

    number: int
    epoch: int
    incarnation: int


@dataclass(frozen=True)
class Settled(Entry):
    """A push has its result."""

    number: int
    accepted: bool
    step: int
    epoch: int
    incarnation: int


@dataclass(frozen=True)
class RolledBack(Entry):
    """The session was told that the run went back to `step` under a new `epoch`."""

    epoch: int
    step: int
    lost: int


@dataclass(frozen=True)
class Saw(Entry):
    """What a pull or a step returned."""

    epoch: int
    values: Values


@dataclass(frozen=True)
class NothingNew(Entry):
    """`pull(if_newer_than=...)` said that nothing changed, although a push was accepted since the pull before."""

    epoch: int


@dataclass(frozen=True)
class Led(Entry):
    """`session.is_chief` was asked at `asked_s` and answered at `at_s`."""

    asked_s: float
    leads: bool
    incarnation: int


@dataclass(frozen=True)
class Ended(Entry):
    """The program is over; `error` is "" for a good end."""

    error: str


E = TypeVar("E", bound=Entry)
KINDS: dict[str, type[Entry]] = {
    kind.__name__: kind for kind in (Opened, Sent, Settled, RolledBack, Saw, NothingNew, Led, Ended)
}


class Ledger:
    """A worker's file, opened for appending."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, entry: Entry) -> None:
        """Append one line. Blocks as long as the operating system takes."""
        line = json.dumps([type(entry).__name__, asdict(entry)], separators=(",", ":")) + "\n"
        os.write(self._file, line.encode())


class Tail:
    """Reads a ledger while it grows. `entries`: all that were read so far."""

    def __init__(self, path: Path) -> None:
        self.entries: list[Entry] = []
        self._path, self._rest, self._at = path, b"", 0

    def look(self) -> list[Entry]:
        """Read what is new; all entries. A last line that is incomplete is left for the next time."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
            self._at += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self.entries += [_entry(*json.loads(line)) for line in lines]
        return self.entries


def read(path: Path) -> list[Entry]:
    """All entries of a ledger. An empty list where there is no file."""
    return Tail(path).look()


def _entry(kind: str, fields: dict[str, Any]) -> Entry:
    if "values" in fields:
        fields["values"] = {name: (low, high) for name, (low, high) in fields["values"].items()}
    return KINDS[kind](**fields)


def of(kind: type[E], entries: list[Entry]) -> list[E]:
    """The entries of one kind."""
    return [entry for entry in entries if isinstance(entry, kind)]
