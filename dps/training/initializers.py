"""Initializers: first values that the ps make, as data. `dps.kernels.first_values` computes them.

An initializer of Glorot or He is a `Uniform` or a `TruncatedNormal` whose numbers follow from the variable's shape
(`Initializer.drawn`). Fans are those of Keras (`compute_fans` and `VarianceScaling` in
keras/src/initializers/random_initializers.py): of a shape (n,) both are n; of (a, b) they are a and b; of (..., a, b)
they are a and b times the size of what is before.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from dps.errors import ConfigError
from dps.process.record import as_dict, fields_of, record
from dps.training.definition import BadArgument, Definition

MOST_SEED = 1 << 63
MAX_PATH, MAX_NAME = 4096, 4096
"""The most characters of a file's path and of a name in it."""
LARGEST = {
    "float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
}  # fmt: skip
"""The largest number of each dtype that may hold random numbers."""
REACH = 9.0
"""No standard normal number is farther from 0: one of float64 reaches 8.3."""
TRUNCATED_STDDEV = 0.87962566103423978
"""The standard deviation of a standard normal distribution without what is more than 2 from 0, as Keras has it."""


class Initializer(Definition):
    """Base class of initializers."""

    kind: ClassVar[str]

    def to_wire(self) -> dict[str, Any]:
        """The initializer as plain str, float and int, for msgpack or JSON."""
        return {"kind": self.kind, **as_dict(self)}

    def drawn(self, shape: tuple[int, ...]) -> Initializer:
        """The initializer whose numbers do not depend on the shape, which gives the same values."""
        return self

    def check(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        """Raise ConfigError unless a variable of this name, shape and dtype ("float32") can begin with these values."""

    def _seed(self) -> None:
        seed: Any = getattr(self, "seed")  # noqa: B009  # a field of each class that calls this
        if isinstance(seed, bool) or not hasattr(seed, "__index__"):
            raise BadArgument(f"{type(self).__name__}: seed is {seed!r}, it must be a whole number; try seed=1")
        if not 0 <= seed.__index__() < MOST_SEED:
            raise self._refuse("seed", seed, "from 0 to 2**63 - 1", 1)
        self._put("seed", seed.__index__())

    def _check_reach(self, name: str, dtype: str, reach: float) -> None:
        """Raise ConfigError unless the dtype is one of floats, and has numbers up to `reach`."""
        if dtype not in LARGEST:
            raise ConfigError(
                f"{name}: {self!r} gives fractions, and the variable is {dtype}; try dtype='float32', or "
                "init=dps.init.Zeros()"
            )
        if not reach <= LARGEST[dtype]:
            raise ConfigError(f"{name}: {self!r} gives numbers beyond the largest {dtype}, {LARGEST[dtype]:.6g}")


@record
class Zeros(Initializer):
    """All elements are 0. A ps has this memory already, so it takes the least time.

    Example:
        ```pycon
        >>> dps.Variable(shape=(4, 2), init=dps.init.Zeros()).init
        Zeros()
        ```
    """

    kind: ClassVar[str] = "zeros"


@record
class Constant(Initializer):
    """All elements are one number.

    Args:
        value: The number. Variables of integers take whole numbers in their range, variables of bool 0 and 1.

    Raises:
        ConfigError: `value` is not finite.

    Example:
        ```pycon
        >>> dps.init.Constant(0.5)
        Constant(value=0.5)
        ```
    """

    value: float
    kind: ClassVar[str] = "constant"

    def __post_init__(self) -> None:
        if isinstance(self.value, int) and -(1 << 63) <= self.value < 1 << 64:
            self._put("value", int(self.value))
        else:
            self._finite("value", 0.5)

    def check(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        """As Initializer.check."""
        if dtype in LARGEST:
            self._check_reach(name, dtype, abs(self.value))
            return
        low, high = _bounds(dtype)
        if self.value != int(self.value) or not low <= self.value <= high:
            raise ConfigError(f"{name}: {self!r} is no {dtype}; wanted a whole number from {low} to {high}")


@record
class Ones(Initializer):
    """All elements are 1.

    Example:
        ```pycon
        >>> dps.init.Ones()
        Ones()
        ```
    """

    kind: ClassVar[str] = "ones"

    def drawn(self, shape: tuple[int, ...]) -> Initializer:
        """As Initializer.drawn."""
        return Constant(1)


@record
class Uniform(Initializer):
    """Each number from `low` up to `high` is as likely as any other.

    Args:
        low: The least number.
        high: The bound above, which is not reached. In float16 and bfloat16 a number may be rounded to it.
        seed: Another seed gives other numbers: a whole number from 0 to 2**63 - 1.

    Raises:
        ConfigError: `low` is above `high`, or a number is not finite.

    Example:
        ```pycon
        >>> dps.init.Uniform(-0.05, 0.05)
        Uniform(low=-0.05, high=0.05, seed=0)
        ```
    """

    low: float
    high: float
    seed: int = 0
    kind: ClassVar[str] = "uniform"

    def __post_init__(self) -> None:
        if self._finite("low", -0.05) > self._finite("high", 0.05):
            raise self._refuse("low", self.low, f"at most high, which is {self.high!r}", self.high)
        self._seed()

    def check(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        """As Initializer.check."""
        self._check_reach(name, dtype, max(abs(self.low), abs(self.high), self.high - self.low))


@record
class Normal(Initializer):
    """A normal distribution.

    Args:
        stddev: Its standard deviation, at least 0.
        mean: Its mean.
        seed: Another seed gives other numbers: a whole number from 0 to 2**63 - 1.

    Raises:
        ConfigError: `stddev` is below 0, or a number is not finite.

    Example:
        ```pycon
        >>> dps.init.Normal(0.01, seed=1)
        Normal(stddev=0.01, mean=0.0, seed=1)
        ```
    """

    stddev: float
    mean: float = 0.0
    seed: int = 0
    kind: ClassVar[str] = "normal"

    def __post_init__(self) -> None:
        self._at_least_zero("stddev", 0.01)
        self._finite("mean", 0.0)
        self._seed()

    def check(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        """As Initializer.check."""
        self._check_reach(name, dtype, abs(self.mean) + REACH * self.stddev)


@record
class TruncatedNormal(Initializer):
    """A normal distribution without what is more than two standard deviations from its mean.

    The standard deviation of what is left is 0.8796 `stddev`, as in Keras.

    Args:
        stddev: The standard deviation of the whole distribution, at least 0.
        mean: Its mean.
        seed: Another seed gives other numbers: a whole number from 0 to 2**63 - 1.

    Raises:
        ConfigError: `stddev` is below 0, or a number is not finite.

    Example:
        ```pycon
        >>> dps.init.TruncatedNormal(0.01)
        TruncatedNormal(stddev=0.01, mean=0.0, seed=0)
        ```
    """

    stddev: float
    mean: float = 0.0
    seed: int = 0
    kind: ClassVar[str] = "truncated_normal"

    def __post_init__(self) -> None:
        self._at_least_zero("stddev", 0.01)
        self._finite("mean", 0.0)
        self._seed()

    def check(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        """As Initializer.check."""
        self._check_reach(name, dtype, abs(self.mean) + 2 * self.stddev)


@record
class _Scaled(Initializer):
    """Base class of the initializers of Glorot and He: the variance follows from the shape."""

    seed: int = 0
    scale: ClassVar[float]
    both: ClassVar[bool]
    """Whether the mean of the two fans counts, or `fan_in`."""
    normal: ClassVar[bool]

    def __post_init__(self) -> None:
        self._seed()

    def drawn(self, shape: tuple[int, ...]) -> Initializer:
        """As Initializer.drawn."""
        fan_in, fan_out = fans(shape)
        variance = self.scale / max(1.0, (fan_in + fan_out) / 2 if self.both else fan_in)
        if self.normal:
            return TruncatedNormal(math.sqrt(variance) / TRUNCATED_STDDEV, 0.0, self.seed)
        limit = math.sqrt(3.0 * variance)
        return Uniform(-limit, limit, self.seed)

    def check(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        """As Initializer.check."""
        if not shape:
            raise ConfigError(
                f"{name}: {self!r} needs a shape with fans, as (inputs, outputs), and the variable is a scalar; try "
                "init=dps.init.Normal(0.05)"
            )
        self._check_reach(name, dtype, 2.0)


@record
class GlorotUniform(_Scaled):
    """Uniform from -limit to limit, with limit = sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010), as in Keras.

    Args:
        seed: Another seed gives other numbers: a whole number from 0 to 2**63 - 1.

    Example:
        ```pycon
        >>> dps.init.GlorotUniform(seed=1)
        GlorotUniform(seed=1)
        ```
    """

    kind: ClassVar[str] = "glorot_uniform"
    scale: ClassVar[float] = 1.0
    both: ClassVar[bool] = True
    normal: ClassVar[bool] = False


@record
class GlorotNormal(_Scaled):
    """Truncated normal with the variance 2 / (fan_in + fan_out) (Glorot and Bengio 2010), as in Keras.

    Args:
        seed: Another seed gives other numbers: a whole number from 0 to 2**63 - 1.

    Example:
        ```pycon
        >>> dps.init.GlorotNormal()
        GlorotNormal(seed=0)
        ```
    """

    kind: ClassVar[str] = "glorot_normal"
    scale: ClassVar[float] = 1.0
    both: ClassVar[bool] = True
    normal: ClassVar[bool] = True


@record
class HeUniform(_Scaled):
    """Uniform from -limit to limit, with limit = sqrt(6 / fan_in) (He et al. 2015), as in Keras.

    Args:
        seed: Another seed gives other numbers: a whole number from 0 to 2**63 - 1.

    Example:
        ```pycon
        >>> dps.init.HeUniform()
        HeUniform(seed=0)
        ```
    """

    kind: ClassVar[str] = "he_uniform"
    scale: ClassVar[float] = 2.0
    both: ClassVar[bool] = False
    normal: ClassVar[bool] = False


@record
class HeNormal(_Scaled):
    """Truncated normal with the variance 2 / fan_in (He et al. 2015), as in Keras.

    Args:
        seed: Another seed gives other numbers: a whole number from 0 to 2**63 - 1.

    Example:
        ```pycon
        >>> dps.init.HeNormal()
        HeNormal(seed=0)
        ```
    """

    kind: ClassVar[str] = "he_normal"
    scale: ClassVar[float] = 2.0
    both: ClassVar[bool] = False
    normal: ClassVar[bool] = True


@record
class FromFile(Initializer):
    """Values that a file has, which each ps reads for itself.

    Args:
        path: A safetensors file, or the folder of one checkpoint of dps, as "run/checkpoint-1-000000100": a path that
            every ps can read. Where others may join the run, it lies below the chief's `checkpoint_root`.
        name: The tensor or variable in it. None: the variable's own name.

    Raises:
        ConfigError: An empty path or name.

    Example:
        ```pycon
        >>> dps.init.FromFile("pretrained.safetensors", "embedding.weight")
        FromFile(path='pretrained.safetensors', name='embedding.weight')
        ```
    """

    path: str
    name: str | None = None  # type: ignore[assignment,misc]  # initializers have no name
    kind: ClassVar[str] = "file"

    def __post_init__(self) -> None:
        if isinstance(self.path, os.PathLike):
            self._put("path", os.fspath(self.path))
        for field, value, most in ("path", self.path, MAX_PATH), ("name", self.name, MAX_NAME):
            if field == "name" and value is None:
                continue
            if not isinstance(value, str):
                raise BadArgument(f"FromFile: {field} is {value!r:.100}, it must be text; try {field}='weights'")
            if not 0 < len(value) <= most or "\0" in value:
                raise ConfigError(f"FromFile: {field} is {value!r:.100}, it must be text of 1 to {most} characters")


_KNOWN: dict[str, type[Initializer]] = {
    cls.kind: cls
    for cls in (
        Zeros, Ones, Constant, Uniform, Normal, TruncatedNormal, GlorotUniform, GlorotNormal, HeUniform, HeNormal,
        FromFile,
    )
}  # fmt: skip


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """The fans of a shape of one axis and more: how many inputs and outputs a unit has, as Keras defines it."""
    if len(shape) == 1:
        return shape[0], shape[0]
    field = math.prod(shape[:-2])
    return shape[-2] * field, shape[-1] * field


def from_wire(wire: object) -> Initializer:
    """The initializer of a wire form from `to_wire`, which may come from the network.

    Raises ValueError or TypeError for an unknown kind or field, and ConfigError for numbers out of range.
    """
    if not isinstance(wire, Mapping):
        raise TypeError(f"got {wire!r:.200} as an initializer, wanted a map with a kind")
    fields = dict(wire)
    kind = fields.pop("kind", None)
    cls = _KNOWN.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ValueError(f"got an initializer of kind {kind!r:.100}, wanted one of {', '.join(sorted(_KNOWN))}")
    if set(fields) != set(fields_of(cls)):
        raise ValueError(f"{kind}: got {', '.join(sorted(map(repr, fields))):.200}, wanted {', '.join(fields_of(cls))}")
    return cls(**fields)


def checked(init: object, name: str, shape: tuple[int, ...], dtype: str) -> Initializer:
    """`init`, if a variable of this name, shape and dtype can begin with its values. Raises ConfigError."""
    if not isinstance(init, Initializer):
        hint = f"dps.init.{init.__name__}(...)" if isinstance(init, type) else "dps.init.Normal(0.01)"
        raise ConfigError(f"{name}: init is {init!r:.100}, wanted one of dps.init; try init={hint}")
    init.check(name, shape, dtype)
    return init


def initializer_names() -> str:
    """The public names of the initializers, for messages."""
    return ", ".join(cls.__name__ for cls in _KNOWN.values())


def _bounds(dtype: str) -> tuple[int, int]:
    """The least and the largest number of a dtype of whole numbers or bool."""
    if dtype == "bool":
        return 0, 1
    bits = int(dtype.lstrip("uint"))
    return (0, (1 << bits) - 1) if dtype.startswith("u") else (-(1 << bits - 1), (1 << bits - 1) - 1)
