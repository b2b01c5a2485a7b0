"""Keeps the journal up to date and retries failed writes. No run epoch begins before its number is written."""

from __future__ import annotations

from collections.abc import Callable

from dps.actors.system import Node
from dps.chief.members import Membership
from dps.chief.run import write_journal
from dps.errors import CheckpointError
from dps.telemetry import log

AGAIN_S = 2.0
"""Seconds until a failed write of the journal is tried again."""


class Journaling:
    """Writes the journal of one chief. A run epoch begins only once its number is written, so no chief reuses it."""

    def __init__(self, node: Node, members: Membership, written: Callable[[], None]) -> None:
        """`written` is called when a write succeeds after a failed one."""
        self._node, self._members, self._written = node, members, written
        self.problem = ""
        """Why the last write failed; "" if it succeeded."""
        self._wanted: tuple[str, int] | None = None
        """Folder and run epoch of the next attempt."""

    def write(self, checkpoint_dir: str, epoch: int, ended: bool = False) -> bool:
        """Write the current members and the highest run epoch; returns whether it succeeded. Blocks on the storage."""
        try:
            write_journal(self._node.runtime.storage, checkpoint_dir, epoch, self._members, ended)
        except CheckpointError as error:
            self._failed(error, ended)
            self._wanted = None if ended else (checkpoint_dir, epoch)
            return False
        if self.problem:
            log.warning("%s: the journal can be written again", self._node.name)
        self.problem, self._wanted = "", None
        return True

    def forget(self) -> None:
        """Drop a failed write, because its run will not begin."""
        self.problem, self._wanted = "", None

    def _failed(self, error: CheckpointError, ended: bool) -> None:
        if not self.problem:
            more = (
                "" if ended else f"; training goes on, but no new run epoch begins; it is tried every {AGAIN_S:.0f} s"
            )
            log.error("%s: the journal cannot be written: %s%s", self._node.name, error, more)
        self.problem = str(error)
        if self._wanted is None and not ended:
            self._node.after(AGAIN_S, self._again)

    def _again(self) -> None:
        """Write the current state, unless a later write has succeeded meanwhile."""
        if self._wanted is None:
            return
        wanted, self._wanted = self._wanted, None
        if self.write(*wanted):
            self._written()
