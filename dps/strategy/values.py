"""Values of several replicas: different on each, or the same on all; and nestings of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dps.errors import ConfigError
from dps.variables.tree import described, is_masked


class PerReplica:
    """A value of each replica, in replica order. `strategy.run` returns it; as an argument each replica gets its own.

    Args:
        values: A value for each replica.

    Example:
        ```pycon
        >>> strategy = dps.strategy.Mirrored(["/cpu:0", "/cpu:1"])
        >>> per_replica = dps.strategy.PerReplica([1.0, 2.0])
        >>> strategy.run(lambda value: 10 * value, args=(per_replica,))
        PerReplica(10.0, 20.0)
        >>> per_replica.values
        (1.0, 2.0)
        ```
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = tuple(values)

    @property
    def values(self) -> tuple[Any, ...]:
        """The values, in replica order."""
        return self._values

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._values))})"


class MirroredValue(PerReplica):
    """A value that is the same on all replicas, as `strategy.broadcast` makes it.

    Args:
        values: The value on each replica.

    Example:
        ```pycon
        >>> strategy = dps.strategy.Mirrored(["/cpu:0", "/cpu:1"])
        >>> strategy.broadcast(0.5)
        MirroredValue(0.5)
        ```
    """

    @property
    def value(self) -> Any:
        """The value, as the first replica has it."""
        return self._values[0]

    def __repr__(self) -> str:
        return f"MirroredValue({self.value!r})"


def each_leaf(function: Callable[..., Any], tree: Any, *others: Any, path: str = "") -> Any:
    """Call `function(path, leaf, ...)` for the leaves of dicts, lists and tuples; the results are nested in the same
    way. All arguments have one nesting; ConfigError names the place where one differs."""
    if isinstance(tree, Mapping):
        for index, other in enumerate(others, 1):
            if not isinstance(other, Mapping) or list(other) != list(tree):
                raise _differs(path, index, tree, other)
        return {
            key: each_leaf(
                function, child, *(other[key] for other in others), path=f"{path}/{key}" if path else str(key)
            )
            for key, child in tree.items()
        }
    if isinstance(tree, list | tuple):
        for index, other in enumerate(others, 1):
            if type(other) is not type(tree) or len(other) != len(tree):
                raise _differs(path, index, tree, other)
        children = [
            each_leaf(function, child, *(other[i] for other in others), path=f"{path}/{i}" if path else str(i))
            for i, child in enumerate(tree)
        ]
        if isinstance(tree, list):
            return children
        return type(tree)(*children) if hasattr(tree, "_fields") else tuple(children)
    return function(path, tree, *others)


def _differs(path: str, index: int, first: Any, other: Any) -> ConfigError:
    def said(value: Any) -> str:
        return f"keys {list(value)}" if isinstance(value, Mapping) else f"a {type(value).__name__} {value!r:.60}"

    where = f" at {path!r}" if path else ""
    return ConfigError(f"replicas differ{where}: replica 0 has {said(first)}, replica {index} has {said(other)}")


def of_replica(tree: Any, replica: int, replicas: int, what: str) -> Any:
    """The part of nested arguments that one replica gets. Raises ConfigError as `values_of`."""

    def leaf(path: str, value: Any) -> Any:
        return values_of(value, replicas, what)[replica] if isinstance(value, PerReplica) else value

    return each_leaf(leaf, tree)


def values_of(value: PerReplica, replicas: int, what: str) -> tuple[Any, ...]:
    """The values of all replicas. Raises ConfigError for those of another number of replicas."""
    if len(value.values) != replicas:
        raise ConfigError(
            f"{what}: got a PerReplica of {len(value.values)} values for a strategy of {replicas} replicas; "
            "pass values that this strategy made"
        )
    return value.values


def regroup_results(results: Sequence[Any]) -> Any:
    """The results of all replicas as one value: in their nesting if it is the same, each leaf a PerReplica. The plain
    result for one replica, a MirroredValue for what all share, None where all have none."""
    if len(results) == 1:
        return results[0]

    def leaf(path: str, *values: Any) -> Any:
        if all(value is None for value in values):
            return None
        shared = isinstance(values[0], np.ndarray | np.generic) and all(value is values[0] for value in values)
        return MirroredValue(values) if shared else PerReplica(values)

    try:
        return each_leaf(leaf, *results)
    except ConfigError:
        return PerReplica(results)


def array_of(value: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """A replica's value as an array on the host: of numpy, of a framework, of a GPU, or a number. ConfigError for a
    masked array."""
    if hasattr(value, "copy_to_host"):
        return np.asarray(value.copy_to_host())
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    check_no_mask(value)
    return np.asarray(value)


def check_no_mask(value: Any) -> None:
    """Raise ConfigError for a masked array of numpy, whose masked elements would count as numbers."""
    if is_masked(value):
        raise ConfigError(
            f"a replica has a masked array, {described(value)}, whose mask would be lost; wanted an array of numbers: "
            "call .compressed(), which leaves masked elements out, or .filled(value)"
        )
