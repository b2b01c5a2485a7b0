"""Actors of Ray with the work of a host process, and the way to one of them."""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import threading
from typing import Any

from dps.errors import ConfigError, TaskLost, Unavailable
from dps.launch.hosts.host import BEAT_S, SILENT_S, Host, Message
from dps.launch.hosts.remote import RemoteHost
from dps.transport.clock import now

TAKE_S = 0.5
"""How long a call for reports waits for one."""


class HostActor:
    """The work of a host process, in an actor: orders come by calls, reports are fetched. It ends when nobody calls."""

    def __init__(self) -> None:
        self._reports: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._host = Host(self._reports.put, os.environ)
        self._heard_at, self._over = now(), threading.Event()
        self._reports.put(self._host.hello_message())
        threading.Thread(target=self._guard, name="dps guards tasks", daemon=True).start()

    def place(self) -> tuple[str, str]:
        """The node where it is, and its address."""
        ray = importlib.import_module("ray")
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    def do(self, message: Message) -> None:
        """Take an order."""
        self._heard_at = now()
        self._host.handle_order(message)

    def reports(self, timeout_s: float) -> list[Message]:
        """The reports since the last call. Blocks until there is one."""
        found: list[Message] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._reports.get(timeout=timeout_s))
            while True:
                found.append(self._reports.get_nowait())
        return found

    def end_tasks(self) -> None:
        """End all tasks."""
        self._over.set()
        self._host.end_tasks()

    def _guard(self) -> None:
        while not self._over.wait(BEAT_S):
            self._host.send_beat()
            if now() - self._heard_at > SILENT_S:
                self._host.end_tasks()
                os._exit(1)


class ActorChannel:
    """Carries the messages of a host that is an actor. `actor` and `node`: which actor, and where it is."""

    def __init__(self, ray: Any, actor: Any, node: str, host: RemoteHost) -> None:
        self.actor, self.node = actor, node
        self._ray, self._host = ray, host
        self._over, self._broken = threading.Event(), False
        self.lost_at = 0.0
        """When the actor was lost."""
        self._thread = threading.Thread(target=self._fetch, name=f"messages of {host.name}", daemon=True)
        self._thread.start()

    @property
    def may_come_back(self) -> bool:
        """Whether the actor was lost, and Ray may restart it."""
        return self._broken and not self._over.is_set()

    def _fetch(self) -> None:
        why = "its actor has ended"
        try:
            while not self._over.is_set():
                call = self.actor.reports.options(concurrency_group="reports").remote(TAKE_S)
                for message in self._ray.get(call):
                    self._host.take_report(message)
        except Exception as error:
            why = f"Ray says: {type(error).__name__}"
            self._broken, self.lost_at = True, now()
        self._host.mark_lost(why)

    def send(self, message: Message) -> None:
        """Send an order, in the order of the calls."""
        if not (self._broken or self._over.is_set()):
            with contextlib.suppress(Exception):  # the fetching thread says that it is lost
                self.actor.do.options(concurrency_group="orders").remote(message)

    def close(self) -> None:
        """End its tasks."""
        if not (self._broken or self._over.is_set()):
            self._over.set()
            with contextlib.suppress(Exception):
                self._ray.get(self.actor.end_tasks.options(concurrency_group="orders").remote(), timeout=SILENT_S)
        self.kill()

    def wait(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def kill(self) -> None:
        """End the actor."""
        self._over.set()
        with contextlib.suppress(Exception):
            self._ray.kill(self.actor)


INIT_S, LEAVE_S = 60.0, 20.0
"""How long Ray may take to answer at first, and to be left."""
CONNECT_S = 5.0
LOOK_S = 0.1


def wanted() -> str:
    """The value of RAY_ADDRESS; "" if it is not set."""
    found = os.environ.get("RAY_ADDRESS", "")
    return "" if found in ("auto", "local") else found


def check_address() -> None:
    """Raise ConfigError if RAY_ADDRESS cannot be the address of a Ray."""
    from dps.cluster.address import parse

    if wanted().startswith("ray://"):
        raise ConfigError(f"--on ray: got RAY_ADDRESS={wanted()}, for Ray clients; wanted HOST:PORT of its head")
    try:
        host = parse(wanted() or "localhost:6379").host
    except ConfigError:
        host = ""
    if not host:
        raise ConfigError(f"--on ray: got RAY_ADDRESS={wanted()}, wanted HOST:PORT of Ray's head")


class RayConnection:
    """Ray, on a thread of its own that stays until `leave`: attaching may hang, it would take the signals of the main
    thread, and what Ray starts here dies with the thread that has started it."""

    def __init__(self, cpus: int) -> None:
        """`cpus`: how many processors a Ray that is started here has."""
        self._ray, self._cpus = importlib.import_module("ray"), cpus
        self._failed: BaseException | None = None
        self._there, self._left = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._serve, name="dps is attached to Ray", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self._attach()
        except BaseException as error:
            self._failed = error
        self._there.set()
        if self._failed is None:
            self._left.wait()
            self._ray.shutdown()

    def _attach(self) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "dps"}
        if wanted():
            self._check_reached()
        try:
            self._ray.init(address=os.environ.get("RAY_ADDRESS") or "auto", **quiet)
        except ConnectionError:
            if wanted():
                raise
            self._ray.init(address="local", include_dashboard=False, num_cpus=self._cpus, **quiet)

    def _check_reached(self) -> None:
        """Raise Unavailable if nobody listens at the address: Ray itself would try for a minute."""
        from dps.cluster.address import parse
        from dps.transport.sockets.addresses import greets, resolve

        address = parse(wanted())
        greets(resolve(address.host), address.port, CONNECT_S)

    def wait(self, given_up: threading.Event) -> Any:
        """Ray, once it answers. Raises Unavailable if it does not, and TaskLost when it is given up."""
        deadline, where = now() + INIT_S, wanted() or "this machine"
        while not self._there.wait(LOOK_S):
            if given_up.is_set():
                raise TaskLost(f"Ray at {where} was given up before it answered")
            if now() > deadline:
                raise Unavailable(f"Ray at {where} did not answer within {INIT_S:.0f} s; try: ray status")
        if self._failed is not None:
            why = " ".join(str(self._failed).split())[:200]
            raise Unavailable(f"Ray at {where} cannot be reached: {why}; try: ray status") from self._failed
        return self._ray

    def leave(self) -> None:
        """Leave it, which ends what was started here; as soon as it answers, if it has not yet. Blocks."""
        self._left.set()
        if self._there.is_set():
            self._thread.join(LEAVE_S)
