"""A push that is complete on this shard and waits for its turn, or for its step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from dps.ps.store.draft import Draft
from dps.ps.store.gradients import Gradient
from dps.ps.store.store import Store


class PushOf(NamedTuple):
    """The identity of a push, and the step and version that its gradient was computed from: see the message `Push`.
    Sums are taken in the order of task, incarnation and number."""

    task: int
    incarnation: int
    number: int
    step: int
    counter: int = -1
    clock: int = 0


@dataclass(slots=True)
class Staged:
    """The result of an intake: a push that is complete. It has a gradient, a problem, or a draft to which all of the
    gradient was written."""

    push: PushOf
    gradient: Gradient | None = None
    problem: str = ""
    """Why the push will be refused; "" if it will not be."""
    draft: Draft | None = None
    in_pieces: bool = False
    """Whether it came in pieces over a socket, so that no part of it lies in the session's memory."""
    assigns: bool = False
    """Whether it has values to set, and no gradient."""

    def sound(self) -> Gradient:
        """The gradient of a push without a problem that is not written to a draft."""
        assert self.gradient is not None, f"{self.push} has a gradient"
        return self.gradient

    def look(self, store: Store) -> None:
        """Look for NaN and infinity if that was not done yet. A bad gradient sets `problem`."""
        if self.gradient is not None and not self.gradient.checked:
            self.problem = store.problem(self.gradient)
            self.gradient = replace(self.gradient, checked=True)

    def own(self) -> None:
        """Copy the arrays that lie in the session's memory, because the session may continue before the push is
        applied."""
        if self.gradient is not None:
            self.gradient = self.gradient.own()

    def drop(self) -> None:
        """The push is dropped, or its result is recorded."""
        if self.draft is not None:
            self.draft.drop()
