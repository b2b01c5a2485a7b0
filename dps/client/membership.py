"""What a session knows of the run that it takes part in: the run epoch, what all agreed on, how far training is."""

from __future__ import annotations

from typing import Any

from dps.protocol import SessionOpened
from dps.variables.plan import Plan


class Membership:
    """The session's part in one run epoch, until it is over. Made anew when the session joins."""

    def __init__(self, opened: SessionOpened | None = None) -> None:
        """None: it has not joined yet."""
        self.epoch = self.restored = self.reached = 0
        self.certain, self.over = True, False
        """`over`: a ps or the chief has said that the epoch or the incarnation has ended; to join again is due."""
        if opened is not None:
            self.epoch, self.restored = opened.epoch, opened.step
            """`restored`: the step that the epoch began with."""
            self.reached, self.certain = opened.reached, opened.certain
            """The highest step of the epoch before that the chief was told of, and whether there was none higher."""

    def end(self) -> None:
        """It is over."""
        self.over = True


class Agreed:
    """What all sessions and ps of a run epoch have in common."""

    plan: Plan

    def __init__(self, opened: SessionOpened | None = None) -> None:
        """None: the session does not know yet."""
        self.settings: dict[str, Any] = {}
        self.sync = self.bounded = False
        """The update mode; neither: async."""
        self.step_ps = -1
        if opened is not None:
            self.plan, self.settings = Plan.from_wire(opened.plan), opened.settings
            self.step_ps = self.plan.ps[0]
            mode: str = opened.settings["update"]["mode"]
            self.sync, self.bounded = mode == "sync", mode == "bounded"


class Steps:
    """How far training is: the global step, as far as the session has heard, and its own in sync."""

    def __init__(self) -> None:
        self.step = self.local_step = 0
        self._token_of = 0

    def begin(self, step: int) -> None:
        """The session has joined at this step."""
        self.step = self.local_step = step

    def begin_numbers(self) -> None:
        """Pushes are numbered from 1 again."""
        self._token_of = 0

    def saw(self, step: int) -> None:
        """A ps has reached this step."""
        self.step = max(self.step, step)

    def take_token(self, push: int, step: int) -> None:
        """A push, by its number, was released by a token, whose value is the local step from now on. Tokens may come in
        another order."""
        if push > self._token_of:
            self._token_of, self.local_step = push, step
