"""The part that the engines of other machines share: where tasks go, their keys, and what happens when a host goes.

An engine of its own says which hosts there are, and how they are connected (`_reach`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dps import __version__
from dps.errors import ConfigError, DpsError, TaskLost
from dps.launch.hosts import project
from dps.launch.hosts.host import BEAT_S, SILENT_S
from dps.launch.hosts.remote import RemoteHost
from dps.launch.supervision.engine import Line, Notice, Order, Started
from dps.launch.supervision.plan import Resources, RunPlan
from dps.transport.clock import now
from dps.transport.private_folders import private_folder, remove

END_S = 3.0
"""How long a host process may take to end when the run is over."""


class HostsEngine:
    """Starts tasks on hosts. Each host has one connection, on which a host process (`host.py`) gets its orders.

    The chief is on the first host. Other tasks go to the host that has the fewest, in the order of the hosts."""

    elsewhere = True
    where = "host"
    """The word for a machine in messages."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._hosts: list[RemoteHost] = []
        self._placed: dict[str, RemoteHost] = {}
        self._shares: dict[str, dict[str, str]] = {}
        """The variables that tell each task what it has."""
        self._plan: RunPlan | None = None
        self._line: Line = lambda name, text: None
        self._closed = threading.Event()

    # -- what an engine of its own does --------------------------------------------------------------------------

    def check(self, plan: RunPlan) -> None:
        """Raise ConfigError if the hosts that are named cannot take the tasks."""
        raise NotImplementedError

    def _connect_hosts(self, plan: RunPlan, notice: Notice) -> list[RemoteHost]:
        """Begin to connect to the hosts. Does not wait."""
        raise NotImplementedError

    def go_on(self) -> bool:
        """Whether there would be hosts for another `open`."""
        raise NotImplementedError

    # -- opening ---------------------------------------------------------------------------------------------------

    def open(self, plan: RunPlan, line: Line, notice: Notice) -> str:
        """Connect to all hosts, compare their versions, and deal out the tasks. Blocks."""
        self._plan, self._line = plan, line
        self._closed = threading.Event()
        self._placed, self._shares = {}, {}
        self._hosts = self._connect_hosts(plan, notice)
        for host in self._hosts:
            host.wait_hello()
            if host.version != __version__:
                raise ConfigError(
                    f"{host.name} has dps {host.version}, and this machine {__version__}; install the same version"
                )
        threading.Thread(target=self._watch_hosts, args=(self._closed,), name="dps watches hosts", daemon=True).start()
        for name in plan.tasks():
            self._place_task(name, plan.job(name).resources)
        if self._settings.get("sync"):
            self._copy_project(plan)
        return plan.env.get("DPS_BIND") or f"{self._chief_host()}:0"

    def _chief_host(self) -> str:
        """The address of the chief's host. Raises ConfigError if the other hosts cannot reach it."""
        own = self._placed["chief"].address
        others = [host for host in self._hosts if not _is_loopback(host.address)]
        if _is_loopback(own) and others:
            raise ConfigError(
                f"{self._placed['chief'].name} is reached at {own}, where {others[0].name} cannot reach it; name it as "
                "the other hosts do"
            )
        return f"[{own}]" if ":" in own else own

    def _copy_project(self, plan: RunPlan) -> None:
        """Copy the project's folder to every host."""
        folder = private_folder()
        archive = os.path.join(folder, "project.tar.gz")
        try:
            project.pack(plan.folder or os.getcwd(), archive, plan.env.get("OUTPUT_DIR", ""))
            for host in self._hosts:
                host.copy_project(project.pieces(archive))
        finally:
            remove(folder)

    def _watch_hosts(self, closed: threading.Event) -> None:
        """Cut the connections of hosts that are silent."""
        while not closed.wait(BEAT_S / 4):
            for host in self._hosts:
                if host.is_usable and now() - host.heard_at > SILENT_S:
                    host.cut_connection(f"it was silent for {SILENT_S:.0f} s")

    # -- where tasks go --------------------------------------------------------------------------------------------

    def _place_task(self, name: str, wanted: Resources) -> RemoteHost:
        """Choose a host for a task. Raises ConfigError or TaskLost if none can take it."""
        role = name.partition(":")[0]
        again = name in self._shares
        free = [host for host in self._hosts if host.is_usable and host.takes_role(role) and (again or host.has_room)]
        why: DpsError = TaskLost(f"no {self.where} is left for {name}")
        for host in sorted(free, key=lambda host: (not host.has_room, host.load)) if name != "chief" else free[:1]:
            try:
                self._shares[name] = host.assign_share(name, wanted)
            except ConfigError as error:
                why = error
                continue
            before = self._placed.get(name)
            if before is not None:
                before.take_share_back(name)
            self._placed[name] = host
            return host
        raise why

    def _place_again(self, name: str, wanted: Resources) -> None:
        """Find another place for a task whose host is lost or about to go."""
        self._place_task(name, wanted)

    def start(self, order: Order, line: Line, ended: Callable[[Started], None]) -> Started:
        """Start a task where it has its place; in another one if its host is lost or about to go."""
        assert self._plan is not None
        name, role = order.name, order.name.partition(":")[0]
        if name not in self._placed:
            self._place_task(name, self._plan.job(name).resources)
        elif not self._placed[name].is_usable:
            if name == "chief":  # it is known by its address
                raise TaskLost(f"the chief's {self.where} {self._placed[name].name} is lost")
            self._place_again(name, self._plan.job(name).resources)
            self._line("dps", f"{name} is started on {self._placed[name].name}")
        host, env = self._placed[name], self._shares[name] | dict(order.env)
        if keys := env.pop("DPS_KEYS", ""):
            host.give_keys(keys, role)
        if name != "chief":  # each listens where it reaches the chief
            env = {variable: value for variable, value in env.items() if variable not in ("DPS_BIND", "DPS_ADVERTISE")}
        return host.start(order, env, line, ended)

    # -- the end -------------------------------------------------------------------------------------------------

    def used(self) -> dict[str, dict[str, float]]:
        """The use of each task, as its host has reported it last."""
        return {name: used for host in self._hosts for name, used in list(host.used.items())}

    def close(self) -> None:
        """End all connections, and with them what still runs."""
        self._closed.set()
        for host in self._hosts:
            host.close()
        for host in self._hosts:
            host.wait(END_S)


def _is_loopback(address: str) -> bool:
    from dps.transport.sockets.addresses import is_loopback, is_numeric

    return is_numeric(address) and is_loopback(address)


def check_slots(plan: RunPlan, slots: Sequence[int | None], where: str) -> None:
    """Raise ConfigError if all slots are fewer than the tasks. None: as many as wanted. The chief needs no slot."""
    tasks = len(plan.tasks()) - 1
    if None not in slots and sum(slot or 0 for slot in slots) < tasks:
        total = sum(slot or 0 for slot in slots)
        raise ConfigError(
            f"{where} have {total} slots for {tasks} tasks beside the chief; wanted as many slots as tasks"
        )
