"""A class name stands for one class, and a method says what it acts on."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = pytest.mark.rules

DPS = Path(__file__).parents[1] / "dps"

SEVERAL = {
    "Constant": "public: optim.Constant is a schedule, init.Constant makes first values",
    "Dense": "public: layers.Dense computes, nn.Dense is a layer of a model",
    "Embedding": "public: layers.Embedding computes, nn.Embedding and torch.Embedding are layers of a model",
    "Optimizer": "public: torch.Optimizer is one of PyTorch, and takes an optim.Optimizer",
    "Sequential": "public: layers.Sequential computes, nn.Sequential is a model",
    "Local": "public: dps.Local is an update mode, strategy.Local the strategy that uses it",
    "Push": "the message of a session, and the public result of a push; neither is imported where the other is",
    "_Waiting": "private: a push that waits for its token, and a message that waits for its connection",
}
"""The class names that stand for several classes, with the reason."""

ROOMS = (
    "actors", "transport", "ps", "chief", "worker", "task", "variables", "messages", "checkpoint", "cluster", "process",
    "calls", "coordinator", "launch", "queues", "collectives", "data", "strategy", "nn", "layers", "adapters",
)  # fmt: skip
"""The rooms in which methods have objects."""

BARE = {"take", "end", "begin", "look", "over", "again", "put", "tell", "note", "at"}
"""Verbs and adverbs that say nothing without an object; with or without a leading underscore."""

MAY_BE_BARE = {
    "Node.tell": "the term of actors: send a message and want no answer",
    "World.at": "public",
    "Queue.put": "public",
    "QueueState.put": "the term of queues, as get is",
    "PrefetchQueue.put": "the term of queues, as get is",
}
"""Methods that may be bare, with the reason."""


def _trees(room: str = "") -> list[tuple[str, ast.Module]]:
    paths = sorted((DPS / room).rglob("*.py"))
    return [(str(path.relative_to(DPS)), ast.parse(path.read_text())) for path in paths]


def test_a_class_name_stands_for_one_class() -> None:
    places = defaultdict(list)
    for path, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"dps/{path}:{node.lineno}")
    several = {name: there for name, there in places.items() if len(there) > 1}
    assert not several.keys() - SEVERAL.keys(), {name: several[name] for name in several.keys() - SEVERAL.keys()}
    assert several.keys() == SEVERAL.keys(), f"these stand for one class by now: {SEVERAL.keys() - several.keys()}"
    assert len(SEVERAL) - sum(reason.startswith("public") for reason in SEVERAL.values()) <= 10


def test_no_method_or_function_of_these_rooms_is_a_bare_verb() -> None:
    found, used = [], set()
    for room in ROOMS:
        for path, tree in _trees(room):
            for node in ast.walk(tree):
                for each in node.body if isinstance(node, ast.ClassDef | ast.Module) else ():
                    if not isinstance(each, ast.FunctionDef) or each.name.strip("_") not in BARE:
                        continue
                    name = f"{node.name}.{each.name}" if isinstance(node, ast.ClassDef) else each.name
                    used.add(name)
                    if name not in MAY_BE_BARE:
                        found.append(f"dps/{path}:{each.lineno} {name}")
    assert not found, found
    assert used == MAY_BE_BARE.keys(), f"these are gone or have other names: {MAY_BE_BARE.keys() - used}"
