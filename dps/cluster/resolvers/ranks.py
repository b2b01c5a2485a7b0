"""Deals the numbered processes of an engine (its ranks) out to jobs, and reads an engine's variables."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence

from dps.cluster.spec import ClusterSpec, Task, job_name
from dps.errors import ConfigError

PORT = 8888
"""The port of the first task on each host."""
MOST = 1_000_000
"""More ranks than this are taken for an error, and no lists are made."""
Jobs = Mapping[str, int] | str
"""The number of tasks of each job, or the one job of all tasks."""
MOST_NBYTES = 64 << 20
"""A file about hosts with more bytes than this is taken for an error, and not read to its end: /dev/zero has none."""
_DIGITS = re.compile(r"[0-9]{1,12}")


def deal(
    engine: str, hosts: Sequence[str], rank: int | None, jobs: Jobs | None, port_base: int
) -> tuple[ClusterSpec, Task | None]:
    """The cluster in which jobs take consecutive ranks, sorted by name, and the task of one rank.

    `hosts`: the host of each rank. A task's port is `port_base` plus the number of lower ranks on its host. `jobs`
    None: one ps and workers for the rest, or one worker if there is one rank only. The task is None for a rank without
    a job, or if `rank` is None. Raises ConfigError if the jobs need more ranks than there are.
    """
    wanted = _wanted(engine, jobs, len(hosts))
    if rank is not None and rank >= len(hosts):
        raise ConfigError(f"{engine}: got rank {rank} of {len(hosts)}, wanted a rank below the number of tasks")
    taken: dict[str, int] = {}
    addresses = []
    for host in hosts:
        position = taken[host] = taken.get(host, -1) + 1
        addresses.append(f"{f'[{host}]' if ':' in host else host}:{port_base + position}")
    cluster: dict[str, list[str]] = {}
    own: Task | None = None
    start = 0
    for name, count in sorted(wanted.items()):
        cluster[name] = addresses[start : start + count]
        if rank is not None and start <= rank < start + count:
            own = Task(name, rank - start)
        start += count
    return ClusterSpec(cluster), own


def _wanted(engine: str, jobs: Jobs | None, total: int) -> dict[str, int]:
    if isinstance(jobs, str):
        return {job_name(jobs): total}
    if jobs is None:
        return {"ps": 1, "worker": total - 1} if total > 1 else {"worker": 1}
    wanted = {job_name(name): count for name, count in jobs.items()}
    if min(wanted.values(), default=0) < 0 or sum(wanted.values()) > total:
        raise ConfigError(
            f"{engine}: got jobs {wanted}, wanted no more than the {total} tasks of this run; start more tasks, or "
            "give other jobs"
        )
    return wanted


def parse_jobs(text: str) -> dict[str, int]:
    """The number of tasks of each job, from "ps=1,worker=3". Raises ConfigError for anything else."""
    found: dict[str, int] = {}
    for piece in text.split(","):
        name, mark, count = (part.strip() for part in piece.partition("="))
        if not name or not mark or not _DIGITS.fullmatch(count) or name in found:
            raise ConfigError(f"jobs: got {text!r}, wanted names with numbers of tasks, such as 'ps=1,worker=3'")
        found[name] = int(count)
    return found


class ResolverVariables:
    """The environment as one engine's resolver reads it: errors name the engine and the variable."""

    def __init__(self, engine: str, environ: Mapping[str, str], advice: str) -> None:
        """`advice`: what to try if a variable is missing, such as "start the program with srun"."""
        self.engine, self._environ, self._advice = engine, environ, advice

    def text(self, name: str) -> str:
        """A variable's value. Raises ConfigError if it is missing or empty."""
        found = self._environ.get(name, "").strip()
        if not found:
            got = f"an empty {name}" if name in self._environ else f"no {name}"
            raise ConfigError(f"{self.engine}: got {got}, wanted the variable that the engine sets; {self._advice}")
        return found

    def number(self, name: str) -> int:
        """A variable's value, a whole number from 0. Raises ConfigError for anything else."""
        found = self.text(name)
        if not _DIGITS.fullmatch(found):
            raise self.error(name, "a whole number from 0")
        return int(found)

    def count(self, name: str) -> int:
        """A number of tasks, at least 1. Raises ConfigError for anything else."""
        found = self.number(name)
        if not 1 <= found <= MOST:
            raise self.error(name, f"1 to {MOST:,}")
        return found

    def rank(self, name: str, total: int, of: str) -> int:
        """A rank below `total`, which the variable `of` says. Raises ConfigError for anything else."""
        found = self.number(name)
        if found >= total:
            raise self.error(name, f"less than {of}={total}")
        return found

    def error(self, name: str, wanted: str, advice: str = "") -> ConfigError:
        """The error for a variable's value."""
        return ConfigError(
            f"{self.engine}: got {name}={self._environ.get(name, '')[:80]!r}, wanted {wanted}; {advice or self._advice}"
        )


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file about hosts. Raises OSError, also for one of more than `MOST_NBYTES`, and
    UnicodeDecodeError."""
    with open(path, "rb") as file:
        found = file.read(MOST_NBYTES + 1)
    if len(found) > MOST_NBYTES:
        raise OSError(errno.EFBIG, f"more than {MOST_NBYTES:,} bytes", os.fspath(path))
    return found.decode("utf-8")


Hosts = str | os.PathLike[str] | Sequence[str]
"""The path of a machine file, or its lines."""
_LINE = re.compile(
    r"(?P<host>[A-Za-z0-9_.-]+)"
    r"(?: (?P<sge>[0-9]{1,9}) \S+(?: \S.*)?|:(?P<mpich>[0-9]{1,9})|(?P<more>(?: [a-z_-]+ ?= ?\S+)*))"
)
_SLOTS = re.compile(r" slots ?= ?([0-9]{1,9})(?: |$)")
_FORMS = "lines such as 'n1 4 all.q@n1 UNDEFINED' (SGE), 'n1 slots=4' (Open MPI), 'n1:4' (MPICH) or 'n1'"


def read_hosts(engine: str, hosts: Hosts) -> list[tuple[str, int]]:
    """Each host and its number of slots, in the order given. A host on several lines has the slots of all.

    Reads the file if a path is given. Raises ConfigError, which names the engine, for a file that cannot be read, a
    line that is none of the known forms, or no host at all.
    """
    if isinstance(hosts, str | os.PathLike):
        source = f"{engine}: machine file {os.fspath(hosts)!r}"
        try:
            lines: Sequence[str] = read_text(hosts).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source}: got {error}, wanted a file with {_FORMS}") from error
    else:
        source, lines = f"{engine}: hosts", hosts
    found: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        text = " ".join(line.partition("#")[0].split())
        if text:
            host, slots = _parsed(f"{source}: line {number}", text)
            found[host] = found.get(host, 0) + slots
    if not 1 <= sum(found.values()) <= MOST:
        raise ConfigError(f"{source}: got {sum(found.values())} slots, wanted 1 to {MOST:,}, in {_FORMS}")
    return [(host, slots) for host, slots in found.items() if slots]


def _parsed(source: str, text: str) -> tuple[str, int]:
    match = _LINE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{source}: got {text[:80]!r}, wanted {_FORMS}")
    slots = match["sge"] or match["mpich"]
    if slots is None and match["more"]:
        named = _SLOTS.search(match["more"])
        slots = named[1] if named else None
    return match["host"], 1 if slots is None else int(slots)
