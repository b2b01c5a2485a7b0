"""A training program whose every push leaves its own mark, and what its workers saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import dps
from dps.errors import DpsError

NAMES = ("a", "b", "c", "d")
DIR = "run"


@dataclass
class Ack:
    """A push that came back: its marks, where it went, what was said of it."""

    worker: int
    cell: int
    incarnation: int
    epoch: int
    numbers: dict[int, int]
    push: dps.Push


@dataclass
class History:
    """Everything that the workers of one simulated run saw, across their restarts."""

    workers: int
    pushes: int
    acks: list[Ack] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    backwards: list[str] = field(default_factory=list)
    rollbacks: list[tuple[int, int]] = field(default_factory=list)
    next_cell: dict[int, int] = field(default_factory=dict)
    plan: Any = None
    names: tuple[str, ...] = NAMES
    """The variables."""

    @property
    def cells(self) -> int:
        return self.workers * self.pushes


class Notes(dps.Hook):
    """Comes first, before any other hook can join a new epoch."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.cell = -1

    def after_run(self, session: Any, push: dps.Push, loss: Any) -> None:
        connection = session._connection
        numbers = dict(session._pushes.numbers)
        ack = Ack(session._server.task, self.cell, connection.caller.incarnation, connection.epoch, numbers, push)
        self.history.acks.append(ack)
        connection.runtime.record("acked", worker=ack.worker, cell=ack.cell, step=push.step, accepted=push.accepted)

    def rolled_back(self, session: Any, step: int, lost: int) -> None:
        self.history.rollbacks.append((step, lost))


def train(server: Any, history: History, checkpointed: bool, view: bool) -> int:
    """Each push adds one to a cell of its own in all variables (divided by the set's size in sync)."""
    params = {name: np.zeros(history.cells, np.float32) for name in history.names}
    notes = Notes(history)
    hooks: list[dps.Hook] = [notes]
    if checkpointed:
        hooks.append(dps.CheckpointSaver(steps=4))
    last: dict[int, int] = {}
    epoch = -1
    with dps.Session(
        server, params, optimizer=dps.optim.SGD(1.0), checkpoint_dir=DIR if checkpointed else None, hooks=hooks,
        keep_checkpoints=1000, timeout=400,
    ) as session:  # fmt: skip
        connection = session._connection
        history.plan = connection.plan
        while (k := history.next_cell.get(server.task, 0)) < history.pushes:
            if view:
                with session.view() as values:
                    look(history, connection.plan, values)
            values = session.pull()
            look(history, connection.plan, values)
            if session.version.epoch != epoch:
                epoch, last = session.version.epoch, {}
            for ps, counter in session.version.counters:
                if counter < last.get(ps, -1):
                    history.backwards.append(f"ps:{ps} went from {last[ps]} to {counter}")
                last[ps] = counter
            history.next_cell[server.task] = k + 1
            cell = server.task * history.pushes + k
            gradient = np.zeros(history.cells, np.float32)
            gradient[cell] = -1.0
            server.runtime.record("sending", incarnation=connection.caller.incarnation, cell=cell)
            notes.cell = cell
            session.push(dict.fromkeys(history.names, gradient))
    return server.task


def look(history: History, plan: Any, values: Any) -> None:
    """Variables on one ps are written by the same pushes: in one version they are equal."""
    by_ps: dict[int, list[str]] = {}
    for part in plan.parts:
        by_ps.setdefault(part.ps, []).append(plan.variables[part.variable].name)
    for ps, names in by_ps.items():
        first = np.array(values[names[0]])
        for name in names[1:]:
            if not np.array_equal(first, np.array(values[name])):
                history.torn.append(f"ps:{ps}: {names[0]} and {name} differ")


__all__ = ["DIR", "NAMES", "Ack", "DpsError", "History", "look", "train"]
