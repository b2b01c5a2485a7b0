"""The same marks in tables that are read and pushed by rows: lists repeat, come in any order, and name rows twice."""

from __future__ import annotations

from typing import Any

import numpy as np

import dps

TABLES = ("s", "t")
WIDTH = 2


class Marks:
    """One worker's reads and pushes of the tables, and what its reads must not show."""

    def __init__(self, session: Any, history: Any, seed: int) -> None:
        self._session, self._history = session, history
        draw = np.random.default_rng(seed)
        self._orders = [draw.permutation(history.cells) for _ in range(3)]
        self._seen: dict[str, Any] = {}
        self._epoch = -1

    def read(self, k: int, pulled: Any) -> None:
        """Look rows up, at once in all tables. A mark never goes, and what a pull has shown is there."""
        connection = self._session._connection
        order = self._orders[k % 3]
        order = np.concatenate([order, order[:2]]) if k % 2 else order
        before = connection.membership.epoch
        replies = {name: self._session.lookup_async(name, order) for name in TABLES}
        found = {name: replies[name].result() for name in reversed(TABLES)}
        out = np.empty((len(order), WIDTH), np.float32)
        again = self._session.lookup(TABLES[0], order, out=out)
        assert again is out
        if connection.membership.epoch != before or pulled is None:
            self._seen = {}
            return
        if before != self._epoch:
            self._epoch, self._seen = before, {}
        for name in TABLES:
            self._compare(name, order, found[name], pulled[name])
        self._compare(TABLES[0], order, again, pulled[TABLES[0]])

    def _compare(self, name: str, order: Any, rows: Any, pulled: Any) -> None:
        told = f"{name}, {order.tolist()}: {rows[:, 0].tolist()}"
        if not np.array_equal(rows[:, 0], rows[:, 1]):
            self._history.torn.append(f"the columns of one row differ in {told}")
        least = np.maximum(self._seen.get(name, 0.0), np.asarray(pulled)[:, 0])
        if (rows[:, 0] < least[order]).any():
            self._history.backwards.append(f"looked up {told}; marks were there before: {least[order].tolist()}")
        seen = np.array(least)
        np.maximum.at(seen, order, rows[:, 0])
        self._seen[name] = seen

    def gradient(self, k: int, cell: int, dense: bool = False) -> dict[str, Any]:
        """All rows, so that a mean divides them as it divides dense ones; the marked one sometimes in two halves."""
        if dense and k % 5 > 2:
            whole = np.zeros((self._history.cells, WIDTH), np.float32)
            whole[cell] = -1.0
            return dict.fromkeys(TABLES, whole)
        order = self._orders[k % 3]
        if k % 2:
            order = np.concatenate([order, [cell]])
        values = np.zeros((len(order), WIDTH), np.float32)
        values[order == cell] = -1.0 / np.count_nonzero(order == cell)
        return {name: dps.Rows(order, values) for name in TABLES}


def tables(cells: int) -> dict[str, Any]:
    return {name: dps.Variable(np.zeros((cells, WIDTH), np.float32), sparse=True) for name in TABLES}
