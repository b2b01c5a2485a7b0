"""The engine for hosts that are reached by ssh: one connection each, through the system's ssh and its configuration."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from dps.errors import ConfigError, DpsError, TaskLost, Unavailable
from dps.launch.hosts.engine import HostsEngine, check_slots
from dps.launch.hosts.host import MODULE
from dps.launch.hosts.pipe import Pipe
from dps.launch.hosts.remote import HostSpec, RemoteHost, parse_host
from dps.launch.supervision.engine import Engine, Notice
from dps.launch.supervision.plan import RunPlan

OPTIONS = (
    "-T", "-x", "-S", "none", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=2",
    "-o", "ServerAliveCountMax=3",
)  # fmt: skip
"""A connection of its own that asks nobody anything, and ends within 8 s when the other side is cut off."""
SSH_FAILED, NOT_THERE = 255, (126, 127)
"""Exit codes of ssh itself, and of a shell that cannot run a command."""
OURS = re.compile("Host key verification failed|Permission denied|Could not resolve|Bad configuration|[Bb]ad owner")
"""Matches the output of ssh if the mistake is on this side."""


def make_engine(settings: Mapping[str, Any]) -> Engine:
    """The engine of a run with these settings."""
    return SSHEngine(settings)


class SSHEngine(HostsEngine):
    """Starts tasks on the hosts of an experiment file. Hosts that were lost are not used again."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._places = [parse_host(text) for text in settings.get("hosts", ())]

    def check(self, plan: RunPlan) -> None:
        """Raise ConfigError without hosts, with too few slots, or without ssh."""
        if not self._places:
            raise ConfigError("--on ssh: got no hosts; wanted hosts: [box1, box2] in the experiment file")
        names = [place.name for place in self._places]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"--on ssh: got {twice[0]} twice; wanted each host once, such as '{twice[0]} slots=2'")
        check_slots(plan, [place.slots for place in self._places], "the hosts")
        if shutil.which("ssh") is None:
            raise ConfigError("--on ssh: this machine has no ssh; install it (Debian: apt install openssh-client)")

    def _connect_hosts(self, plan: RunPlan, notice: Notice) -> list[RemoteHost]:
        hosts = [RemoteHost(place, self._line, notice) for place in self._hosts_left()]
        for host in hosts:
            host.connect(Pipe(command(host.name), host.take_report, partial(_broken, host)))
        return hosts

    def _hosts_left(self) -> list[HostSpec]:
        gone = {host.name for host in self._hosts if host.is_gone}
        return [place for place in self._places if place.name not in gone]

    def go_on(self) -> bool:
        """Whether hosts are left."""
        return bool(self._hosts_left())


def command(host: str) -> list[str]:
    """The command that starts a host process on a host, and is its connection."""
    return ["ssh", *OPTIONS, host, f"exec {shlex.quote(sys.executable)} -m {MODULE}"]


def _broken(host: RemoteHost, code: int, said: list[str]) -> None:
    """Tell a host why its connection has ended."""
    host.mark_lost(*reason(host.name, code, said))


def reason(host: str, code: int, said: list[str]) -> tuple[str, type[DpsError]]:
    """Why a connection has ended, for people, and the class of the error if it never came to be."""
    last = said[-1].rstrip(".") if said else f"exit code {code}"
    if code == SSH_FAILED:
        last = last.removeprefix("ssh: ")
        return f"ssh says: {last}; try: ssh {host} true", ConfigError if OURS.search(last) else Unavailable
    if code in NOT_THERE:
        return f"it has no {sys.executable} ({last}); Python and dps are expected at the same path", ConfigError
    if any("No module named" in text for text in said):
        return f"its {sys.executable} has no dps ({last}); install the same version there", ConfigError
    return f"its connection has ended ({last})", TaskLost
