"""A gradient is applied by the calls that docs/architecture.md names for each mode, in that order."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps import optim

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
PLACES = [
    "dps.ps.server", "dps.ps.modes.asynchronous", "dps.ps.modes.sync", "dps.ps.modes.quorum",
    "dps.ps.modes.whole_pushes", "dps.ps.intake.intake", "dps.ps.store.store", "dps.ps.store.draft", "dps.client.local",
]  # fmt: skip
"""The modules of the classes in the table, and of `receive` as the handler finds it."""


def route(row: str) -> list[str]:
    """The calls in the second column of the row that begins with these words."""
    (line,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {row} | ")]
    spans = re.findall(r"`([\w.]+)`", line.split(" | ")[1])
    return [f"PsActor.{span}" if span.startswith("on_") else span for span in spans]


def traced(calls: list[str], wanted: set[str], patch: pytest.MonkeyPatch) -> None:
    """Have each call of a wanted function noted."""

    def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def noted(*given: Any, **named: Any) -> Any:
            calls.append(name)
            return call(*given, **named)

        return noted

    for name in wanted:
        owner, _, method = name.rpartition(".")
        modules = [importlib.import_module(place) for place in PLACES]
        holder = next(found for module in modules for found in [getattr(module, owner or method, None)] if found)
        holder = holder if owner else modules[0]
        patch.setattr(holder, method, noting(name, getattr(holder, method)))


def two_pushes(server: Any, about: dict[str, Any]) -> None:
    values = {"a": np.zeros(200, np.float32), "b": np.zeros(200, np.float32)}
    with dps.Session(server, values, optimizer=about.get("optimizer", optim.SGD(0.1))) as session:
        for _ in range(2):  # the first push of a synchronous run is always reported
            (session.assign if about.get("assigns") else session.push)({name: a + 1 for name, a in values.items()})


@pytest.mark.parametrize(
    ("row", "update", "about", "world"),
    [
        ("async, complete push", dps.Async(), {"optimizer": optim.Adagrad(0.1)}, {}),
        ("async, while the push arrives", dps.Async(), {}, {}),
        ("async, admitted", dps.Async(), {}, {"shared_memory": True}),
        ("bounded", dps.Bounded(1), {}, {}),
        ("bounded, admitted", dps.Bounded(1), {}, {"shared_memory": True}),
        ("sync, step ps, or the only ps", dps.SyncReplicas(1, 1), {}, {}),
        ("sync, other ps", dps.SyncReplicas(), {}, {"ps": 2}),
        ("sync, small, one ps", dps.SyncReplicas(), {}, {}),
        ("sync, admitted, one ps", dps.SyncReplicas(), {}, {"shared_memory": True}),
        ("local", dps.Local(1), {}, {}),
        ("assigned values, async and bounded", dps.Async(), {"assigns": True}, {}),
    ],
)
def test_a_gradient_takes_the_route_of_the_architecture_page(
    row: str, update: Any, about: dict[str, Any], world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, calls = route(row), list[str]()
    traced(calls, set(wanted), monkeypatch)
    run = dps.simulate(two_pushes, about, update=update, piece_nbytes=64, **world)
    assert not run.errors
    after = iter(calls)
    missed = [name for name in wanted if name not in after]
    assert wanted and not missed, f"docs/architecture.md, {row}: {missed[0]} is not called in its turn: {calls}"
