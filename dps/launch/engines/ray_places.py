"""Places for the tasks of a run in a Ray cluster: a placement group with a bundle for each task."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from dps.errors import ConfigError, TaskLost
from dps.launch.engines.engine import Line
from dps.launch.plan import Plan, Resources
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


def too_much(bundles: Sequence[Mapping[str, float]], there: Sequence[Mapping[str, float]]) -> str:
    """The resource of which all bundles together, or one of them, want more than the nodes have, as text; "" if they
    have enough."""
    for kind in ("CPU", "GPU", "memory"):
        wants, has = ([each.get(kind, 0.0) for each in some] for some in (bundles, there))
        if sum(wants) > sum(has):
            return f"the tasks want {kind}: {sum(wants):g}; its nodes have {sum(has):g}"
        if max(wants) > max(has, default=0.0):
            return f"a task wants {kind}: {max(wants):g}; no node has more than {max(has, default=0.0):g}"
    return ""


class Group:
    """The placement group of a plan."""

    def __init__(self, ray: Any, plan: Plan) -> None:
        """Ask for it. Raises ConfigError if Ray has too little for it, even with nothing else to do."""
        bundles = [bundle(plan.job(name).resources) for name in plan.tasks()]
        if problem := too_much(bundles, [node["Resources"] for node in nodes(ray)]):
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
