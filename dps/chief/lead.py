"""The part of the chief that its run epochs use, as a protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dps.chief.sessions import ClientSession


class Lead(Protocol):
    """The part of the chief that run epochs use."""

    def refuse(self, session: ClientSession, error: Exception) -> None:
        """A session cannot take part in this run."""

    def admit(self) -> None:
        """Admit the sessions that wait."""

    def take_up(self) -> None:
        """Take over the members that another chief admitted."""

    def ask_again(self) -> None:
        """Handle earlier requests again: a ps of the epoch that was taken over may have refused their sessions."""

    def ps_missing(self, tasks: Sequence[int]) -> None:
        """These ps are needed, and have not registered with this chief."""

    def finish(self) -> None:
        """The run has ended well."""

    def heard(self) -> None:
        """A ps has received a newer list of members."""

    def ps_lost(self, task: int, why: str) -> None:
        """A ps has lost its shard."""

    def fail(self, reason: str) -> None:
        """The run cannot continue."""
