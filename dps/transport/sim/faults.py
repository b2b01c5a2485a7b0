"""The faults that a simulated world can be told to have: what, whom, when. Times are virtual seconds.

A task is named as its process is: "ps:1", "worker:3", "chief" ("chief:0" is the same). A fault that names nobody is a
ValueError when the world begins to run.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kill:
    """kill -9 at a time; started again after `restart_after` seconds, with None as the process itself was set up."""

    task: str
    at: float
    restart_after: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """SIGSTOP at a time, SIGCONT `seconds` later; what arrives meanwhile waits."""

    task: str
    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Partition:
    """No message passes between `tasks` and all others; with `one_way` only those from `tasks` are lost."""

    tasks: str | tuple[str, ...]
    at: float
    seconds: float
    one_way: bool = False


@dataclass(frozen=True, slots=True)
class Slow:
    """A task computes `factor` times as slowly, and its links have `factor` times the delay."""

    task: str
    at: float
    seconds: float
    factor: float


@dataclass(frozen=True, slots=True)
class SlowDisk:
    """Each write to storage takes `write_s` virtual seconds."""

    at: float
    seconds: float
    write_s: float


@dataclass(frozen=True, slots=True)
class DiskFull:
    """Each write to storage fails with ENOSPC."""

    at: float
    seconds: float


Fault = Kill | Pause | Partition | Slow | SlowDisk | DiskFull
