"""The interface between a shard and its update mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dps.actors.ref import Sender
from dps.messages.runs import Members
from dps.messages.sessions import CountSteps, Decide, Exchange, Pull, Report
from dps.ps.intake.intake import Intake, PushOf, Staged
from dps.ps.intake.ledger import Ledger

if TYPE_CHECKING:
    from dps.ps.modes.whole_pushes import KeptPush


class Mode:
    """An update mode on one shard. What a mode does not define itself does nothing, and nobody waits."""

    frees: bool
    """Whether the memory of a push is freed piece by piece while it is applied."""
    least_pushes: int
    """The least number of pushes that make an update."""

    @property
    def reached(self) -> int:
        """The highest step that any session was told, on the step ps."""
        raise NotImplementedError

    def open_intake(self, push: PushOf) -> Intake:
        """Open the intake of a push that comes in pieces."""
        raise NotImplementedError

    def accept_push(self, staged: Staged, sender: Sender) -> None:
        """A push is staged, and not admitted by `admit_push`. It may be unchecked (`Gradient.checked`) if it lies in
        the session's memory."""

    def begin_wait(self, push: KeptPush) -> None:
        """A push is kept, because others of its update are missing, in sync."""

    def step_of(self, pushes: list[KeptPush]) -> int:
        """All pushes of the next update are here: the step that they make."""
        raise NotImplementedError

    def commit_pushes(self, pushes: list[KeptPush], step: int, counter: int) -> None:
        """Record the results of kept pushes that will be version `counter`, step `step`."""

    def settle(self) -> None:
        """A push was kept, or applied, or handed to `accept_push`."""

    def answer_repeated(self, ledger: Ledger, number: int, sender: Sender) -> None:
        """A push that is complete or decided was sent again: answer it as far as that is possible."""

    def answer_enter(self, sender: Sender) -> None:
        """A session has joined: tell it the step, in sync its token."""

    def may_read(self, sender: Sender, pull: Pull) -> str:
        """ "" if the session may read now, else for whom it waits."""
        return ""

    def record_read(self, ledger: Ledger, parts: Sequence[int] = (), rows: Any = ...) -> None:
        """A session has read the current version: of all parts, or of these, by index, all rows or some of each. In
        sync a step's set says what a gradient was computed from."""

    def set_members(self, message: Members) -> None:
        """The members have changed; the ledgers of new sessions exist."""

    def join_exchange(self, message: Exchange, sender: Sender) -> None:
        """A worker makes a call that all workers in sync make together. Raises ConfigError in other modes."""

    def on_report(self, message: Report) -> None:
        """Another ps reports complete pushes, in sync."""

    def count_steps(self, message: CountSteps, sender: Sender) -> None:
        """Another ps tells how many pushes it counts, in async. Raises ProtocolError in sync, where none does."""

    def on_decide(self, message: Decide) -> None:
        """The step ps has decided on a step, in sync."""

    def schedule_cut(self, cut: str) -> None:
        """A checkpoint or a published version is wanted: have `shard.perform_cut(name)` called at the right moment."""

    def hold_pushes(self, cut: str) -> list[list[int]]:
        """A version is published, in async and bounded mode with several ps: apply no push before `schedule_cut_at` or
        `resume_pushes`. Returns what PushesHeld tells."""
        raise NotImplementedError

    def schedule_cut_at(self, cut: str, numbers: list[Any], sender: Sender) -> None:
        """Have `shard.perform_cut(cut)` called when these pushes are applied (`CutVersion.numbers`) and no others.
        `sender` gets the error if they do not come."""

    def resume_pushes(self, cut: str) -> None:
        """The cut is given up."""

    def standstill(self) -> dict[str, Any]:
        """For how long which sessions have waited for which others, as of `Waits.standstill`; {} if nobody waits."""
        return {}

    def waiting_for(self) -> str:
        """For whom the shard waits now, as text for errors and status; "" if for nobody."""
        return ""
