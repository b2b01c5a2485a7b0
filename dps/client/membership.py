"""The state of the run as a session knows it: the run epoch, the settings that all agreed on, and the step."""

from __future__ import annotations

from typing import Any

from dps.run_protocol import SessionOpened
from dps.variables.plan import Plan


class Membership:
    """The session's membership in one run epoch. A new one is made when the session joins."""

    def __init__(self) -> None:
        """Of a session that has not joined yet."""
        self.epoch = self.restored = 0
        """`restored`: the step that the epoch began with."""
        self.left = 0, 0
        """The run epoch and the step at which the session last took part."""
        self.reached, self.certain = 0, True
        """The highest step since then, in epochs that are over, that the chief was told of, and whether it is certain
        that none was higher."""
        self.incarnation, self._last = 0, 0
        """`_last`: the last one before this under which the session took part."""
        self.kept: dict[int, tuple[int, list[int]]] = {}
        """What the values have of the pushes of the incarnation before: for each ps, the number of the last push with a
        result, and the last numbers that were not applied."""
        self.settles = False
        """Whether the session is to complete its pushes and join again, because a ps leaves."""
        self.over = self.entered = False
        """`over`: a ps or the chief has said that the epoch or the incarnation has ended. The session has to join
        again. `entered`: the session takes part; before, it is only admitted."""

    def next(self, opened: SessionOpened, step: int) -> Membership:
        """The membership after this one, in which the session has heard of `step`."""
        made = Membership()
        made.epoch, made.restored = opened.epoch, opened.step
        made.incarnation, made._last = opened.incarnation, self.took_part
        made.kept = {ps: (done, lacking) for ps, done, lacking in opened.kept}
        made.left, made.certain = (self.epoch, step), opened.certain
        made.reached = 0 if opened.epoch == self.epoch else opened.reached
        if not self.entered:  # nobody was told what the beginning of this one had undone
            made.left, made.reached, made.certain = self.left, max(made.reached, self.reached), False
        return made

    @property
    def took_part(self) -> int:
        """The last incarnation under which the session took part; 0: none."""
        return self.incarnation if self.entered else self._last

    def keeps(self, ps: int, number: int) -> bool:
        """Whether a ps has applied this push of the incarnation before, and the values have it."""
        done, lacking = self.kept.get(ps, (0, []))
        return number <= done and number not in lacking

    def end(self) -> None:
        """The epoch, or the session's incarnation, has ended."""
        self.over = True


class Agreed:
    """The settings on which all sessions and ps of a run epoch have agreed."""

    plan: Plan

    def __init__(self, opened: SessionOpened | None = None) -> None:
        """`opened` None: the session does not know yet."""
        self.settings: dict[str, Any] = {}
        self.sync = self.bounded = self.local = False
        """The update mode; none of them: async. A local one is synchronous, too."""
        self.step_ps = -1
        if opened is not None:
            self.plan, self.settings = Plan.from_wire(opened.plan), opened.settings
            self.step_ps = self.plan.ps[0]
            mode: str = opened.settings["update"]["mode"]
            self.local, self.bounded = mode == "local", mode == "bounded"
            self.sync = self.local or mode == "sync"


class Steps:
    """The highest global step that the session has heard of, and its local step in sync."""

    def __init__(self) -> None:
        self.step = self.local_step = 0
        self._token_of = 0

    def begin(self, step: int) -> None:
        """The session has joined at this step."""
        self.step = self.local_step = step

    def begin_numbers(self) -> None:
        """Pushes are numbered from 1 again, under a new incarnation."""
        self._token_of = 0

    def saw(self, step: int) -> None:
        """A ps has reached this step."""
        self.step = max(self.step, step)

    def take_token(self, push: int, step: int) -> None:
        """A token for the push of this number: its value becomes the local step, unless a later push had its token
        before."""
        if push > self._token_of:
            self._token_of, self.local_step = push, step
