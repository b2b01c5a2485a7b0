"""A checkpoint's manifest: its step, epoch and shards, and the position of each part of each variable.

A manifest does not depend on the number of ps tasks or parts at a restore; `restore.py` splits again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dps.checkpoint.files import folder_name, seal, shard_file_name, tensor_name, unseal_lines
from dps.checkpoint.shard import ShardFile
from dps.errors import CheckpointError
from dps.process import config
from dps.process.record import record

FORMAT_VERSION = 1
_put = object.__setattr__
_VARIABLES = "variables"
_NAME, _AFTER_NAME = '{"name": ', ', "dtype": '


# Dataclasses with slots, not records: there may be 100,000 parts, and a manifest computes one of its fields.
@dataclass(frozen=True, slots=True)
class SavedPart:
    """Rows `row0` to `row0 + rows` of a variable, in shard file number `shard`; `t` optimizer steps were applied.

    A variable that is not split has one part; a scalar is one row.
    """

    index: int
    row0: int
    rows: int
    shard: int
    t: int = 0

    def __post_init__(self) -> None:
        for name in ("index", "row0", "rows", "shard", "t"):
            _check_count("{} of a part", getattr(self, name), name)


@dataclass(frozen=True, slots=True)
class SavedVariable:
    """One logical variable: `shape` is the whole variable's, `optimizer` its wire form or None.

    The parts are in order and together hold every row once. Raises ValueError otherwise.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[SavedPart, ...]
    optimizer: Mapping[str, Any] | None = None
    slots: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for size in self.shape:
            _check_count("a size in the shape of {!r}", size, self.name)
        row = 0
        for index, part in enumerate(self.parts):
            if part.index != index or part.row0 != row:
                raise ValueError(
                    f"part {part.index} of {self.name!r} starts at row {part.row0}; wanted part {index} at row {row}"
                )
            row += part.rows
        if not self.parts or row != self.rows:
            raise ValueError(f"the {len(self.parts)} parts of {self.name!r} hold {row} rows; its shape has {self.rows}")

    def named(self, name: str) -> SavedVariable:
        """The same variable under another name, without repeating its checks, because there may be very many."""
        made = object.__new__(SavedVariable)
        _put(made, "name", name)
        for field_name in ("dtype", "shape", "parts", "optimizer", "slots"):
            _put(made, field_name, getattr(self, field_name))
        return made

    @property
    def rows(self) -> int:
        """Rows of the whole variable; a scalar has one."""
        return self.shape[0] if self.shape else 1

    def tensor(self, part: SavedPart, slot: str | None = None) -> str:
        """The name in its shard file of a part's values or of one of its slots."""
        return tensor_name(self.name, part.index, len(self.parts), slot)


@record
class SavedShard:
    """A shard's file and the version counter that its values had."""

    file: ShardFile
    version: int

    def __post_init__(self) -> None:
        _check_count("the version of a shard", self.version)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The whole checkpoint. `settings` is free-form and JSON-able (tuples in it come back as lists).

    `step` is the global step, `epoch` the run epoch in which it was taken. In async mode each shard is copied at its
    own version, `shards[i].version`; `even` says whether all shards nevertheless hold the same pushes. `saved_at`:
    seconds since 1970 on the chief's clock, for people; 0.0 if not known. Manifests that differ only in `saved_at` are
    equal. `revision`: see `folder_name`. `tied`: other names of variables, each with the name. Raises ValueError if the
    parts do not match.
    """

    step: int
    epoch: int
    shards: tuple[SavedShard, ...]
    variables: tuple[SavedVariable, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    saved_at: float = field(default=0.0, compare=False)
    even: bool = False
    revision: int = 0
    tied: Mapping[str, str] = field(default_factory=dict)
    _by_name: dict[str, SavedVariable] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_count("step", self.step)
        _check_count("epoch", self.epoch)
        _check_count("revision", self.revision)
        for index, shard in enumerate(self.shards):
            wanted = shard_file_name(index, len(self.shards))
            if shard.file.file != wanted:
                raise ValueError(f"shard {index} is in file {shard.file.file!r}; wanted {wanted!r}")
        object.__setattr__(self, "_by_name", {v.name: v for v in reversed(self.variables)})
        for variable in self.variables:
            for part in variable.parts:
                if part.shard >= len(self.shards):
                    raise ValueError(f"{variable.name!r} has a part in shard {part.shard} of {len(self.shards)}")
        if len(self._by_name) < len(self.variables) or _may_clash(self.variables):
            self._check_names()
        for other, name in self.tied.items():
            if other in self._by_name or name not in self._by_name:
                raise ValueError(f"{other!r} cannot be another name of {name!r}")
        self._by_name.update({other: self._by_name[name] for other, name in self.tied.items()})

    def _check_names(self) -> None:
        seen: set[str] = set()
        for variable in self.variables:
            for part in variable.parts:
                for slot in (None, *variable.slots):
                    name = variable.tensor(part, slot)
                    if name in seen:
                        raise ValueError(f"two tensors would be called {name!r}; rename a variable")
                    seen.add(name)

    @property
    def name(self) -> str:
        """The name of the checkpoint's folder."""
        return folder_name(self.step, self.epoch, self.revision)

    def variable(self, name: str) -> SavedVariable:
        """The variable of that name. Raises CheckpointError, with the saved names, if it was not saved."""
        variable = self._by_name.get(name)
        if variable is not None:
            return variable
        known = ", ".join(variable.name for variable in self.variables[:20]) or "none"
        raise CheckpointError(
            f"checkpoint {self.name} holds no variable {name!r}, it holds {known}; "
            "use the model that was saved, or another checkpoint_dir"
        )


@config.building()
def encode(manifest: Manifest) -> bytes:
    """The bytes of manifest.json. Raises TypeError if settings or an optimizer are not JSON-able."""
    return seal(
        {
            "format_version": FORMAT_VERSION,
            "step": int(manifest.step),
            "epoch": int(manifest.epoch),
            "revision": int(manifest.revision),
            "saved_at": float(manifest.saved_at),
            "settings": dict(manifest.settings),
            "even": bool(manifest.even),
            "shards": [
                {
                    "file": shard.file.file,
                    "nbytes": int(shard.file.nbytes),
                    "digest": shard.file.digest,
                    "version": int(shard.version),
                }
                for shard in manifest.shards
            ],
            **({"tied": dict(manifest.tied)} if manifest.tied else {}),
        },
        _VARIABLES,
        _variables_to_json(manifest.variables),
    )


@config.building()
def decode(data: bytes | memoryview, path: str) -> Manifest:
    """The manifest that was read from `path`. Raises CheckpointError, with the reason, if it is unusable."""
    body, variables = unseal_lines(data, path, FORMAT_VERSION, _VARIABLES)
    with _telling(path):
        return Manifest(
            step=body["step"],
            epoch=body["epoch"],
            shards=_shards_from_json(body),
            variables=tuple(_variables_from_json(variables)),
            settings=dict(body["settings"]),
            saved_at=float(body.get("saved_at", 0.0)),  # older versions did not write it
            even=body.get("even") is True,  # nor this
            revision=body.get("revision", 0),  # nor this
            tied={_text(other): _text(name) for other, name in body.get("tied", {}).items()},
        )


def decode_shards(data: bytes | memoryview, path: str) -> tuple[str, tuple[SavedShard, ...]]:
    """The checkpoint's name and its shards. Like `decode`, but it checks only the checksum of the variables."""
    body, _ = unseal_lines(data, path, FORMAT_VERSION, _VARIABLES)
    with _telling(path):
        numbers = body["step"], body["epoch"], body.get("revision", 0)
        for name, number in zip(("step", "epoch", "revision"), numbers, strict=True):
            _check_count(name, number)
        return folder_name(*numbers), _shards_from_json(body)


@contextmanager
def _telling(path: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{path} is not a manifest ({why}); use an older checkpoint") from error


def _shards_from_json(body: Mapping[str, Any]) -> tuple[SavedShard, ...]:
    return tuple(
        SavedShard(ShardFile(_text(shard["file"]), shard["nbytes"], _text(shard["digest"])), shard["version"])
        for shard in body["shards"]
    )


def _may_clash(variables: Sequence[SavedVariable]) -> bool:
    """Whether tensors of two variables could have the same name, although the variables' names differ."""
    names = "\n".join([variable.name for variable in variables])
    return "@" in names or "/part_" in names or any(len(set(slots)) < len(slots) for slots in _slots(variables))


def _slots(variables: Sequence[SavedVariable]) -> set[tuple[str, ...]]:
    return {variable.slots for variable in variables}


def _variables_to_json(variables: Sequence[SavedVariable]) -> Iterator[str]:
    """Each variable as one line. Optimizers and parts that are the same objects are converted only once."""
    known: dict[tuple[Any, ...], str] = {}
    for variable in variables:
        key = variable.dtype, variable.shape, id(variable.optimizer), variable.slots, id(variable.parts)
        text = known.get(key)
        if text is None:
            text = known[key] = json.dumps(_but_its_name(variable)).removeprefix("{")
        yield f'{{"name": {json.encoder.encode_basestring_ascii(variable.name)}, {text}'


def _but_its_name(variable: SavedVariable) -> dict[str, Any]:
    return {
        "dtype": variable.dtype,
        "shape": [int(size) for size in variable.shape],
        "optimizer": None if variable.optimizer is None else dict(variable.optimizer),
        "slots": list(variable.slots),
        "t": [int(part.t) for part in variable.parts],
        "parts": [[int(part.index), int(part.row0), int(part.rows), int(part.shard)] for part in variable.parts],
    }


def _variables_from_json(lines: Sequence[str]) -> Iterator[SavedVariable]:
    """Reads variables from lines. Equal texts after the name are read once and become one shared object."""
    known: dict[str, SavedVariable] = {}
    for line in lines:
        name, _, rest = line.removeprefix(_NAME).partition(_AFTER_NAME)  # names have no unescaped quotes
        like = known.get(rest)
        if like is None or not line.startswith(_NAME):
            known[rest] = like = _variable(json.loads(line))
            yield like
            continue
        plain = "\\" not in name and name.count('"') == 2 and name[0] == name[-1] == '"'
        yield like.named(name[1:-1] if plain else _text(json.loads(name)))


def _variable(value: Mapping[str, Any]) -> SavedVariable:
    optimizer = value["optimizer"]
    return SavedVariable(
        name=_text(value["name"]),
        dtype=_text(value["dtype"]),
        shape=tuple(value["shape"]),
        parts=tuple(
            SavedPart(index, row0, rows, shard, t)
            for (index, row0, rows, shard), t in zip(value["parts"], value["t"], strict=True)
        ),
        optimizer=None if optimizer is None else dict(optimizer),
        slots=tuple(_text(slot) for slot in value["slots"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"wanted text, got {value!r}")
    return value


def _check_count(what: str, value: Any, whose: str = "") -> None:
    """Check a count: a whole number from 0, also numpy's, but not true or 1.0. `what` has a placeholder for `whose`."""
    if type(value) is int and value >= 0:
        return
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
        raise ValueError(f"{what.format(whose)} is {value!r}; wanted a whole number from 0")
