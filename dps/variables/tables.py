"""Keyed tables as sessions and ps share them: their description in a plan, the codes of keys, and which ps has which.

A key is any int64. Its *code* is the key mixed by a bijection of 64 bits, so that codes are spread evenly whatever keys
a program has. The range of codes is cut into 4,096 slices, and each ps has a contiguous range of them. So keys that are
sorted by their codes lie in the order of the ps, and any number of ps agrees on who has a key.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.errors import ConfigError
from dps.process.record import as_dict, record, replace
from dps.transport.dtypes import FLOATS, dtype_of, wire_name
from dps.transport.wire import Array

if TYPE_CHECKING:
    from dps.variables.tree import Variable

SLICES, SLICE_BITS = 4096, 52
"""How many slices there are, and how many bits of a code are below the number of its slice."""
MOST_CAPACITY = (1 << 32) - 2
"""The most rows of a table; row numbers on a ps have 32 bits."""
MOST_DIM = 1 << 20
MOST_ADMIT = 255
"""Counts on a ps have 8 bits."""
MOST_STEPS = 1 << 48

U = np.uint64
MIX1, MIX2 = U(0xBF58476D1CE4E5B9), U(0x94D049BB133111EB)
BACK1, BACK2 = U(pow(int(MIX1), -1, 1 << 64)), U(pow(int(MIX2), -1, 1 << 64))
"""Their inverses modulo 2**64."""


def codes_of(keys: Array) -> Array:
    """The codes of keys, int64 (n,), in new memory: SplitMix64's finaliser (Steele, Lea and Flood 2014)."""
    given = keys.view(np.uint64)
    x = given >> U(30)
    x ^= given
    x *= MIX1
    shifted = x >> U(27)
    x ^= shifted
    x *= MIX2
    x ^= np.right_shift(x, U(31), out=shifted)
    codes: Array = x.view(np.int64)
    return codes


def keys_of(codes: Array) -> Array:
    """The keys of codes, int64 (n,), in new memory: the inverse of `codes_of`."""
    x = codes.view(np.uint64)
    x = x ^ (x >> U(31)) ^ (x >> U(62))
    x *= BACK2
    x ^= (x >> U(27)) ^ (x >> U(54))
    x *= BACK1
    x ^= (x >> U(30)) ^ (x >> U(60))
    keys: Array = x.view(np.int64)
    return keys


@record
class TableSpec:
    """A keyed table, as clients see it. `optimizer` and `init` are wire forms; `ps`: the tasks that have its rows.
    `admit`: the pushes of a key after which it has a row. `expire_steps`: the steps after its last push after which it
    has none; 0: it never expires."""

    name: str
    dim: int
    dtype: str
    capacity: int
    optimizer: dict[str, Any]
    init: dict[str, Any]
    ps: tuple[int, ...]
    admit: int = 1
    expire_steps: int = 0


@record
class TablePart:
    """The rows of a keyed table on one ps: those whose codes are in the slices from `first` up to `end` without it."""

    index: int
    """After the indices of the plan's parts."""
    variable: int
    """The index of the table among gradients: after those of the plan's variables."""
    spec: TableSpec
    number: int
    """The place of its ps among those of the table."""
    first: int
    end: int

    @property
    def ps(self) -> int:
        return self.spec.ps[self.number]

    @property
    def name(self) -> str:
        return f"{self.spec.name}/part_{self.number}" if len(self.spec.ps) > 1 else self.spec.name

    @property
    def row_size(self) -> int:
        """Elements of one row."""
        return self.spec.dim

    @property
    def rows(self) -> int:
        """The most rows here: the ps's share of the capacity and a tenth more, since keys are spread unevenly. Of a
        small share six standard deviations more."""
        share = self.spec.capacity * (self.end - self.first) / SLICES
        return min(self.spec.capacity, math.ceil(share + max(share / 10, 6 * math.sqrt(share))))

    @property
    def lowest(self) -> int:
        """The lowest code."""
        return (self.first - SLICES // 2) << SLICE_BITS

    @property
    def highest(self) -> int:
        """The highest code."""
        return ((self.end - SLICES // 2) << SLICE_BITS) - 1


def parts_of_table(spec: TableSpec, index: int, variable: int) -> tuple[TablePart, ...]:
    """A table's parts, one for each of its ps. `index`: of the first."""
    cuts = [number * SLICES // len(spec.ps) for number in range(len(spec.ps) + 1)]
    return tuple(
        TablePart(index + n, variable, spec, n, first, end) for n, (first, end) in enumerate(itertools.pairwise(cuts))
    )


def range_of_part(part: TablePart, codes: Array) -> tuple[int, int]:
    """First and last position of a part's codes among sorted ones."""
    return int(np.searchsorted(codes, part.lowest)), int(np.searchsorted(codes, part.highest, side="right"))


def positions_of_part(part: TablePart, codes: Array) -> Array:
    """The positions of a part's codes among any, int64 (n,)."""
    found: Array = np.flatnonzero((codes >= part.lowest) & (codes <= part.highest))
    return found


def key_numbers(name: str, keys: Array) -> Array:
    """Keys that a caller gave, integers of any shape, as int64 (n,), perhaps in the caller's memory. ValueError for
    numbers beyond int64."""
    flat = keys.reshape(-1)
    if flat.dtype == np.uint64 and flat.size and int(flat.max()) >> 63:
        raise ValueError(f"{name}: the key {flat.max()} is no int64; pass keys.view(np.int64)")
    numbers: Array = flat.astype(np.int64, copy=False)
    return numbers


# -- in programs ----------------------------------------------------------------------------------------------


def checked_settings(variable: Variable) -> dict[str, Any]:
    """The settings of a variable with `keys`, `dim` or `capacity`, as they are kept. Raises ConfigError."""
    if variable.keys != "int64":
        raise ConfigError(
            f"dps.Variable: keys is {variable.keys!r:.100}, wanted keys='int64'; hash other ids, such as strings, to "
            "int64"
        )
    others = {"a value": variable.value, "shape": variable.shape, "aggregation": variable.aggregation}
    if given := [name for name, value in others.items() if value is not None]:
        raise ConfigError(f"dps.Variable: got keys and {given[0]}; a keyed table has dim, capacity, dtype and init")
    if not variable.trainable or variable.synchronization != "on_write":
        raise ConfigError("dps.Variable: a keyed table is trained, with one value for all; leave out the other setting")
    dim = _whole("dim", variable.dim, MOST_DIM, 16)
    capacity = _whole("capacity", variable.capacity, MOST_CAPACITY, 1_000_000)
    admit, steps = _whole("admit", variable.admit, MOST_ADMIT, 2), variable.expire_steps
    steps = None if steps is None else _whole("expire_steps", steps, MOST_STEPS, 100_000)
    if variable.init is None:
        raise ConfigError(f"dps.Variable: keys without init; say what a new row begins with, as {_TRY}")
    dtype = _dtype(variable.dtype)
    _check_init(variable.init, "dps.Variable", dim, dtype.name)
    return {"dim": dim, "capacity": capacity, "dtype": dtype, "admit": admit, "expire_steps": steps}


_TRY = "init=dps.init.Normal(0.01)"


def _whole(name: str, value: Any, most: int, example: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= most:
        raise ConfigError(
            f"dps.Variable: {name} is {value!r:.100}, wanted a whole number from 1 to {most}, as {name}={example}"
        )
    return int(value)


def _dtype(dtype: Any) -> np.dtype[Any]:
    try:
        found = dtype_of(dtype) if isinstance(dtype, str) else np.dtype("float32" if dtype is None else dtype)
    except (TypeError, ValueError):
        found = np.dtype(object)
    if found == np.dtype(object) or wire_name(found) not in FLOATS:
        raise ConfigError(f"dps.Variable: a keyed table has dtype {dtype!r:.100}, wanted one of floats, as 'float32'")
    return found


def _check_init(init: Any, name: str, dim: int, dtype: str) -> None:
    """Raise ConfigError unless a row can begin with these values."""
    from dps.training import initializers

    checked = initializers.checked(init, name, (1, dim), dtype)
    if isinstance(checked, initializers.FromFile) or checked.drawn((1, 1)) != checked.drawn((7, 1)):
        raise ConfigError(
            f"{name}: {init!r:.100} needs the number of rows, which a keyed table does not have ahead; try {_TRY}"
        )


# -- in plans -------------------------------------------------------------------------------------------------


NUMBERS = (
    ("dim", 1, MOST_DIM), ("capacity", 1, MOST_CAPACITY), ("admit", 1, MOST_ADMIT), ("expire_steps", 0, MOST_STEPS),
)  # fmt: skip
"""The fields that are whole numbers, with the least and the most."""


def write(tables: Sequence[TableSpec]) -> list[Any]:
    """Tables as they travel in a plan."""
    return [[*as_dict(replace(spec, ps=[*spec.ps])).values()] for spec in tables]


def read(data: Mapping[str, Any], ps: Sequence[int]) -> tuple[TableSpec, ...]:
    """Decode the tables of a plan with these ps. Raises ValueError, TypeError or LookupError for inconsistent ones."""
    names, found = set(data["names"]), list[TableSpec]()
    for name, dim, dtype, capacity, optimizer, init, tasks, admit, expire_steps in data.get("tables", ()):
        spec = TableSpec(name, dim, dtype, capacity, optimizer, init, tuple(tasks), admit, expire_steps)
        if type(spec.name) is not str or not spec.name or spec.name in names:
            raise ValueError(f"got {spec.name!r:.100} as the name of a table")
        names.add(spec.name)
        found.append(_checked(spec, ps))
    return tuple(found)


def _checked(spec: TableSpec, ps: Sequence[int]) -> TableSpec:
    from dps.training import initializers

    for field, least, most in NUMBERS:
        size = getattr(spec, field)
        if type(size) is not int or not least <= size <= most:
            raise ValueError(f"got the table {spec.name:.100} with {field} {size!r:.30}")
    if not spec.ps or len(set(spec.ps)) != len(spec.ps) or not set(spec.ps) <= set(ps) or len(spec.ps) > SLICES:
        raise ValueError(f"the table {spec.name:.100} is on the ps {spec.ps!r:.100}, of {list(ps)[:20]}")
    dtype = wire_name(dtype_of(str(spec.dtype)))
    if dtype not in FLOATS or type(spec.optimizer) is not dict or type(spec.init) is not dict:
        raise ValueError(f"the table {spec.name:.100} has dtype {dtype} and optimizer {spec.optimizer!r:.100}")
    init = initializers.from_wire(spec.init)
    _check_init(init, spec.name, spec.dim, np.dtype(dtype).name)
    return replace(spec, dtype=dtype, init=init.to_wire())


def differs(mine: Iterable[TableSpec], theirs: Iterable[TableSpec]) -> str:
    """The first difference between the tables of two plans, as a sentence; "" if there is none."""
    by_name = {spec.name: spec for spec in theirs}
    own = list(mine)
    if {spec.name for spec in own} != by_name.keys():
        return f"its keyed tables are {[spec.name for spec in own]}, the run's are {list(by_name)}"
    for spec in own:
        for field in ("dim", "dtype", "capacity", "optimizer", "init", "admit", "expire_steps"):
            one, other = getattr(spec, field), getattr(by_name[spec.name], field)
            if one != other:
                return f"its {spec.name} has {field} {one!r}, the run's has {other!r}"
    return ""


def check_update(name: str, tables: Sequence[TableSpec], update: Mapping[str, Any]) -> None:
    """Raise ConfigError for keyed tables in an update mode that does not take them. `update`: its wire form."""
    if tables and update.get("mode") == "local":
        raise ConfigError(
            f"{name}: {tables[0].name} is a keyed table, of which workers have no copy; use 'async', 'bounded' or "
            "'sync' instead of local mode"
        )
    if tables and update.get("compensation"):
        raise ConfigError(
            f"{name}: {tables[0].name} is a keyed table, of which no earlier values are kept; use dps.Async() without "
            "compensation"
        )
