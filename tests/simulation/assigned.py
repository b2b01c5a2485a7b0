"""Values that workers assign now and then: to a variable that every push adds 1 to, and to one that is not trained."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import dps

TRAINED, FREE = "v", "u"
"""Every gradient of `TRAINED` is -1, so that its rate of 1 adds 1; `FREE` gets none."""
NAMES = (TRAINED, FREE)


def variables(optimizer: Any, free: bool) -> dict[str, Any]:
    """`optimizer`: of `TRAINED`; None: the session's. `free`: whether there is a `FREE`."""
    made: dict[str, Any] = {TRAINED: dps.Variable(np.zeros(6, np.float32), optimizer=optimizer)}
    return {**made, FREE: dps.Variable(np.zeros(4, np.int64), trainable=False)} if free else made


class Values:
    """What one worker assigns. Each push that sets values is recorded with its numbers and the values; in sync those
    that are not part of a step yet have to go with each push."""

    def __init__(self, session: Any, history: Any, task: int) -> None:
        self._session, self._history, self._task = session, history, task
        self._unset: dict[str, int] = {}
        self._last: dict[str, Any] = {}
        self._acks = 0
        send = session._pushes.send

        def recorded(operation: Any, *posted: Any) -> None:
            before = dict(session._pushes.numbers)
            values, assigns = self._of(operation), operation.assigns
            send(operation, *posted)
            numbers = {ps: n for ps, n in session._pushes.numbers.items() if n != before[ps]}
            if not assigns and values != self._unset:
                history.torn.append(f"worker:{task} pushed with {values}, where {self._unset} had to be set")
            if values:
                self._last = {
                    "incarnation": session._connection.caller.incarnation,
                    "epoch": session._connection.membership.epoch,
                    "numbers": numbers, "values": values, "assigns": assigns, "task": task,
                }  # fmt: skip
                session.runtime.record("setting", **self._last)

        session._pushes.send = recorded

    def _of(self, operation: Any) -> dict[str, int]:
        variables = self._session._connection.agreed.plan.variables
        return {variables[index].name: int(value.flat[0]) for index, value in operation.values.items()}

    def assign(self, cell: int) -> None:
        """Assign in one of two turns, one or both variables; in async and bounded mode they are set thereafter."""
        draw = random.Random(f"assign {cell}")
        if draw.random() < 0.5:
            return
        names = [name for name in NAMES if name in self._session._connection.agreed.plan.by_name]
        for name in draw.choice([names, names[:1], names[-1:]]):
            value = 1000 * (cell + 1) + 10 * (name == FREE)
            of = np.zeros(6, np.float32) if name == TRAINED else np.zeros(4, np.int64)
            self._unset[name] = value
            self._session.assign({name: of + of.dtype.type(value)})
            of[...] = -1  # the session has a copy
            if not self._session._connection.agreed.mode.assigns_with_push:
                self._unset.clear()
                self._history.assigned.append(self._last)

    def pushed(self) -> None:
        """The worker has pushed: what was to be set went along."""
        mine = [ack for ack in self._history.acks[self._acks :] if ack.worker == self._task]
        self._acks = len(self._history.acks)
        if self._unset and self._last.get("values") != self._unset:
            self._history.torn.append(f"worker:{self._task} pushed without {self._unset}; last {self._last}")
        if mine and mine[-1].push.accepted:
            self._unset = {}
        self._last = {}
