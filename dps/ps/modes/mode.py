"""What a shard needs of an update mode."""

from __future__ import annotations

from typing import Protocol

from dps.actors.ref import Sender
from dps.protocol import Pull, Push
from dps.ps.intake.intake import Intake
from dps.ps.intake.ledger import Ledger
from dps.ps.intake.staged import PushOf, Staged
from dps.run_protocol import Members


class Mode(Protocol):
    """An update mode on one shard."""

    frees: bool
    """Whether the memory of a push goes piece by piece while it is applied."""

    @property
    def reached(self) -> int:
        """The highest step that anybody was told of, on the step ps."""

    def begin(self, push: PushOf) -> Intake:
        """Open the intake of a push that comes in pieces."""

    def whole(self, staged: Staged, sender: Sender) -> None:
        """A push is complete and, unless that is left to its pass, checked."""

    def at_once(self, push: Push, ledger: Ledger, sender: Sender) -> bool:
        """Apply and answer a small push in shared memory that needs no staging; False if it has to be staged."""

    def again(self, ledger: Ledger, number: int, sender: Sender) -> None:
        """A push that is whole or decided came again: answer what there is to say."""

    def enter(self, sender: Sender) -> None:
        """A session wants to take part in synchronous steps."""

    def may_read(self, sender: Sender, pull: Pull) -> str:
        """ "" when the session may read now, else who it waits for."""

    def pulled(self, ledger: Ledger) -> None:
        """A session has pulled the current version."""

    def members(self, message: Members) -> None:
        """Who takes part has changed; the ledgers of new sessions are there."""

    def cut(self, name: str) -> None:
        """A checkpoint is wanted: have `shard.saving.cut(name)` called at the right moment."""

    def waiting_for(self) -> str:
        """Who is waited for now, for errors and status; "" when nobody is."""
