"""Checks that this process may open as many descriptors (files, sockets, pipes) as its task needs."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from dps.errors import ConfigError, OutOfDescriptors

SPARE = 16
"""Additional descriptors for temporary use: checkpoints, module imports, a program's own files."""
NEEDS = {"chief": (17, 5, 6), "ps": (27, 6, 4), "worker": (39, 8, 0)}
"""Descriptors of each job: for itself, per ps and per worker. Counted in /proc/PID/fd of runs with 1 to 4 of each."""
LAUNCHER = (26, 0, 3)
"""The same for `dps launch`, which asks the chief at the end."""
USUAL = 1024
ANY_NUMBER = 1 << 16
"""The most connections where the system has no limit."""
ROOM = 16
"""More descriptors than making an endpoint takes: its sockets and their monitors, the folder of its datagram socket,
and those for resolving an address."""


def needed(job: str, ps: int, workers: int) -> int:
    """About how many descriptors a task needs in a cluster with this number of ps and workers."""
    own, each_ps, each_worker = NEEDS.get(job, NEEDS["worker"])
    return own + each_ps * max(1, ps) + each_worker * max(1, workers) + SPARE


def needed_to_launch(ps: int, workers: int) -> int:
    """The most descriptors that the launcher or one of its tasks needs."""
    own, _, each = LAUNCHER
    return max(own + each * (ps + workers), *(needed(job, ps, workers) for job in NEEDS))


def check(who: str, need: int) -> None:
    """Raise this process's limit to `need` if necessary. Raises ConfigError if the system does not allow it."""
    found = _limits()
    if found is None:
        return
    limit, highest, infinity = found
    if limit == infinity or limit >= need:
        return
    if highest == infinity or highest >= need:
        import resource

        wanted = max(need, USUAL)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if highest == infinity else min(wanted, highest), highest))
        return
    raise ConfigError(
        f"{who} may open {limit} descriptors (files, sockets, pipes) and needs about {need}; raise the limit first: "
        f"ulimit -n {_round(need)}"
    )


@contextlib.contextmanager
def opening(what: str) -> Iterator[None]:
    """A scope that raises OutOfDescriptors, a ConfigError, instead of the system's or ZeroMQ's error at the limit.

    It first checks that some are free, because at the limit libzmq may abort the whole process (ip_resolver.cpp)."""
    held: list[int] = []
    try:
        try:
            held.append(os.open(os.devnull, os.O_RDONLY))
            while len(held) < ROOM:
                held.append(os.dup(held[0]))
        finally:
            for fd in held:
                os.close(fd)
        yield
    except Exception as error:
        if getattr(error, "errno", None) not in (errno.EMFILE, errno.ENFILE):
            raise
        found = _limits()
        limit = "" if found is None else f" of {found[0]}"
        raise OutOfDescriptors(
            f"{what} needs a descriptor, and this process has used up its limit{limit}; close files that the program "
            f"opened, or raise the limit first: ulimit -n {_round(2 * (found[0] if found else USUAL))}"
        ) from None


def most_connections() -> int:
    """How many connections a listener may have: half of the descriptors, as it needs some of its own."""
    found = _limits()
    return ANY_NUMBER if found is None or found[0] == found[2] else max(ROOM, found[0] // 2)


def _round(need: int) -> int:
    """Round up to a usual limit."""
    return max(USUAL, 1 << (need - 1).bit_length())


def _limits() -> tuple[int, int, int] | None:
    """The current limit, the highest allowed one, and the value for no limit; None if the system has no limits."""
    try:
        import resource
    except ImportError:
        return None
    return *resource.getrlimit(resource.RLIMIT_NOFILE), resource.RLIM_INFINITY
