"""The engine for Ray: a placement group with a bundle for each task, and an actor with a host process's work in each.

A running Ray is attached to (RAY_ADDRESS, or one of this machine); else one is started here. A node that Ray drains
gives notice. An actor that is lost is restarted by Ray in its bundle, as often as its role's `restarts` say, but once
at least; a task for which Ray has no actor any more, or whose node is drained, gets another one outside of the group.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from dps.errors import ConfigError, MissingExtra, TaskLost, Unavailable
from dps.launch.hosts.engine import HostsEngine
from dps.launch.hosts.host import BEAT_S
from dps.launch.hosts.ray_actors import ActorChannel, HostActor, RayConnection, check_address
from dps.launch.hosts.remote import HostSpec, HostState, RemoteHost
from dps.launch.supervision.engine import Engine, Line, Notice
from dps.launch.supervision.plan import Resources, RunPlan
from dps.process.config import cores
from dps.transport.clock import now

PLACE_S, SAY_S, LOOK_S = 60.0, 3.0, 0.5
"""How long Ray may take to find the places, and after which time a line says what is waited for."""
LABEL = "dps"
"""Nodes with the label dps=ps get the ps, if there are any."""


def bundle(wanted: Resources) -> dict[str, float]:
    """The resources of a task, by Ray's names."""
    found = {"CPU": wanted.cpus or 1, "GPU": wanted.gpus or 0, "memory": wanted.memory or 0}
    return {name: float(amount) for name, amount in found.items() if amount}


def nodes(ray: Any) -> list[Mapping[str, Any]]:
    """The nodes that live and are not drained."""
    draining = importlib.import_module("ray._private.state").state.get_draining_nodes()
    return [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in draining]


def label(ray: Any, name: str) -> dict[str, str]:
    """The labels that the node of a task must have."""
    there = any(node.get("Labels", {}).get(LABEL) == "ps" for node in nodes(ray))
    return {LABEL: "ps"} if there and name.startswith("ps:") else {}


def shortage(bundles: Sequence[Mapping[str, float]], there: Sequence[Mapping[str, float]]) -> str:
    """The resource of which all bundles together, or one of them, want more than the nodes have, as text; "" if they
    have enough."""
    for kind in ("CPU", "GPU", "memory"):
        wants, has = ([each.get(kind, 0.0) for each in some] for some in (bundles, there))
        if sum(wants) > sum(has):
            return f"the tasks want {kind}: {sum(wants):g}; its nodes have {sum(has):g}"
        if max(wants) > max(has, default=0.0):
            return f"a task wants {kind}: {max(wants):g}; no node has more than {max(has, default=0.0):g}"
    return ""


class PlacementGroup:
    """The placement group of a plan."""

    def __init__(self, ray: Any, plan: RunPlan) -> None:
        """Ask for it. Raises ConfigError if Ray has too little for it, even with nothing else to do."""
        bundles = [bundle(plan.job(name).resources) for name in plan.tasks()]
        if problem := shortage(bundles, [node["Resources"] for node in nodes(ray)]):
            raise ConfigError(f"Ray has too little: {problem}; ray status shows its nodes")
        labels = [label(ray, name) for name in plan.tasks()]
        more = {"bundle_label_selector": labels} if any(labels) else {}
        self._util = importlib.import_module("ray.util.placement_group")
        self._group = self._util.placement_group(bundles, strategy="SPREAD", **more)

    def wait(self, line: Line, given_up: threading.Event) -> None:
        """Wait until all bundles have their places. Raises ConfigError if that takes too long, and TaskLost when it is
        given up."""
        begun, told = now(), False
        while not self._group.wait(LOOK_S):
            if given_up.is_set():
                raise TaskLost("the places in Ray were given up before they were there")
            if now() - begun > PLACE_S:
                raise ConfigError(f"Ray finds no places within {PLACE_S:.0f} s: others use it; see ray status")
            if not told and now() - begun > SAY_S:
                told = True
                line("dps", "waits for places in Ray, which others use; Ctrl-C and dps kill give up")

    def strategy(self, index: int) -> Any:
        """The option that places an actor in a bundle."""
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        return strategies.PlacementGroupSchedulingStrategy(self._group, index)

    def close(self) -> None:
        """Give the places back."""
        self._util.remove_placement_group(self._group)


RESTART_S, LEAST_S = 10.0, 0.5
"""How long Ray may take to restart an actor in its bundle, from its loss on: those of one node do not add up."""
AGAIN_S = 0.2
"""The pause between two calls of an actor that Ray restarts."""


def make_engine(settings: Mapping[str, Any]) -> Engine:
    """The engine of a run with these settings."""
    return RayEngine(settings)


class RayEngine(HostsEngine):
    """Starts tasks in actors of Ray."""

    where = "node"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._attaching: RayConnection | None = None
        self._ray: Any = None
        self._group: PlacementGroup | None = None
        self._notify: Notice = lambda names, why: None
        self._draining: set[str] = set()
        self._given_up = threading.Event()
        self._opening = False

    def check(self, plan: RunPlan) -> None:
        """Raise MissingExtra without Ray, and ConfigError for a wrong RAY_ADDRESS."""
        if importlib.util.find_spec("ray") is None:
            raise MissingExtra("--on ray: Ray is not installed; pip install 'dps[ray]'")
        check_address()

    def go_on(self) -> bool:
        """Whether Ray is there: it looks for places among the nodes that are left."""
        return True

    # -- reaching --------------------------------------------------------------------------------------------------

    def _connect_hosts(self, plan: RunPlan, notice: Notice) -> list[RemoteHost]:
        self._notify, self._draining, names = notice, set(), plan.tasks()
        self._opening = True
        try:
            cpus = sum(bundle(plan.job(name).resources)["CPU"] for name in names)
            self._attaching = RayConnection(max(int(cpus), cores()))
            self._ray = self._attaching.wait(self._given_up)
            self._group = PlacementGroup(self._ray, plan)
            self._group.wait(self._line, self._given_up)
        finally:
            self._opening = False
        threading.Thread(target=self._watch_nodes, args=(self._closed,), name="dps watches nodes", daemon=True).start()
        made = [self._make_actor(name, index) for index, name in enumerate(names)]
        return [self._make_host(name, actor, PLACE_S) for name, actor in zip(names, made, strict=True)]

    def _make_actor(self, name: str, index: int | None) -> Any:
        """Ask Ray for an actor for a task: in a bundle of the group, or anywhere (None)."""
        assert self._plan is not None and self._group is not None
        job = self._plan.job(name)
        wanted = bundle(job.resources)
        options: dict[str, Any] = {
            "num_cpus": wanted["CPU"], "num_gpus": wanted.get("GPU", 0), "memory": wanted.get("memory"),
            "max_restarts": max(1, job.restarts),
        }  # fmt: skip
        if index is not None:
            options["scheduling_strategy"] = self._group.strategy(index)
        return self._ray.remote(concurrency_groups={"orders": 1, "reports": 1})(HostActor).options(**options).remote()

    def _make_host(self, name: str, actor: Any, timeout_s: float) -> RemoteHost:
        """A connected host for a task, once its actor is there. Raises Unavailable if it does not come."""
        node, address = self._place_of(name, actor, timeout_s)
        called = {each["NodeID"]: each["NodeName"] for each in self._ray.nodes()}
        host = RemoteHost(
            HostSpec(called.get(node, address), 1, (name.partition(":")[0],), address), self._line, self._notify
        )
        host.connect(ActorChannel(self._ray, actor, node, host))
        return host

    def _place_of(self, name: str, actor: Any, timeout_s: float) -> tuple[str, str]:
        """The node of an actor, and its address. While Ray restarts it, calls may fail; they are repeated."""
        deadline, away = now() + timeout_s, importlib.import_module("ray.exceptions").ActorUnavailableError
        while True:
            try:
                node, address = self._ray.get(actor.place.remote(), timeout=max(0.1, deadline - now()))
                return str(node), str(address)
            except Exception as error:
                if not isinstance(error, away) or now() > deadline:
                    why = str(error).strip().partition("\n")[0]
                    raise Unavailable(f"Ray starts no actor for {name}: {type(error).__name__}: {why}") from None
            threading.Event().wait(AGAIN_S)

    # -- while it lasts --------------------------------------------------------------------------------------------

    def _place_again(self, name: str, wanted: Resources) -> None:
        """The actor again, if Ray restarts it; else another one, on a node that is left."""
        before = self._placed[name]
        if before.state is HostState.GOING:
            before.close()  # Ray may take the node as soon as nothing is there
        host = self._find_restarted(name, before) or self._make_host(name, self._make_actor(name, None), PLACE_S)
        self._hosts.append(host)
        host.wait_hello()
        super()._place_again(name, wanted)

    def _find_restarted(self, name: str, before: RemoteHost) -> RemoteHost | None:
        """The host of an actor that was lost, where Ray has restarted it."""
        channel = before.channel
        if not (isinstance(channel, ActorChannel) and channel.may_come_back):
            return None
        try:
            return self._make_host(name, channel.actor, max(LEAST_S, channel.lost_at + RESTART_S - now()))
        except Unavailable:
            channel.kill()  # it must not come later
            return None

    def _watch_nodes(self, closed: threading.Event) -> None:
        """Turn nodes that are drained into notices."""
        state = importlib.import_module("ray._private.state").state
        while not closed.wait(BEAT_S / 2):
            with contextlib.suppress(Exception):  # Ray itself is away: then its actors are lost, too
                for node in set(state.get_draining_nodes()) - self._draining:
                    self._draining.add(node)
                    for host in [host for host in self._hosts if getattr(host.channel, "node", "") == node]:
                        host.take_notice("Ray drains the node")

    def close(self) -> None:
        """End all actors, give the places back, and leave Ray. While it is opened: have that given up."""
        self._given_up.set()
        if self._opening:
            return
        if self._attaching is not None:
            super().close()
            if self._group is not None:
                with contextlib.suppress(Exception):  # Ray itself is away
                    self._group.close()
            self._attaching.leave()
            self._attaching = self._ray = self._group = None
        self._given_up.clear()
