"""Compressors: settings for gradients and values that travel in fewer bytes. `dps.kernels` does the arithmetic.

A session chooses one for all of its variables, or one for each by patterns of names. It compresses, and the ps restores
arrays of the variable's dtype, so updates do not depend on compression.

    compressor      bytes of a float32   what is lost
    Float16()       2                    all but 11 bits; numbers beyond 65504
    Bfloat16()      2                    all but 8 bits; the range is that of float32
    Int8()          1                    all but 255 levels in each 1,024 elements; sent later
    TopK(0.01)      0.08                 all but the largest; sent later
    RandomK(0.01)   0.04                 all but a random few; sent later

"Sent later" means feedback: the session keeps what a push leaves out and adds it to the next gradient (Seide et al.
2014; Karimireddy et al. 2019), so that nothing is lost, only delayed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import ClassVar

from dps.errors import ConfigError
from dps.process.record import record
from dps.training.definition import BadArgument, Definition, build


class Compressor(Definition):
    """Base class of compressors."""


@record
class Float16(Compressor):
    """IEEE half precision, rounded to nearest: 2 bytes an element.

    Finite numbers beyond 65504 become 65504; those below 3e-8 become 0.

    Example:
        ```python
        with dps.Session(server, {"w": np.zeros(3, np.float32)}, optimizer=dps.optim.SGD(0.1),
                         compression=dps.compress.Float16()) as session:
            session.push({"w": np.ones(3, np.float32)})
        ```
    """

    name: ClassVar[str] = "float16"


@record
class Bfloat16(Compressor):
    """The upper half of a float32, rounded to nearest: 2 bytes an element.

    It has the range of float32 and 8 bits of precision. Finite numbers of float64 beyond that range become the largest.

    Example:
        ```pycon
        >>> pulls = dps.compress.Bfloat16()  # dps.Session(..., pull_compression=pulls)
        >>> pulls
        Bfloat16()
        ```
    """

    name: ClassVar[str] = "bfloat16"


@record
class Int8(Compressor):
    """Whole numbers from -127 to 127 times a scale: about 1 byte an element.

    Each 1,024 elements have a scale, which is their largest magnitude / 127.

    Args:
        feedback: Whether the session keeps what rounding leaves out, and adds it to the next gradient. False: it is
            lost, and the session needs no array for it.

    Raises:
        ConfigError: `feedback` is no bool.

    Example:
        ```pycon
        >>> dps.compress.Int8()
        Int8(feedback=True)
        ```
    """

    feedback: bool = True
    name: ClassVar[str] = "int8"

    def __post_init__(self) -> None:
        self._flag("feedback")


@record
class TopK(Compressor):
    """Sends the elements of a variable with the largest magnitudes, and their positions.

    Of equal magnitudes the first are taken. The others are kept in the session and added to the next gradient.

    Args:
        fraction: The share of the elements that is sent, above 0 and at most 1; at least one element is sent.

    Raises:
        ConfigError: A share out of range.

    Example:
        ```pycon
        >>> dps.compress.TopK(0.01).count(50_000)
        500
        ```
    """

    fraction: float
    name: ClassVar[str] = "top_k"

    def __post_init__(self) -> None:
        _share(self)

    def count(self, size: int) -> int:
        """How many elements are sent.

        Args:
            size: The number of elements of the variable.

        Returns:
            How many of them are sent; at least one.
        """
        return _count(self.fraction, size)


@record
class RandomK(Compressor):
    """Sends a random choice of a variable's elements; the others are kept and added to the next gradient.

    The choice follows from `seed`, the variable's name and the number of the session's push, so positions are not sent.
    Workers with the same seed send the same positions in the same push.

    Args:
        fraction: The share of the elements that is sent, above 0 and at most 1; at least one element is sent.
        seed: A whole number.

    Raises:
        ConfigError: A share out of range, or a seed that is no whole number.

    Example:
        ```pycon
        >>> compression = {"table": None, "*": dps.compress.RandomK(0.01, seed=7)}
        >>> compression["*"].count(1_000)
        10
        ```
    """

    fraction: float
    seed: int = 0
    name: ClassVar[str] = "random_k"

    def __post_init__(self) -> None:
        _share(self)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise BadArgument(f"RandomK: seed is {self.seed!r}, it must be a whole number; try seed=0")

    def count(self, size: int) -> int:
        """How many elements are sent.

        Args:
            size: The number of elements of the variable.

        Returns:
            How many of them are sent; at least one.
        """
        return _count(self.fraction, size)


KNOWN: dict[str, type[Compressor]] = {cls.name: cls for cls in (Float16, Bfloat16, Int8, TopK, RandomK)}
CASTS = (Float16, Bfloat16)
"""Compressors that can also be used for pulls."""

Rules = tuple[tuple[str, Compressor | None], ...]
"""Patterns of variables' names with their compressors; the first that matches counts."""


def from_wire(wire: object) -> Compressor:
    """The compressor of a wire form from `to_wire`. Raises TypeError and ValueError for anything else."""
    return build(KNOWN, "compressor", wire)


def rules(given: object, argument: str, pulls: bool = False) -> Rules:
    """A session's argument as rules: a compressor, a map of patterns to compressors or None, or None for nothing.

    `pulls`: the rules are for pulled values, which allow only casts. Raises ConfigError that names the argument.
    """
    wanted = "Float16() or Bfloat16()" if pulls else "one of " + ", ".join(cls.__name__ for cls in KNOWN.values())
    found = given if isinstance(given, Mapping) else {} if given is None else {"*": given}
    for pattern, compressor in found.items():
        place = argument if found is not given else f"{argument}[{pattern!r}]"
        if not isinstance(pattern, str) or not pattern:
            raise ConfigError(f"{argument}: got the key {pattern!r}, wanted a pattern of names, as 'hidden/*'")
        if compressor is not None and not isinstance(compressor, CASTS if pulls else tuple(KNOWN.values())):
            got = f"the class {compressor.__name__}" if isinstance(compressor, type) else f"{compressor!r:.80}"
            raise ConfigError(f"{place}: got {got}, wanted None or {wanted} of dps.compress, as Bfloat16()")
    return tuple(found.items())


def chosen(found: Rules, name: str) -> Compressor | None:
    """The compressor of a variable; None if it is sent uncompressed."""
    return next((compressor for pattern, compressor in found if fnmatchcase(name, pattern)), None)


def check_names(found: Rules, names: list[str], argument: str) -> None:
    """Raise ConfigError for a pattern that matches no variable."""
    for pattern, _ in found:
        if not any(fnmatchcase(name, pattern) for name in names):
            known = ", ".join(names[:10])
            raise ConfigError(f"{argument}: {pattern!r} matches no variable; there are {known}")


def _share(compressor: TopK | RandomK) -> None:
    if not 0 < compressor._finite("fraction", 0.01) <= 1:
        raise compressor._refuse("fraction", compressor.fraction, "above 0 and at most 1", 0.01)


def _count(fraction: float, size: int) -> int:
    exact = fraction * size * (1 - 1e-15)  # the product may be rounded up: 0.07 * 100 > 7
    return min(size, max(1, math.ceil(exact)))


__all__ = ["Bfloat16", "Compressor", "Float16", "Int8", "RandomK", "TopK", "from_wire"]
