"""The engine for Ray: a placement group with a bundle for each task, and an actor with a host process's work in each.

A running Ray is attached to (RAY_ADDRESS, or one of this machine); else one is started here. A node that Ray drains
gives notice. An actor that is lost is made again on another node, outside of the group, when dps starts its task again.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import queue
import threading
from collections.abc import Mapping
from typing import Any

from dps.config import cores
from dps.errors import ConfigError, MissingExtra, Unavailable
from dps.launch.engines.engine import Notice
from dps.launch.engines.host import BEAT_S, SILENT_S, Host, Message
from dps.launch.engines.hosts import HostsEngine
from dps.launch.engines.remote import Place, RemoteHost
from dps.launch.plan import Plan, Resources
from dps.transport.clock import now

INIT_S, PLACE_S = 60.0, 60.0
"""How long Ray may take to answer at first, and to find places for all tasks."""
TAKE_S = 0.5
LABEL = "dps"
"""Nodes with the label dps=ps get the ps, if there are any."""


class RayEngine(HostsEngine):
    """Starts tasks in actors of Ray."""

    where = "node"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._ray: Any = None
        self._group: Any = None
        self._notify: Notice = lambda names, why: None
        self._draining: set[str] = set()

    def check(self, plan: Plan) -> None:
        """Raise MissingExtra without Ray."""
        if importlib.util.find_spec("ray") is None:
            raise MissingExtra("--on ray: Ray is not installed; pip install 'dps[ray]'")

    def go_on(self) -> bool:
        """Whether Ray is there: it looks for places among the nodes that are left."""
        return True

    # -- reaching --------------------------------------------------------------------------------------------------

    def _reach(self, plan: Plan, notice: Notice) -> list[RemoteHost]:
        self._notify, self._draining = notice, set()
        names = plan.tasks()
        self._ray = attached(len(names))
        bundles = [bundle(plan.job(name).resources) for name in names]
        labels = self._labels(names)
        more = {"bundle_label_selector": labels} if any(labels) else {}
        util = importlib.import_module("ray.util.placement_group")
        self._group = util.placement_group(bundles, strategy="SPREAD", **more)
        if not self._group.wait(PLACE_S):
            raise ConfigError(
                f"Ray finds no places for {len(names)} tasks within {PLACE_S:.0f} s: it has "
                f"{self._ray.cluster_resources()}"
            )
        threading.Thread(target=self._look, args=(self._closed,), name="dps watches nodes", daemon=True).start()
        return [self._host(name, plan.job(name).resources, index) for index, name in enumerate(names)]

    def _labels(self, names: list[str]) -> list[dict[str, str]]:
        """For each task the labels that its node must have."""
        there = any(node.get("Labels", {}).get(LABEL) == "ps" for node in self._ray.nodes() if node["Alive"])
        return [{LABEL: "ps"} if there and name.startswith("ps:") else {} for name in names]

    def _host(self, name: str, wanted: Resources, index: int | None) -> RemoteHost:
        """An actor for a task: in a bundle of the group, or anywhere (None)."""
        options: dict[str, Any] = {
            "num_cpus": wanted.cpus or 1, "num_gpus": wanted.gpus or 0, "max_restarts": 0,
        }  # fmt: skip
        if wanted.memory:
            options["memory"] = wanted.memory
        if index is not None:
            strategies = importlib.import_module("ray.util.scheduling_strategies")
            options["scheduling_strategy"] = strategies.PlacementGroupSchedulingStrategy(self._group, index)
        actor = self._ray.remote(concurrency_groups={"orders": 1, "reports": 1})(HostActor).options(**options).remote()
        try:
            node, address = self._ray.get(actor.place.remote(), timeout=PLACE_S)
        except Exception as error:
            raise Unavailable(f"Ray starts no actor for {name}: {type(error).__name__}: {error}") from None
        host = RemoteHost(Place(address, 1, (name.partition(":")[0],), address), self._line, self._notify)
        host.connect(ActorChannel(self._ray, actor, node, host))
        return host

    def _refill(self, name: str, wanted: Resources) -> None:
        """Another actor, on a node that is left."""
        self._hosts.append(host := self._host(name, wanted, None))
        host.greet()
        super()._refill(name, wanted)

    def _look(self, closed: threading.Event) -> None:
        """Turn nodes that are drained into notices."""
        state = importlib.import_module("ray._private.state").state
        while not closed.wait(BEAT_S / 2):
            with contextlib.suppress(Exception):  # Ray itself is away: then its actors are lost, too
                for node in set(state.get_draining_nodes()) - self._draining:
                    self._draining.add(node)
                    for host in [host for host in self._hosts if getattr(host.channel, "node", "") == node]:
                        host.go("Ray drains the node")

    def close(self) -> None:
        """End all actors, give the places back, and leave Ray."""
        super().close()
        if self._ray is not None:
            if self._group is not None:
                importlib.import_module("ray.util.placement_group").remove_placement_group(self._group)
            self._ray.shutdown()
            self._ray = self._group = None


def attached(tasks: int) -> Any:
    """Ray, attached to a cluster that runs, or to one that is started here, for so many tasks. Raises Unavailable if it
    does not answer."""
    ray = importlib.import_module("ray")
    failed: list[BaseException] = []

    def attach() -> None:  # on a thread: it may hang, and it would take the signals of the main thread
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "dps"}
        try:
            try:
                ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), **quiet)
            except ConnectionError:
                if "RAY_ADDRESS" in os.environ:
                    raise
                ray.init(address="local", include_dashboard=False, num_cpus=max(tasks, cores()), **quiet)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=attach, name="dps attaches to Ray", daemon=True)
    thread.start()
    thread.join(INIT_S)
    where = os.environ.get("RAY_ADDRESS", "this machine")
    if thread.is_alive():
        raise Unavailable(f"Ray at {where} did not answer within {INIT_S:.0f} s; try: ray status")
    if failed:
        why = " ".join(str(failed[0]).split())[:200]
        raise Unavailable(f"Ray at {where} cannot be reached: {why}; try: ray status") from failed[0]
    return ray


def bundle(wanted: Resources) -> dict[str, float]:
    """What a task gets, as Ray names it."""
    found = {"CPU": wanted.cpus or 1, "GPU": wanted.gpus or 0, "memory": wanted.memory or 0}
    return {name: float(amount) for name, amount in found.items() if amount}


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
    """Carries the messages of a host that is an actor."""

    def __init__(self, ray: Any, actor: Any, node: str, host: RemoteHost) -> None:
        self.node = node
        self._ray, self._actor, self._host = ray, actor, host
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._fetch, name=f"messages of {host.name}", daemon=True)
        self._thread.start()

    def _fetch(self) -> None:
        why = "its actor has ended"
        try:
            while not self._over.is_set():
                call = self._actor.reports.options(concurrency_group="reports").remote(TAKE_S)
                for message in self._ray.get(call):
                    self._host.received(message)
        except Exception as error:
            why = f"Ray says: {type(error).__name__}"
        self._host.broken(why)

    def send(self, message: Message) -> None:
        """Send an order, in the order of the calls."""
        if not self._over.is_set():
            with contextlib.suppress(Exception):  # the fetching thread says that it is lost
                self._actor.do.options(concurrency_group="orders").remote(message)

    def close(self) -> None:
        """End its tasks."""
        if not self._over.is_set():
            self._over.set()
            with contextlib.suppress(Exception):
                self._ray.get(self._actor.end.options(concurrency_group="orders").remote(), timeout=SILENT_S)
            self.kill()

    def wait(self, patience_s: float) -> None:
        self._thread.join(patience_s)

    def kill(self) -> None:
        """End the actor."""
        self._over.set()
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)
