"""Variables of a session, on the ps: read by pulls, updated by pushes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dps.client.session import Session, exchanging
from dps.reply import Push
from dps.strategy.variables import Variables
from dps.variables.tree import leaves

if TYPE_CHECKING:
    from dps.strategy.strategy import Strategy


class SessionVariables(Variables):
    """The values of a run. `session` is the session, for `should_stop`, hooks and checkpoints."""

    def __init__(self, strategy: Strategy, session: Session) -> None:
        super().__init__(strategy)
        self.session, self.exchanging = session, exchanging(session)
        self._read: Any = None

    def read(self, on_device: bool = False) -> Any:
        """As Variables.read: a pull; in a replica one for each step."""
        inside = self._replica("read") is not None
        if self._read is None or not inside:
            self._read = self.session.pull()
            for _, value in leaves(self._read):
                value.flags.writeable = False
        return self._read

    def apply_gradients(self, grads: Any, loss: Any = None) -> Push:
        """As Variables.apply_gradients: a push. A synchronous ps sums those of all workers."""
        self._replica("apply_gradients")
        push: Push | None = None
        try:
            push = self.session.push(grads, loss=loss)
        finally:
            self.exchanging.pushed(push)
        self._read = None
        return push

    def assign(self, values: Any) -> None:
        """As Variables.assign. In sync mode values are set with the next step."""
        self._replica("assign")
        self.session.assign(values)
        self._read = None
