"""The faults of a simulated world: what fails, which task, and when. Times are virtual seconds.

A fault names a task by its process: "ps:1", "worker:3", "chief" ("chief:0" is the same). An unknown name raises
ValueError when the world begins to run.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kill:
    """A process is killed, as by `kill -9`.

    Args:
        task: The task's name.
        at: When, in virtual seconds.
        restart_after: Seconds until it is started again. None: the process's own setting; `dps.simulate` restarts a ps
            or chief once, and a worker never.

    Example:
        ```pycon
        >>> dps.sim.Kill("ps:1", at=3.0)
        Kill(task='ps:1', at=3.0, restart_after=None)
        ```
    """

    task: str
    at: float
    restart_after: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """A process is stopped, as by SIGSTOP, and continues later. Messages for it wait.

    Args:
        task: The task's name.
        at: When, in virtual seconds.
        seconds: How long.

    Example:
        ```pycon
        >>> dps.sim.Pause("worker:0", at=1.0, seconds=5.0)
        Pause(task='worker:0', at=1.0, seconds=5.0)
        ```
    """

    task: str
    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Partition:
    """No message passes between some tasks and all others.

    Args:
        tasks: The name of a task, or several.
        at: When, in virtual seconds.
        seconds: How long.
        one_way: Whether only messages from `tasks` are lost.

    Example:
        ```pycon
        >>> dps.sim.Partition(("worker:0", "worker:1"), at=1.0, seconds=5.0).one_way
        False
        ```
    """

    tasks: str | tuple[str, ...]
    at: float
    seconds: float
    one_way: bool = False


@dataclass(frozen=True, slots=True)
class Slow:
    """A task computes more slowly, and its links have longer delays.

    Args:
        task: The task's name.
        at: When, in virtual seconds.
        seconds: How long.
        factor: How many times as slowly.

    Example:
        ```pycon
        >>> dps.sim.Slow("worker:2", at=1.0, seconds=5.0, factor=10.0).factor
        10.0
        ```
    """

    task: str
    at: float
    seconds: float
    factor: float


@dataclass(frozen=True, slots=True)
class SlowDisk:
    """Writes to storage take time.

    Args:
        at: When, in virtual seconds.
        seconds: How long.
        write_s: Virtual seconds of each write.

    Example:
        ```pycon
        >>> dps.sim.SlowDisk(at=1.0, seconds=5.0, write_s=0.5).write_s
        0.5
        ```
    """

    at: float
    seconds: float
    write_s: float


@dataclass(frozen=True, slots=True)
class DiskFull:
    """Writes to storage fail with ENOSPC.

    Args:
        at: When, in virtual seconds.
        seconds: How long.

    Example:
        ```pycon
        >>> dps.sim.DiskFull(at=1.0, seconds=5.0)
        DiskFull(at=1.0, seconds=5.0)
        ```
    """

    at: float
    seconds: float


Fault = Kill | Pause | Partition | Slow | SlowDisk | DiskFull
