"""`Hook`: the base class, with a method for each of five moments of a session and one for rollbacks."""

from __future__ import annotations

from typing import Any

from dps.reply import Push


class Hook:
    """Code that a program runs around its training loop. Subclass it and override the methods that you need.

    Hooks are called in list order, on the session's thread. A "run" is one push or step. An exception of a hook ends
    the session: the caller gets a `dps.HookError` that names hook and method, and the other workers go on. An error of
    dps's own keeps its class. StopIteration is no error: it means the end of the data.

    Example:
        ```python
        class Best(dps.Hook):
            loss = float("inf")  # the smallest one

            def after_run(self, session, push, loss):
                self.loss = min(self.loss, loss)

        best = Best()
        with dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(0.1),
                         hooks=[best]) as session:
            session.push({"w": np.ones(3)}, loss=0.5)
        assert best.loss == 0.5
        ```
    """

    last_step: int | None = None
    """The step at which this hook ends the session, or None. Progress displays use it."""
    batch: int | None = None
    """How many examples one push stands for, or None if this hook was not told."""

    def begin(self) -> None:
        """Called before the session opens."""

    def after_create_session(self, session: Any) -> None:
        """Called once, when the session is open and values are restored or initialised.

        Args:
            session: The session, ready for use.
        """

    def before_run(self, session: Any) -> None:
        """Called before a push is sent.

        Args:
            session: The session.
        """

    def after_run(self, session: Any, push: Push, loss: Any) -> None:
        """Called once for each push that has its result, in their order.

        Args:
            session: The session.
            push: The push's result.
            loss: What the program passed with the push, or None.
        """

    def rolled_back(self, session: Any, step: int, lost: int) -> None:
        """Called when the run went back to a checkpoint, and in local mode when a round ended without this session.

        Args:
            session: The session.
            step: The global step of the checkpoint, or of the last round.
            lost: How many steps are undone: global ones of a rollback, and of a round the session's own.
        """

    def end(self, session: Any) -> None:
        """Called when the loop ended well: without an error, or with no more data.

        Args:
            session: The session, which still works.
        """
