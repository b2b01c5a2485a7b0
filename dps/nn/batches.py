"""Makes batches of the inputs of fit, evaluate and predict: arrays, datasets, or any iterable of batches."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from dps.errors import ConfigError, DataError
from dps.process.telemetry import timed_read
from dps.strategy.values import array_of
from dps.training.definition import whole_number
from dps.transport.current import runtime


class ModelBatch(NamedTuple):
    """A batch: the arrays of the model's inputs in their order, and the targets; None for a prediction."""

    xs: list[Any]
    y: Any

    @property
    def size(self) -> int:
        """How many examples it has."""
        return len(self.xs[0])

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of one example of each input."""
        return [x.shape[1:] for x in self.xs]


_END = object()
"""Stands for the end of an iterable. A batch of None is a mistake, and no end."""


class Batches:
    """The batches of a call of the model. `what` names it in messages: "fit", "validation_data" and so on."""

    def __init__(self, what: str, x: Any, y: Any = None, batch_size: int | None = None, targets: bool = True) -> None:
        """`targets`: whether there must be a y. Raises ConfigError and DataError."""
        self.what, self._targets, self._names = what, targets, _names(x)
        self._source: Iterable[Any] | None = None
        self._whole: ModelBatch | None = None
        self._pass: Iterator[Any] | None = None
        """Batches of an iterator, which is read once over all epochs."""
        self._begun: tuple[ModelBatch, Iterator[Any]] | None = None
        """The first batch, and a pass that begins with it: of a dataset, each pass is another one."""
        if y is None and targets and _is_arrays(x, targets):
            raise DataError(f"{what}: got x without y; wanted the targets, too, or batches (x, y)")
        if y is not None or _is_arrays(x, targets):
            self._whole = self._batch((x, y) if targets else x, f"{what}: x")
            self._size = whole_number(f"{what}: batch_size: got ", 32 if batch_size is None else batch_size, 1)
            if not self._whole.size:
                raise DataError(f"{what}: got no examples")
        elif not hasattr(x, "__iter__"):
            raise ConfigError(f"{what}: got {type(x).__name__}, wanted arrays, or an iterable of batches (x, y)")
        elif batch_size is not None:
            raise ConfigError(f"{what}: got batch_size={batch_size!r} with batches that are made already; leave it out")
        else:
            self._source = x
            self._pass = x if isinstance(x, Iterator) else None

    @property
    def steps(self) -> int | None:
        """How many batches an epoch has; None where it is not known before its end."""
        if self._whole is not None:
            return -(-self._whole.size // self._size)
        return len(self._source) if hasattr(self._source, "__len__") else None  # type: ignore[arg-type]

    @property
    def names(self) -> list[str] | None:
        """The names of the inputs, where they come as a dict."""
        return self._names

    def split_validation(self, share: Any) -> Batches:
        """The last examples of arrays, as Keras takes them for `validation_split`; they leave this object. Raises
        ConfigError."""
        said = "fit: validation_split"
        if isinstance(share, bool) or not hasattr(share, "__float__") or not 0 < float(share) < 1:
            raise ConfigError(f"{said}: got {share!r:.40}, wanted a share between 0 and 1, such as 0.2")
        if self._whole is None:
            raise ConfigError(f"{said}: only arrays can be split; give a dataset's batches as validation_data")
        xs, y, size = self._whole.xs, self._whole.y, self._whole.size
        kept = int(size * (1 - float(share)))
        if not 0 < kept < size:
            raise ConfigError(f"{said}: {share} of {size} examples leaves none to train on or to validate with")
        back = copy.copy(self)
        back.what, back._whole = "validation_split", ModelBatch([x[kept:] for x in xs], y[kept:])
        self._whole = ModelBatch([x[:kept] for x in xs], y[:kept])
        return back

    def continue_pass(self) -> None:
        """Epochs are of a number of batches: those of an iterable go on where the last one ended."""
        if self._source is not None and self._pass is None:
            self._pass = iter(self._source)

    def peek_batch(self) -> ModelBatch:
        """The first batch, to build a model for. It is not lost."""
        if self._whole is not None:
            return self._whole
        if self._begun is None:
            batches = self._open_source()
            found = self._next_batch(batches)
            if found is _END:
                raise DataError(f"{self.what}: got no batches")
            self._begun = self._batch(found, f"{self.what}: the first batch"), _after(found, batches)
        return self._begun[0]

    def epoch(self, number: int = 0, seed: int | None = None) -> Iterator[ModelBatch]:
        """One pass. `seed`: shuffles arrays, in another order in each epoch; None: in their order."""
        if self._whole is not None:
            yield from self._cut_batches(self._whole, number, seed)
            return
        batches = self._open_source() if self._begun is None else self._begun[1]
        if self._pass is not None:
            self._pass = batches
        self._begun, index = None, 0
        while (found := self._next_batch(batches)) is not _END:
            index += 1
            yield self._batch(found, f"{self.what}: batch {index}")

    def _next_batch(self, batches: Iterator[Any]) -> Any:
        """The next batch of an iterable; _END at its end. Its errors say whose data it is."""
        with name_source(self.what):
            return timed_read(runtime().now, lambda: next(batches, _END))

    def _open_source(self) -> Iterator[Any]:
        assert self._source is not None
        return iter(self._source) if self._pass is None else self._pass

    def _cut_batches(self, whole: ModelBatch, number: int, seed: int | None) -> Iterator[ModelBatch]:
        order = None if seed is None else np.random.default_rng([seed, number]).permutation(whole.size)
        for start in range(0, whole.size, self._size):
            rows = slice(start, start + self._size) if order is None else order[start : start + self._size]
            yield ModelBatch([x[rows] for x in whole.xs], None if whole.y is None else whole.y[rows])

    def _batch(self, found: Any, where: str) -> ModelBatch:
        x, y = found, None
        if isinstance(found, tuple | list) and len(found) == 2 and self._targets:
            x, y = found
        elif self._targets:
            raise DataError(f"{where}: got {_describe_value(found)}, wanted (x, y)")
        elif isinstance(found, tuple) and len(found) == 2 and self._source is not None:
            x = found[0]  # a dataset of (x, y) that a model predicts for
        if isinstance(x, Mapping) and self._names is None:
            self._names = _names(x)
        xs = [_as_rows(_array(value, where)) for value in _values(x, self._names, where)]
        ys = [] if y is None else [_array(y, f"{where}: y")]
        sizes = [len(array) for array in (*xs, *ys)]
        if len(set(sizes)) > 1:
            raise DataError(f"{where} has arrays of {' and '.join(map(str, sizes))} examples, wanted as many in each")
        return ModelBatch(xs, ys[0] if ys else None)


@contextlib.contextmanager
def name_source(where: str) -> Iterator[None]:
    """A block whose DataError says where the data comes from."""
    try:
        yield
    except DataError as error:
        if str(error).startswith(where.partition(":")[0]):
            raise
        raise DataError(f"{where}: {error}") from error


def _after(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _is_arrays(x: Any, targets: bool) -> bool:
    """Whether this is the input itself, and no iterable of batches."""
    if hasattr(x, "shape"):
        return True
    if isinstance(x, Mapping):
        return True
    return not targets and isinstance(x, list | tuple) and bool(len(x)) and not isinstance(x[0], tuple | Mapping)


def _names(x: Any) -> list[str] | None:
    return list(x) if isinstance(x, Mapping) else None


def _values(x: Any, names: list[str] | None, where: str) -> list[Any]:
    """The inputs of a model in their order."""
    if isinstance(x, Mapping):
        if list(x) != names:
            raise DataError(f"{where} has the inputs {list(x)}, wanted {names}")
        return list(x.values())
    if isinstance(x, list | tuple) and len(x) and all(hasattr(value, "shape") and value.shape for value in x):
        return list(x)
    return [x]


def _array(value: Any, where: str) -> Any:
    try:
        array = array_of(value)
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None
    if not array.ndim or array.dtype.kind not in "fiub":
        raise DataError(
            f"{where}: got {_describe_value(value)}, wanted an array of numbers with an example in each row"
        )
    return array


def _as_rows(array: Any) -> Any:
    """Examples that are numbers as rows of one number."""
    return array if array.ndim > 1 else array[:, None]


def _describe_value(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"an array of shape {tuple(value.shape)} and {getattr(value, 'dtype', 'no dtype')}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{type(value).__name__} {value!r:.40}"
