"""Actors of Ray with the work of a host process, and the way to one of them."""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import threading
from typing import Any

from dps.launch.engines.host import BEAT_S, SILENT_S, Host, Message
from dps.launch.engines.remote import RemoteHost
from dps.transport.clock import now

TAKE_S = 0.5
"""How long a call for reports waits for one."""


class HostActor:
    """The work of a host process, in an actor: orders come by calls, reports are fetched. It ends when nobody calls."""

    def __init__(self) -> None:
        self._reports: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._host = Host(self._reports.put, os.environ)
        self._heard_at, self._over = now(), threading.Event()
        self._reports.put(self._host.hello())
        threading.Thread(target=self._guard, name="dps guards tasks", daemon=True).start()

    def place(self) -> tuple[str, str]:
        """The node where it is, and its address."""
        ray = importlib.import_module("ray")
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    def do(self, message: Message) -> None:
        """Take an order."""
        self._heard_at = now()
        self._host.take(message)

    def reports(self, patience_s: float) -> list[Message]:
        """The reports since the last call. Blocks until there is one."""
        found: list[Message] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._reports.get(timeout=patience_s))
            while True:
                found.append(self._reports.get_nowait())
        return found

    def end(self) -> None:
        """End all tasks."""
        self._over.set()
        self._host.end()

    def _guard(self) -> None:
        while not self._over.wait(BEAT_S):
            self._host.beat()
            if now() - self._heard_at > SILENT_S:
                self._host.end()
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
                    self._host.received(message)
        except Exception as error:
            why = f"Ray says: {type(error).__name__}"
            self._broken, self.lost_at = True, now()
        self._host.broken(why)

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
                self._ray.get(self.actor.end.options(concurrency_group="orders").remote(), timeout=SILENT_S)
        self.kill()

    def wait(self, patience_s: float) -> None:
        self._thread.join(patience_s)

    def kill(self) -> None:
        """End the actor."""
        self._over.set()
        with contextlib.suppress(Exception):
            self._ray.kill(self.actor)
