"""The schema of experiment files: known keys and the form of each value. Errors name file, line and column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dps.launch.experiment.nodes import LocatedValue
from dps.launch.supervision.plan import Resources
from dps.process.flags import nearest

TOP = (
    "name", "output", "parameters", "parallel", "update", "durability", "keys", "restarts", "env", "resources", "hosts",
    "sync", "image", "volumes", "roles",
)  # fmt: skip
ROLES = ("chief", "ps", "worker", "evaluator", "dataset")
ROLE = ("count", "run", "env", "resources", "restarts", "device", "threads")
RESOURCES = ("cpus", "memory", "gpus")
COUNT, RUN = "count, under roles.worker", "run, under roles.worker"
MEANT = {
    "num_nodes": COUNT, "nodes": COUNT, "num_workers": COUNT, "replicas": COUNT, "instances": COUNT,
    "run": RUN, "command": RUN, "cmd": RUN, "entrypoint": RUN, "program": RUN, "script": RUN,
    "setup": "nothing: prepare the hosts before, and sync: true copies the project to them",
    "workdir": "sync: true, which copies the folder of the file", "file_mounts": "sync: true, or volumes",
    "envs": "env", "environment": "env", "services": "roles", "jobs": "roles", "tasks": "roles",
    **{role: f"{role}, under roles" for role in ROLES},
    "accelerators": "gpus", "gpu": "gpus", "cpu": "cpus", "mem": "memory", "ram": "memory",
}  # fmt: skip
"""What names of other tools' files are called here."""
UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}


def keys(node: LocatedValue, known: Sequence[str], what: str) -> dict[str, LocatedValue]:
    """The values of a mapping by their keys; `what` is what an unknown key would have to be."""
    if node.value is None:
        return {}
    if not isinstance(node.value, dict):
        node.fail(f"got {node.shown}, wanted {what}s with values")
    for key in node.value:
        if key not in known:
            where = f"{node.path}: " if node.path else ""
            hint = f"here it is {MEANT[key]}" if key in MEANT else nearest(key, known)
            raise node.keys[key].error(f"{where}unknown {what} {key!r}; {hint}")
    found: dict[str, LocatedValue] = node.value
    return found


def text(node: LocatedValue) -> str:
    """A text, or another scalar as the file has it."""
    if isinstance(node.value, list | dict) or node.value is None:
        node.fail(f"got {node.shown}, wanted a text")
    return node.text


def whole(node: LocatedValue, least: int) -> int:
    """A whole number."""
    if not isinstance(node.value, int) or isinstance(node.value, bool) or node.value < least:
        node.fail(f"got {node.shown}, wanted a whole number from {least}")
    return int(node.value)


def switch(node: LocatedValue) -> bool:
    """True or false."""
    if not isinstance(node.value, bool):
        node.fail(f"got {node.shown}, wanted true or false")
    return bool(node.value)


def chosen(node: LocatedValue, among: Sequence[str], more: str = "") -> str:
    """One of some words."""
    if text(node) not in among:
        node.fail(f"got {node.text!r}, wanted {' or '.join(among)}{more}")
    return node.text


def texts(node: LocatedValue) -> tuple[str, ...]:
    """A list of texts."""
    if not isinstance(node.value, list):
        node.fail(f"got {node.shown}, wanted a list")
    return tuple(text(each) for each in node.value)


def variables(node: LocatedValue) -> dict[str, str]:
    """Variables of an environment."""
    if node.value is not None and not isinstance(node.value, dict):
        node.fail(f"got {node.shown}, wanted names of variables with values")
    found: dict[str, Any] = node.value or {}
    for name in found:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise node.keys[name].error(f"{node.path}: got {name!r}, wanted the name of a variable")
    return {name: text(value) for name, value in found.items()}


def parameters(node: LocatedValue) -> dict[str, tuple[str, ...]]:
    """The values of each parameter: one, or those of a list."""
    if node.value is not None and not isinstance(node.value, dict):
        node.fail(f"got {node.shown}, wanted names with values")
    found: dict[str, tuple[str, ...]] = {}
    for name, value in (node.value or {}).items():
        if not re.fullmatch(r"[\w-]+", name) or name in ("id", "name"):
            raise node.keys[name].error(f"{node.path}: {name!r} cannot be the name of a parameter")
        found[name] = texts(value) if isinstance(value.value, list) else (text(value),)
        if not found[name]:
            value.fail("got an empty list, wanted a value or several")
    return found


def nbytes(node: LocatedValue) -> int:
    """An amount of memory such as 4GiB, 512MB, or a number of bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text(node).lower())
    if found is None or found[2] == "i" or float(found[1]) <= 0:
        node.fail(f"got {node.text!r}, wanted an amount of memory such as 4GiB or 512MB")
    return int(float(found[1]) * UNITS[found[2]])


def resources(node: LocatedValue | None, default: Resources) -> Resources:
    """The resources of each task of a role; those that the file does not name are those of `default`."""
    if node is None:
        return default
    found = keys(node, RESOURCES, "resource")
    return Resources(
        whole(found["cpus"], 1) if "cpus" in found else default.cpus,
        nbytes(found["memory"]) if "memory" in found else default.memory,
        whole(found["gpus"], 0) if "gpus" in found else default.gpus,
    )
