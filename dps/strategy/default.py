"""The default strategy, which does nothing, and what the current strategy and replica are."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from dps.errors import ConfigError
from dps.strategy.context import ReplicaContext, replica_now, scope_now
from dps.strategy.strategy import Strategy, Variables
from dps.training.optimizers import Optimizer


class DefaultStrategy(Strategy):
    """The strategy where no other one is: `run` calls the function, and each value is that of the one replica.

    There is one, which `dps.strategy.get_strategy()` returns.
    """

    def __init__(self) -> None:
        super().__init__([None])

    def __repr__(self) -> str:
        return "the default strategy"

    @contextmanager
    def scope(self) -> Iterator[None]:
        self._check_not_inside_another("scope")
        yield

    def _check_made_in_scope(self) -> None:
        self._check_not_inside_another("variables")

    def _variables(self, params: object, optimizer: Optimizer | None) -> Variables:
        from dps.strategy.mirrored_variables import MirroredVariables

        return MirroredVariables(self, params, optimizer, [None], [0])

    def __reduce__(self) -> NoReturn:
        raise ConfigError("the default strategy is the only one of its kind; use dps.strategy.get_strategy()")


@functools.cache
def _default() -> DefaultStrategy:
    return DefaultStrategy()


def get_strategy() -> Strategy:
    """The current strategy: that of the scope or the replica around, else the default one, a singleton.

    Returns:
        The strategy.

    Example:
        ```pycon
        >>> strategy = dps.strategy.get_strategy()
        >>> strategy, strategy.reduce("SUM", 1.0)
        (the default strategy, 1.0)
        ```
    """
    return scope_now.get() or _default()


def has_strategy() -> bool:
    """Whether the scope or a replica of a strategy is around, which is not the default one.

    Returns:
        True there.

    Example:
        ```pycon
        >>> with dps.strategy.OneDevice("/cpu:0").scope():
        ...     dps.strategy.has_strategy()
        True
        ```
    """
    return scope_now.get() not in (None, _default())


def in_cross_replica_context() -> bool:
    """Whether the caller is in the scope of a strategy, but in none of its replicas.

    Returns:
        True there. False in a replica, and where no scope is around: the default strategy has one replica everywhere.

    Example:
        ```pycon
        >>> dps.strategy.in_cross_replica_context()
        False
        >>> with dps.strategy.OneDevice("/cpu:0").scope():
        ...     dps.strategy.in_cross_replica_context()
        True
        ```
    """
    return replica_now.get() is None and has_strategy()


def get_replica_context() -> ReplicaContext | None:
    """The replica that the caller is.

    Returns:
        The replica's context; where no scope is around, that of the default strategy's only replica. None in a scope
        outside of replicas.

    Example:
        ```pycon
        >>> strategy = dps.strategy.Mirrored(["/cpu:0", "/cpu:1"])
        >>> strategy.run(lambda: dps.strategy.get_replica_context().replica_id)
        PerReplica(0, 1)
        ```
    """
    return replica_now.get() or (None if has_strategy() else ReplicaContext(_default(), 0))
