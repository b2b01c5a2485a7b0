"""The newest values of a session in place: those of a ps on this machine stay in its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dps.client.at_once import AtOnce
    from dps.client.lanes import LentVersion
    from dps.client.pulling import PullOp, Pulls
    from dps.client.pushing import Pushes


class Held:
    """The newest values, read-only, from `take` to `release`. Belongs to one call or block of a session."""

    __slots__ = ("_at_once", "_hold", "_pulls", "_pushes", "_timeout")

    def __init__(self, at_once: AtOnce, pushes: Pushes, pulls: Pulls, timeout: float | None) -> None:
        self._at_once, self._pushes, self._pulls, self._timeout = at_once, pushes, pulls, timeout
        self._hold: LentVersion | PullOp | None = None

    def take(self) -> Any:
        """The values, in the nesting of params. Blocks; raises as `Session.pull`."""
        hold = self._at_once.held()
        if hold is not None:
            self._hold = hold
            self._at_once.holds()
            return self._pushes.assembly.still(hold.memories)
        self._hold = operation = self._pulls.start(None, None, after=False, hold=True)
        return self._pulls.finish(operation, self._timeout)

    def release(self) -> None:
        """The values are not read any more. Does nothing if there are none."""
        if self._hold is not None:
            self._hold.release()
