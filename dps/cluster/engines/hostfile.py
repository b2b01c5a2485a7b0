"""Reads machine files: hosts and how many tasks each takes, as SGE, PBS and the MPI launchers write them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from dps.cluster.engines.ranks import MOST
from dps.errors import ConfigError

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
            lines: Sequence[str] = Path(hosts).read_text(encoding="utf-8").splitlines()
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
