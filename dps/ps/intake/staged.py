"""A push that is complete on this shard and waits for its turn, or for its step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from dps.ps.store.draft import Draft
from dps.ps.store.gradients import Gradient
from dps.ps.store.store import Store


class PushOf(NamedTuple):
    """Which push it is, and what its gradient was computed from: see the message `Push`. Sums are taken in the order of
    task, incarnation and number."""

    task: int
    incarnation: int
    number: int
    step: int
    counter: int = -1
    clock: int = 0


@dataclass(slots=True)
class Staged:
    """What an intake was for. It has a gradient, a problem, or a draft to which all of the gradient was written."""

    push: PushOf
    gradient: Gradient | None = None
    problem: str = ""
    """Why the push will be refused; "" while nothing is wrong with it."""
    draft: Draft | None = None
    in_pieces: bool = False
    """It came in pieces over the socket: nothing of it lies in the session's memory."""
    assigns: bool = False
    """It has values to set, and no gradient."""

    def sound(self) -> Gradient:
        """The gradient of a push without a problem that is not written to a draft."""
        assert self.gradient is not None, f"{self.push} has a gradient"
        return self.gradient

    def look(self, store: Store) -> None:
        """Look for NaN and infinity if nobody has; a bad gradient sets `problem`."""
        if self.gradient is not None and not self.gradient.checked:
            self.problem = store.problem(self.gradient)
            self.gradient = replace(self.gradient, checked=True)

    def own(self) -> None:
        """Copy what lies in the session's memory: the session may go on before the push is applied."""
        if self.gradient is not None:
            self.gradient = self.gradient.own()

    def drop(self) -> None:
        """Nothing comes of the push any more, or its result is recorded."""
        if self.draft is not None:
            self.draft.drop()
