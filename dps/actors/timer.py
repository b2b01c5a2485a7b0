"""A timer of a node: a call at a time, which can be cancelled."""

from __future__ import annotations

from collections.abc import Callable


class Timer:
    """A call at a time on the node's clock; `cancel` makes it do nothing."""

    __slots__ = ("at", "call", "order")

    def __init__(self, at: float, order: int, call: Callable[[], None]) -> None:
        self.at, self.order = at, order
        self.call: Callable[[], None] | None = call

    def __lt__(self, other: Timer) -> bool:
        return (self.at, self.order) < (other.at, other.order)

    def cancel(self) -> None:
        self.call = None
