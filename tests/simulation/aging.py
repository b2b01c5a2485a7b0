"""A keyed table with admission and expiry: a model of it says what each read and each checkpoint may show."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import dps
from dps.checkpoint import Manifest, candidates, load, read_header, read_tensor_rows
from dps.errors import CheckpointError
from dps.kernels.first_values import FirstValues
from dps.variables.tables import codes_of
from tests.simulation.replaying import marks_of

NAME, DIM, INIT = "o", 2, dps.init.Normal(0.5, seed=12)
ADMIT, EXPIRE = 2, 3
NEVER = [-3, 4]


def keys_of(cell: int) -> list[int]:
    """The keys of a cell's push: one of all pushes, one of every fifth, one of two that follow each other, its own."""
    return [5 + cell % 2, 50 + cell % 5, 100 + cell // 2, 10**15 + cell]


def variable() -> dps.Variable:
    return dps.Variable(
        keys="int64", dim=DIM, dtype="float64", capacity=500, init=INIT, admit=ADMIT, expire_steps=EXPIRE,
        optimizer=dps.optim.SGD(1.0),
    )  # fmt: skip


def first_of(keys: Any) -> Any:
    """What the rows of keys begin with."""
    out = np.empty((len(keys), DIM))
    FirstValues(INIT, NAME, (1, DIM), np.float64).fill_rows(out, np.arange(len(keys)), np.array(keys, np.int64))
    return out


@dataclass
class Read:
    """What a worker has read: the marks of keys."""

    number: int
    epoch: int
    marks: dict[int, int]


class AgingMarks:
    """One worker's reads and pushes of the table."""

    def __init__(self, session: Any, history: Any, runtime: Any) -> None:
        self._session, self._history, self._runtime = session, history, runtime
        every = {key for cell in range(history.cells) for key in keys_of(cell)}
        self._keys = np.array([*sorted(every), *NEVER], np.int64)
        self._first = first_of(self._keys)

    def read(self) -> None:
        """Look all keys up; the trace says between which events."""
        connection, number = self._session._connection, len(self._history.read_marks)
        read = Read(number, connection.membership.epoch, {})
        self._history.read_marks.append(read)
        self._runtime.record("looking", number=number)
        rows = self._session.lookup(NAME, self._keys) - self._first
        self._runtime.record("looked", number=number)
        marks = np.round(rows[:, 0])
        if not np.allclose(rows, marks[:, None], atol=1e-9):
            self._history.torn.append(f"{NAME}: the columns differ, or are no marks: {rows.tolist()}")
        if connection.membership.epoch == read.epoch:
            read.marks.update(zip(self._keys.tolist(), marks.astype(int).tolist(), strict=True))

    def gradient(self, k: int, cell: int) -> dict[str, Any]:
        """One for each key, at times in two halves."""
        keys = np.array(keys_of(cell), np.int64)
        values = np.full((len(keys), DIM), -1.0)
        return {NAME: dps.Rows(keys.repeat(2), values.repeat(2, axis=0) / 2) if k % 2 else dps.Rows(keys, values)}


@dataclass
class Model:
    """The table on one ps after a version: marks and stamps of the rows, counts of the keys without one."""

    step: int = 0
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)
    counted: dict[int, int] = field(default_factory=dict)

    def apply(self, pushed: dict[int, int], step: int) -> None:
        """An update of keys, each with the number of pushes that have it. The rows are those that a reader saw before,
        who may know the step before from another ps."""
        self.step = max(self.step, step - 1)
        self.rows = self.live()
        for key, pushes in pushed.items():
            if key in self.rows:
                self.rows[key] = self.rows[key][0] + pushes, step
                continue
            total = self.counted.pop(key, 0) + pushes
            if total >= ADMIT:
                self.rows[key] = pushes, step
            else:
                self.counted[key] = total
        self.step = step

    def live(self) -> dict[int, tuple[int, int]]:
        """The rows that have not expired."""
        return {key: row for key, row in self.rows.items() if self.step - row[1] < EXPIRE}

    def marks(self) -> dict[int, int]:
        return {key: marks for key, (marks, _) in self.live().items()}


class Models:
    """The table on each ps after each version, by what the trace says was applied."""

    def __init__(self, cluster: Any, history: Any) -> None:
        self._cluster, self._parts = cluster, {}
        index = history.plan.tables_by_name[NAME]
        self._parts = {part.ps: part for part in history.plan.table_parts[index]}
        self._marks = {ps: marks_of(cluster, ps) for ps in self._parts}
        self._known: dict[tuple[int, int], list[tuple[int, int, Model]]] = {}

    def of(self, ps: int, epoch: int) -> list[tuple[int, int, Model]]:
        """The versions of a run epoch: the position in the trace from which on it is there, its counter, the table."""
        if (ps, epoch) not in self._known:
            self._known[ps, epoch] = list(self._replayed(ps, epoch))
        return self._known[ps, epoch]

    def saved(self, manifest: Manifest, ps: int) -> Model:
        """The table on a ps in a checkpoint."""
        from tests.simulation.history import DIR

        assert manifest.name in candidates(self._cluster.world.storage, DIR)
        order = sorted(self._parts)
        version = manifest.shards[order.index(ps)].version
        return [model for _, counter, model in self.of(ps, manifest.epoch) if counter <= version][-1]

    def _replayed(self, ps: int, epoch: int) -> Iterator[tuple[int, int, Model]]:
        from tests.simulation.history import DIR

        world = self._cluster.world
        began = next(e for e in world.trace if e.what == "epoch" and e.detail["epoch"] == epoch)
        model = Model()
        if name := began.detail["restore"]:
            manifest = load(world.storage, DIR, name, verify=False)
            model = copy.deepcopy(self.saved(manifest, ps))
            model.rows, model.step = model.live(), manifest.step
        yield -1, 0, copy.deepcopy(model)
        for at, event in enumerate(world.trace):
            if event.process == f"ps:{ps}" and event.what == "applied" and event.detail["epoch"] == epoch:
                cells = [self._marks[ps].get(push[1:], -1) for push in event.detail["pushes"]]
                pushed = Counter(key for cell in cells if cell >= 0 for key in keys_of(cell))
                model.apply({key: n for key, n in pushed.items() if self.is_on(ps, key)}, event.detail["step"])
                yield at, event.detail["counter"], copy.deepcopy(model)

    def is_on(self, ps: int, key: int) -> bool:
        part = self._parts[ps]
        return bool(part.lowest <= codes_of(np.array([key]))[0] <= part.highest)

    @property
    def ps(self) -> list[int]:
        return list(self._parts)


def violations(cluster: Any, history: Any) -> Iterator[str]:
    """Reads and checkpoints that no version of the model explains."""
    if history.plan is not None:
        models = Models(cluster, history)
        yield from reads(cluster, history, models)
        yield from on_disk(cluster, models)


def reads(cluster: Any, history: Any, models: Models) -> Iterator[str]:
    """Each read shows of each ps one version that was there between its request and its answer."""
    events = [(at, e) for at, e in enumerate(cluster.world.trace) if e.what in ("looking", "looked")]
    begins, ends = ({e.detail["number"]: at for at, e in events if e.what == what} for what in ("looking", "looked"))
    for read in history.read_marks:
        for ps in models.ps if read.marks else ():
            found = {key: marks for key, marks in read.marks.items() if models.is_on(ps, key)}
            versions = models.of(ps, read.epoch)
            last = max(n for n, (at, _, _) in enumerate(versions) if at < begins[read.number])
            there = [m for n, (at, _, m) in enumerate(versions) if n >= last and at < ends[read.number]]
            wanted = [dict.fromkeys(found, 0) | model.marks() for model in there]
            if found not in wanted:
                yield f"{NAME} on ps:{ps}: read {_told(found)}, wanted one of {[_told(marks) for marks in wanted]}"


def _told(marks: dict[int, int]) -> dict[int, int]:
    return {key: n for key, n in sorted(marks.items()) if n}


def on_disk(cluster: Any, models: Models) -> Iterator[str]:
    """Each checkpoint has the rows and counts of the versions that it is of, each key once."""
    from tests.simulation.history import DIR

    storage = cluster.world.storage
    for name in candidates(storage, DIR):
        try:
            manifest = load(storage, DIR, name, verify=False)
        except CheckpointError:  # one that was never finished
            continue
        for ps, *found in _parts(storage, f"{DIR}/{name}", manifest, models.ps):
            model = models.saved(manifest, ps)
            stamps = {key: stamp for key, (_, stamp) in model.live().items()}
            all_wanted = model.marks(), stamps, model.counted
            for what, got, wanted in zip(("rows", "stamps", "counts"), found, all_wanted, strict=True):
                if got != wanted:
                    yield f"{name}: the {what} of {NAME} on ps:{ps} are {got}, wanted {wanted}"


def _parts(storage: Any, folder: str, manifest: Manifest, tasks: list[int]) -> Iterator[tuple[int, Any, Any, Any]]:
    """Of each ps the marks and the stamps of the rows, and the counts of the keys without one."""
    for ps, part, other in zip(
        tasks, manifest.variable(NAME).parts, manifest.variable(f"{NAME}@counted").parts, strict=True
    ):
        path = f"{folder}/{manifest.shards[part.shard].file.file}"
        header, tensors = read_header(storage, path), {}
        for name, of, slot in [
            *((NAME, part, slot) for slot in (None, "keys", "stamps")), ("@", other, None), ("@", other, "keys"),
        ]:  # fmt: skip
            saved = manifest.variable(NAME if name == NAME else f"{NAME}@counted")
            tensors[name, slot] = read_tensor_rows(storage, path, saved.tensor(of, slot), 0, of.rows, header)
        keys = tensors[NAME, "keys"]
        marks = np.round(tensors[NAME, None] - first_of(keys))[:, 0].astype(int).tolist()
        assert len(set(keys.tolist())) == len(keys), f"{path}: a key is twice among {keys.tolist()}"
        counted = dict(zip(tensors["@", "keys"].tolist(), tensors["@", None].tolist(), strict=True))
        stamps = dict(zip(keys.tolist(), tensors[NAME, "stamps"].tolist(), strict=True))
        yield ps, dict(zip(keys.tolist(), marks, strict=True)), stamps, counted
