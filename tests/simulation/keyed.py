"""Marks in a keyed table: each push adds one to the row of a key of its own and to that of a key that others push."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import dps
from dps.checkpoint import candidates, load, read_header, read_tensor_rows
from dps.errors import CheckpointError
from dps.kernels.first_values import FirstValues
from dps.variables.tables import codes_of
from tests.simulation.rows import TABLES

NAME, DIM, INIT = "k", 3, dps.init.Normal(0.5, seed=11)
EDGES = [0, -1, (1 << 63) - 1, -(1 << 63)]
SHARED, NEVER = [5, 6, 7], [8, -9]


def key_of(cell: int) -> int:
    """The key that the push of a cell alone has."""
    return EDGES[cell] if cell < len(EDGES) else 7919 * cell - 10**12


def keys_of(cell: int) -> list[int]:
    return [key_of(cell), SHARED[cell % len(SHARED)]]


def variable() -> dps.Variable:
    return dps.Variable(keys="int64", dim=DIM, dtype="float64", capacity=500, init=INIT, optimizer=dps.optim.SGD(1.0))


def first_of(keys: Any) -> Any:
    """What the rows of keys begin with."""
    out = np.empty((len(keys), DIM))
    FirstValues(INIT, NAME, (1, DIM), np.float64).fill_rows(out, np.arange(len(keys)), np.array(keys, np.int64))
    return out


class KeyMarks:
    """One worker's reads and pushes of the table, and what its reads must not show."""

    def __init__(self, session: Any, history: Any, seed: int) -> None:
        self._session, self._history = session, history
        keys = [*map(key_of, range(history.cells)), *SHARED, *NEVER]
        self._keys = np.random.default_rng(seed).permutation(np.array(keys, np.int64))
        self._first, self._least, self._epoch = first_of(self._keys), np.zeros(len(keys)), -1

    def read(self, k: int) -> None:
        """Look all keys up. A mark never goes, and a key without marks reads as it begins."""
        connection = self._session._connection
        before = connection.membership.epoch
        asked = np.concatenate([self._keys, self._keys[:2]]) if k % 2 else self._keys[:, None]
        rows = self._session.lookup(NAME, asked).reshape(-1, DIM)[: len(self._keys)]
        moved = np.round(rows - self._first)
        told = f"the marks of {self._keys.tolist()} were {moved[:, 0].tolist()}"
        if not np.allclose(rows, self._first + moved[:, :1], atol=1e-9) or (moved < 0).any():
            self._history.torn.append(f"a keyed table: {told}, or the columns differ")
        if moved[np.isin(self._keys, NEVER)].any():
            self._history.torn.append(f"a key that nobody pushed has marks: {told}")
        if k % 5 == 2:
            self._session.stats()
        if connection.membership.epoch != before:
            return
        if before != self._epoch:
            self._epoch, self._least = before, np.zeros(len(self._keys))
        if (moved[:, 0] < self._least).any():
            self._history.backwards.append(f"a keyed table: {told}; there were {self._least.tolist()}")
        self._least = np.maximum(self._least, moved[:, 0])

    def gradient(self, k: int, cell: int) -> dict[str, Any]:
        """One for each key, at times in two halves."""
        keys = np.array(keys_of(cell), np.int64)
        values = np.full((len(keys), DIM), -1.0)
        return {NAME: dps.Rows(keys.repeat(2), values.repeat(2, axis=0) / 2) if k % 2 else dps.Rows(keys, values)}


def on_disk(cluster: Any, history: Any) -> Iterator[str]:
    """In each checkpoint each shard's keyed rows have just the marks that its other variables have, each key once."""
    from tests.simulation.history import DIR, NAMES

    storage = cluster.world.storage
    for name in candidates(storage, DIR) if history.plan is not None else ():
        try:
            saved = load(storage, DIR, name, verify=False)
        except CheckpointError:  # one that was never finished
            continue
        table = saved.variable(NAME)
        for part in table.parts:
            path = f"{DIR}/{name}/{saved.shards[part.shard].file.file}"
            header = read_header(storage, path)
            marked = [v for v in saved.variables if v.name in (*NAMES, *TABLES) and v.parts[0].shard == part.shard]
            cells = read_tensor_rows(storage, path, marked[0].name, 0, marked[0].rows, header)
            marks = cells.reshape(marked[0].rows, -1)[:, 0]
            keys = read_tensor_rows(storage, path, table.tensor(part, "keys"), 0, part.rows, header)
            rows = read_tensor_rows(storage, path, table.tensor(part), 0, part.rows, header)
            wanted: dict[int, float] = {}
            for cell in np.flatnonzero(marks):
                for key in keys_of(int(cell)):
                    wanted[key] = wanted.get(key, 0) + float(marks[cell])
            of_part = history.plan.table_parts[history.plan.tables_by_name[NAME]][part.index]
            codes = codes_of(np.array([*wanted], np.int64)).tolist() if wanted else []
            here = {
                k: m for (k, m), c in zip(wanted.items(), codes, strict=True) if of_part.lowest <= c <= of_part.highest
            }
            got = dict(zip(keys.tolist(), (rows - first_of(keys)).tolist(), strict=True))
            if len(got) != len(keys):
                yield f"{name}: a key is twice among {keys.tolist()}"
            if got.keys() != here.keys() or any(not np.allclose(got[k], m, atol=1e-9) for k, m in here.items()):
                yield f"{name}: {table.tensor(part)} has {got}, wanted {here}"
