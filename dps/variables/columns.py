"""Encodes a plan of many variables: columns of numbers as bytes, and tables of the values that many share.

The columns: `ps`: the ps tasks. `names`: of the variables. `kinds`: the distinct [shape, dtype, optimizer, sparse];
`kind`: each variable's index in `kinds`. `cuts`: [variable, rows of each part] for split variables. `places`: the
distinct [ps, device]; `placed`: each part's index in `places`, variable after variable. `tied`, where there are
any: [other name, name] of tied variables. `made`, where there are any: [variable, initializer] of variables whose first
values the ps make.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from dps.process import config
from dps.transport.dtypes import FLOATS, dtype_of, wire_name
from dps.transport.wire import DTYPES, MAX_DIMS


class VariableSpec(NamedTuple):
    """A logical variable, as clients see it. `optimizer` is its wire form; None: it is never updated."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    optimizer: dict[str, Any] | None
    sparse: bool = False
    init: dict[str, Any] | None = None
    """The wire form of the initializer by which the ps make its first values; None: a session sends them."""


class Part(NamedTuple):
    """Rows `row0` to `row0 + rows` of a variable, on one ps; the only part of an unsplit variable has all."""

    index: int  # type: ignore[assignment]  # a tuple's own `index` is not wanted
    variable: int
    name: str
    shape: tuple[int, ...]
    row0: int
    ps: int
    device: str = ""
    """The device on its ps: "CPU:0", "GPU:1", or "" for the ps's default."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def row_size(self) -> int:
        """Elements of one row."""
        return math.prod(self.shape[1:])


_K = TypeVar("_K")
_T = TypeVar("_T")
_NUMBER = np.dtype("<u4")
MAX_ELEMENTS = 1 << 48
"""The most elements of one variable; more are taken for an error."""
MORE_CHARACTERS, MAX_CHARACTERS = 12, 1 << 26
"""Bounds on the names of parts, which are made here: characters of a part's name after its variable's, and of all names
together. Without them a message with one long name and many parts could exhaust memory."""


class PerObject(Generic[_K, _T]):
    """A function's results, computed once for each object: a model's variables share one or two optimizers."""

    def __init__(self, function: Callable[[_K], _T]) -> None:
        self._function = function
        self._known: dict[int, tuple[_K, _T]] = {}

    def of(self, thing: _K) -> _T:
        """The function's result for this object."""
        found = self._known.get(id(thing))
        if found is None:  # the object is kept alive, so that its id is not reused
            found = self._known[id(thing)] = thing, self._function(thing)
        return found[1]


def as_json(optimizer: dict[str, Any] | None) -> str:
    """An optimizer's wire form as text; equal ones have equal texts. Raises TypeError if it is not JSON-able."""
    return json.dumps(optimizer, sort_keys=True)


def pack(numbers: Sequence[int]) -> bytes:
    """Whole numbers from 0, each in four bytes."""
    return np.array(numbers, _NUMBER).tobytes()


def unpack(data: Any, count: int, below: int, what: str) -> list[int]:
    """The numbers in a column. Raises ValueError unless it has `count` numbers, all smaller than `below`."""
    if type(data) is not bytes or len(data) != count * _NUMBER.itemsize:
        got = f"{len(data)} bytes" if type(data) is bytes else f"a {type(data).__name__}"
        raise ValueError(f"the column of {what} is {got}, wanted {count * _NUMBER.itemsize} bytes")
    numbers = np.frombuffer(data, _NUMBER)
    if count and int(numbers.max()) >= below:
        raise ValueError(f"the column of {what} has number {numbers.max()}, wanted less than {below}")
    found: list[int] = numbers.tolist()
    return found


Parts = tuple[tuple[VariableSpec, ...], tuple[Part, ...], tuple[int, ...]]
"""Variables, parts and ps of a plan."""


@config.building()
def write(variables: Sequence[VariableSpec], all_parts: Sequence[Part], ps: Sequence[int]) -> dict[str, Any]:
    """Encode a plan as columns. The parts are given variable after variable, in row order."""
    written = PerObject(as_json)
    kinds: dict[tuple[tuple[int, ...], str, str, bool], int] = {}
    kind = [kinds.setdefault((v.shape, v.dtype, written.of(v.optimizer), v.sparse), len(kinds)) for v in variables]
    places: dict[tuple[int, str], int] = {}
    placed = [places.setdefault((part.ps, part.device), len(places)) for part in all_parts]
    cuts: dict[int, list[int]] = {}
    if len(all_parts) > len(variables):
        for part in all_parts:
            cuts.setdefault(part.variable, []).append(part.shape[0] if part.shape else 1)
    made = [[index, v.init] for index, v in enumerate(variables) if v.init is not None]
    columns: dict[str, Any] = {
        "ps": list(ps),
        "names": [v.name for v in variables],
        "kinds": [[list(shape), dtype, json.loads(text), sparse] for shape, dtype, text, sparse in kinds],
        "kind": pack(kind),
        "cuts": [[variable, rows] for variable, rows in cuts.items() if len(rows) > 1],
        "places": [list(place) for place in places],
        "placed": pack(placed),
    }
    return {**columns, "made": made} if made else columns


@config.building()
def read(data: Mapping[str, Any]) -> Parts:
    """Decode variables, parts and ps. Raises LookupError, TypeError, ValueError, OverflowError or RecursionError for
    inconsistent columns."""
    ps, names, cuts = data["ps"], data["names"], data["cuts"]
    if set(map(type, ps)) - {int} or set(map(type, names)) - {str} or type(names) is not list:
        raise ValueError("got a ps or a name of a wrong type, wanted numbers for ps and texts for names")
    if len(set(ps)) != len(ps) or len(set(names)) != len(names):
        raise ValueError("got a ps or a name twice")
    kinds = [_kind(*entry) for entry in data["kinds"]]
    kind = unpack(data["kind"], len(names), len(kinds), "kinds")
    variables = tuple([VariableSpec(name, *kinds[k]) for name, k in zip(names, kind, strict=True)])
    if "made" in data:
        variables = _made(variables, data["made"])
    rows = _rows_of_cut(variables, cuts)
    known = frozenset(ps)
    places = [_place(known, *entry) for entry in data["places"]]
    placed = unpack(data["placed"], len(names) + sum(len(r) - 1 for r in rows.values()), len(places), "places")
    parts: list[Part] = []
    for index, spec in enumerate(variables):
        if index not in rows:
            parts.append(Part(len(parts), index, spec.name, spec.shape, 0, *places[placed[len(parts)]]))
            continue
        row0 = 0
        for i, count in enumerate(rows[index]):
            name, shape = f"{spec.name}/part_{i}", (count, *spec.shape[1:])
            parts.append(Part(len(parts), index, name, shape, row0, *places[placed[len(parts)]]))
            row0 += count
    return variables, tuple(parts), tuple(ps)


def tied(data: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Decode the other names of variables, each with the variable's name. Raises as `read`, which checks the names."""
    names = set(data["names"])
    found = tuple([(other, name) for other, name in data.get("tied", ())])
    others = {other for other, _ in found}
    if len(others) != len(found) or others & names or any(type(o) is not str or n not in names for o, n in found):
        raise ValueError(f"got {found!r:.100} as other names of variables")
    return found


def _kind(shape: Any, dtype: Any, optimizer: Any, sparse: Any) -> tuple[tuple[int, ...], str, Any, bool]:
    """Check the common properties of variables of one kind."""
    if type(shape) is not list or len(shape) > MAX_DIMS or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"got {shape!r:.100} as a shape")
    if math.prod(n or 1 for n in shape) >= MAX_ELEMENTS:
        raise ValueError(f"shape {shape!r:.100} has too many elements")
    kept = wire_name(dtype_of(str(dtype)))
    if kept not in DTYPES or not (optimizer is None or (type(optimizer) is dict and kept in FLOATS)):
        raise ValueError(f"a variable has dtype {kept} and optimizer {optimizer!r:.100}")
    as_json(optimizer)
    return tuple(shape), kept, optimizer, bool(sparse)


def _made(variables: Sequence[VariableSpec], made: Any) -> tuple[VariableSpec, ...]:
    """The variables with their initializers, which are checked."""
    from dps.training.initializers import checked, from_wire  # here: most plans have none

    found = list(variables)
    for index, wire in made:
        if type(index) is not int or not 0 <= index < len(found) or found[index].init is not None:
            raise ValueError(f"got an initializer of variable {index!r:.100}, which is not there or has one")
        spec = found[index]
        init = checked(from_wire(wire), spec.name, spec.shape, np.dtype(spec.dtype).name)
        found[index] = spec._replace(init=init.to_wire())
    return tuple(found)


def _place(ps: Set[int], task: Any, device: Any) -> tuple[int, str]:
    """Check a ps and one of its devices."""
    if type(task) is not int or task not in ps:
        raise ValueError(f"parts are on ps {task!r:.100}, of {sorted(ps)[:20]}")
    if type(device) is not str or (device and not re.fullmatch(r"(CPU|GPU):[0-9]{1,4}", device)):
        raise ValueError(f"parts are on {device!r:.100}, wanted the name of a device")
    return task, device


def _rows_of_cut(variables: Sequence[VariableSpec], cuts: Any) -> dict[int, list[int]]:
    """Check the rows of each part of the split variables."""
    found: dict[int, list[int]] = {}
    characters = 0
    for index, rows in cuts:
        if type(index) is not int or not 0 <= index < len(variables) or index in found:
            raise ValueError(f"parts belong to variable {index!r:.100}, which is not there")
        spec = variables[index]
        if type(rows) is not list or len(rows) < 2 or any(type(n) is not int or n < 0 for n in rows):
            raise ValueError(f"got {rows!r:.100} as the rows of parts")
        if not spec.shape or sum(rows) != spec.shape[0]:
            raise ValueError(f"the rows of the parts of {spec.name:.100} are not those of the variable")
        characters += (len(spec.name) + MORE_CHARACTERS) * len(rows)
        if characters > MAX_CHARACTERS:
            raise ValueError(f"the names of {len(rows)} parts of {spec.name:.100} are too long")
        found[index] = rows
    return found
