"""A training program whose every push leaves its own mark, and what its workers saw."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import dps
from dps.errors import DpsError
from dps.transport.dtypes import dtype_of
from tests.simulation import aging, assigned, keyed
from tests.simulation.rows import Marks, tables
from tests.simulation.varied import Variety

NAMES = ("a", "b", "c", "d")
DIR = "run"
FIXED = "fixed"
"""A variable that is not trained."""


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
    steps: bool = False
    """Nearly all pushes are steps, else every second one."""
    variety: Variety = field(default_factory=Variety)
    assigns: bool = False
    """Whether workers assign values."""
    keyed: bool = False
    """Whether there are keyed tables, without and with `admit`."""
    read_marks: list[aging.Read] = field(default_factory=list)
    """What was read of the one with `admit`."""
    sessions: list[Any] = field(default_factory=list)
    """Those that are open."""
    assigned: list[dict[str, Any]] = field(default_factory=list)
    """In async and bounded mode: the pushes of values that came back."""

    @property
    def cells(self) -> int:
        return self.workers * self.pushes


class Notes(dps.Hook):
    """Comes first, before any other hook can join a new epoch."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.cell = -1
        self.sent: tuple[int, int, dict[int, int]] = 0, 0, {}
        """The incarnation, the run epoch and the numbers of the last push."""

    def after_create_session(self, session: Any) -> None:
        pushes, connection = session._pushes, session._connection

        def noting(send: Any) -> Any:
            def noted(operation: Any) -> None:
                send(operation)
                self.sent = connection.caller.incarnation, connection.membership.epoch, dict(pushes.numbers)

            return noted

        pushes.send, pushes.begin_posted = noting(pushes.send), noting(pushes.begin_posted)

    def after_run(self, session: Any, push: dps.Push, loss: Any) -> None:
        connection, numbers = session._connection, dict(session._pushes.numbers)
        kept = not any(numbers.values())  # the session has just joined again, and the push was of before
        now = connection.caller.incarnation, connection.membership.epoch, numbers
        ack = Ack(session._server.task, self.cell, *(self.sent if kept else now), push)
        self.history.acks.append(ack)
        about = {"worker": ack.worker, "cell": ack.cell, "step": push.step, "accepted": push.accepted}
        connection.home.runtime.record("acked", **about, kept=kept)

    def rolled_back(self, session: Any, step: int, lost: int) -> None:
        self.history.rollbacks.append((step, lost))


def train(
    server: Any, history: History, checkpointed: bool, view: bool, compression: Any = None, deltas: bool = False,
    rows: bool = False, parts: int = 1,
) -> int:  # fmt: skip
    """Each push adds one to a cell of its own in all variables (divided by the set's size where the mode takes a mean).

    `view`: values are also read in place, and gradients written where the ps reads them. `rows`: two of the variables
    are tables, read and pushed by rows; `parts`: of each variable.
    """
    variety, dtype = history.variety, dtype_of(history.variety.dtype)
    params: dict[str, Any] = {name: np.zeros(history.cells, dtype) for name in history.names}
    if rows:
        params = {**{name: params[name] for name in NAMES[:2]}, **tables(history.cells)}
    if variety.fixed:
        params[FIXED] = dps.Variable(np.arange(9), trainable=False)
    dense = [name for name in history.names if name in params]
    if variety.width > 1:
        params[dense[-1]] = np.zeros((history.cells, variety.width), dtype)
    if history.assigns:  # pushes go at once only where all variables are trained, and alike
        own_rate = None if variety.optimizer == Variety().optimizer else dps.optim.SGD(1.0)
        params |= assigned.variables(own_rate, free=not history.steps)
    if history.keyed:
        params |= {keyed.NAME: keyed.variable(), aging.NAME: aging.variable()}
    notes = Notes(history)
    hooks: list[dps.Hook] = [notes]
    if checkpointed:
        hooks.append(dps.CheckpointSaver(steps=4))
    seen = Seen(history)
    with dps.Session(
        server, params, optimizer=variety.optimizer, checkpoint_dir=DIR if checkpointed else None, hooks=hooks,
        keep_checkpoints=1000, timeout=400, compression=compression, pull_deltas=deltas,
        partitioner=dps.partition.Fixed(parts),
        moving_average=dps.optim.MovingAverage(0.0) if variety.averages else None,
    ) as session:  # fmt: skip
        connection = session._connection
        history.sessions[:] = [*(s for s in history.sessions if s._server.task != server.task), session]
        history.plan = connection.agreed.plan
        marks = Marks(session, history, server.task) if rows else None
        key_marks = keyed.KeyMarks(session, history, server.task) if history.keyed else None
        aging_marks = aging.AgingMarks(session, history, server.runtime) if history.keyed else None
        values_set = assigned.Values(session, history, server.task) if history.assigns else None
        while (k := history.next_cell.get(server.task, 0)) < history.pushes:
            if view:
                with session.view() as values:
                    look(history, connection.agreed.plan, values)
            ahead = k % 4 == 2 and not connection.agreed.mode.is_atomic
            loop = session.prefetch(in_place=view) if ahead else iter((session.pull(),))
            values = next(loop)
            seen.take(session, values)
            if marks is not None:
                marks.read(k, values if session.version.epoch == connection.membership.epoch else None)
            if key_marks is not None:
                key_marks.read(k)
            if aging_marks is not None:
                aging_marks.read()
            if variety.averages and k % 3 == 1:
                look(history, connection.agreed.plan, session.averages())
            history.next_cell[server.task] = k + 1
            cell = server.task * history.pushes + k
            gradient = np.zeros(history.cells, dtype)
            gradient[cell] = -1.0
            if variety.some and k % 4 == 1:
                aside(
                    session,
                    {} if connection.agreed.mode.assigns_with_push else {dense[0]: np.zeros(history.cells, dtype)},
                    values_set,
                )
            if variety.spoils and k % 3 == 1:
                aside(session, spoilt(history, dense, gradient, marks, k, cell), values_set)
            if values_set is not None:
                values_set.assign(cell)
            server.runtime.record("sending", incarnation=connection.caller.incarnation, cell=cell)
            notes.cell = cell
            given = spread(gradient, dense, variety.width)
            own = session.gradients() if view else {}
            for name in dense if own else ():
                own[name][...] = given[name]
                given[name] = own[name]
            gradients = {**given, **({} if marks is None else marks.gradient(k, cell, variety.dense_tables))}
            if key_marks is not None:
                gradients |= key_marks.gradient(k, cell)
            if aging_marks is not None:
                gradients |= aging_marks.gradient(k, cell)
            if history.assigns:
                gradients[assigned.TRAINED] = np.full(6, -1, np.float32)
            if k % 6 if history.steps else k % 2:
                in_place = view and k % 4 == 3
                with (
                    session.step_in_place(gradients)
                    if in_place
                    else contextlib.nullcontext(session.step(gradients)) as values
                ):
                    # with quotas of their own a token may come before the push's step is made
                    seen.take(session, values, dense if session._connection.agreed.mode.pull_follows_push else (), cell)
            elif ahead:
                reply = session.push_async(gradients)
                look(history, connection.agreed.plan, values)  # in place they are the loop's until its next turn
                # in bounded mode a read ahead is judged by the clock of when it was asked for, which no event has
                for later in itertools.islice(loop, 0 if connection.agreed.mode.asks_step_ps_first else 2):
                    seen.take(session, later)
                reply.result()
            else:
                session.push(gradients)
            if values_set is not None:
                values_set.pushed()
            if history.variety.tuning and k % 5 == 2:
                session.stats()
            for array in given.values():
                array[...] = 1000.0  # ours again: whatever of it is still on its way counts no more
            del own, given, gradients, array  # memory to which nobody refers is given again
    return server.task


def aside(session: Any, gradients: Any, values_set: assigned.Values | None) -> None:
    """A push that changes no value: it takes a number of its own where it is sent."""
    connection, numbers = session._connection, dict(session._pushes.numbers)
    with contextlib.suppress(ValueError):
        session.push(gradients)
    if values_set is not None:
        values_set.pushed()
    if session._pushes.numbers != numbers:
        connection.home.runtime.record("sending", incarnation=connection.caller.incarnation, cell=-1)


def spoilt(history: History, dense: list[str], gradient: Any, marks: Marks | None, k: int, cell: int) -> dict[str, Any]:
    """The gradients of a push of which nothing may count: NaN in one variable, in a dense one or in rows."""
    bad = gradient.copy()
    bad[-1 - k] = np.nan
    given = spread(gradient if k % 2 else bad, dense, history.variety.width)
    for name, rows in ({} if marks is None else marks.gradient(k, cell)).items():
        values = rows.values.copy()
        values[0] = np.nan if k % 2 else values[0]
        given[name] = dps.Rows(rows.indices, values)
    return given if marks is not None else {**given, dense[0]: bad}


def spread(gradient: Any, dense: list[str], width: int) -> dict[str, Any]:
    """The same gradient for all these variables; the last has so many columns."""
    given = dict.fromkeys(dense, gradient)
    if width > 1:
        given[dense[-1]] = np.repeat(gradient[:, None], width, axis=1)
    return given


class Seen:
    """What one worker's reads have to be like, one after the other."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._epoch = -1
        self._last: dict[int, int] = {}

    def take(self, session: Any, values: Any, marked: Sequence[str] = (), cell: int = -1) -> None:
        """The values of a pull, or of a step that has marked a cell of these variables."""
        look(self._history, session._connection.agreed.plan, values)
        if session.version.epoch != self._epoch:
            self._epoch, self._last = session.version.epoch, {}
        for ps, counter in session.version.counters:
            if counter < self._last.get(ps, -1):
                self._history.backwards.append(f"ps:{ps} went from {self._last[ps]} to {counter}")
            self._last[ps] = counter
        acks = [ack for ack in self._history.acks if ack.cell == cell]
        if acks and acks[-1].push.accepted and acks[-1].epoch == self._epoch:
            without = [name for name in marked if not np.all(values[name][cell] > 0)]
            if without:
                self._history.backwards.append(f"a step's values of {without} are without its own push, cell {cell}")


def look(history: History, plan: Any, values: Any) -> None:
    """Variables on one ps are written by the same pushes: in one version they are equal."""
    seen: dict[tuple[int, int], tuple[str, Any]] = {}
    for part in plan.parts:
        name = plan.variables[part.variable].name
        if name == FIXED:
            assert values[name].tolist() == [*range(9)]
            continue
        if name in assigned.NAMES:
            found = set(np.array(values[name])[part.row0 : part.row0 + part.shape[0]].tolist())
            if len(found) > 1:
                history.torn.append(f"ps:{part.ps}: {name} holds {found}")
            continue
        rows = np.array(values[name])[part.row0 : part.row0 + part.shape[0]].reshape(part.shape[0], -1)
        other, first = seen.setdefault((part.ps, part.row0), (name, rows[:, 0]))
        for column in rows.T:
            if not np.array_equal(first, column):
                history.torn.append(f"ps:{part.ps}: {other} and {name} differ from row {part.row0} on")


__all__ = ["DIR", "NAMES", "Ack", "DpsError", "History", "look", "train"]
