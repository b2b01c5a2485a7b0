"""What a hook is: five moments of a session, and rollbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dps.reply import Push

if TYPE_CHECKING:
    from dps.session import Session


class Hook:
    """Called in list order, on the session's thread. A "run" is one push (or step).

    What a hook raises ends the session: the caller gets a `dps.HookError` that names hook and method (an error of
    dps's own keeps its class), and the other workers go on. StopIteration is no error but the end of the data.
    """

    last_step: int | None = None
    """The step at which this hook ends the session, where it knows one: for whoever shows progress."""
    batch: int | None = None
    """How many examples one push stands for, where this hook was told."""

    def begin(self) -> None:
        """Before the session opens."""

    def after_create_session(self, session: Session) -> None:
        """The session is open: values are restored or initialised. Once; after a rollback comes `rolled_back`."""

    def before_run(self, session: Session) -> None:
        """A push is about to be sent."""

    def after_run(self, session: Session, push: Push, loss: Any) -> None:
        """A push has its result; `loss` is what the user passed, or None. Once for each push, in their order."""

    def rolled_back(self, session: Session, step: int, lost: int) -> None:
        """The run went back to a checkpoint at `step`; `lost` steps are gone."""

    def end(self, session: Session) -> None:
        """The loop ended well: no error, or no more data. The session still works."""
