"""`Hook`: the base class, with a method for each of five moments of a session and one for rollbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dps.errors import ConfigError, DpsError, HookError
from dps.hooks.scalars import Scalars
from dps.messages.replies import Push
from dps.process.telemetry import LoopTimes
from dps.transport.endpoint import Runtime

if TYPE_CHECKING:
    from dps.actors.caller import Caller


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
        """Called before the session opens. The hooks of dps begin anew here, so that a second session may use them."""

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


class Chain:
    """The hooks of the session `name`. `failed` is called with the error's text before it is raised. `shared`: hooks
    of all sessions of the task, called before those; others may add and remove some at any time. `times`: those of the
    session's loop, for which hooks are a part of the program.

    Raises ConfigError for an object that is not a hook.
    """

    def __init__(
        self, hooks: Sequence[Hook], name: Callable[[], str], failed: Callable[[str], None],
        shared: Sequence[Hook] = (), times: LoopTimes | None = None,
    ) -> None:  # fmt: skip
        if isinstance(hooks, Hook) or not hasattr(hooks, "__iter__"):
            raise ConfigError(f"hooks: got {hooks!r}, wanted a list of them, such as [dps.StopAtStep(last_step=100)]")
        self.hooks, self._name, self._failed, self.shared = list(hooks), name, failed, shared
        self._times = times
        for hook in self.hooks:
            if not isinstance(hook, Hook):
                what = f"the class {hook.__name__}" if isinstance(hook, type) else repr(hook)
                raise ConfigError(f"hooks: got {what}, wanted an instance of a subclass of dps.Hook")

    def call_hooks(self, method: str, *arguments: Any) -> None:
        """Call one method of every hook.

        Raises HookError if a hook raises an exception. An error of dps keeps its class; its text begins with the name
        of the hook. StopIteration, and BaseExceptions such as Ctrl-C, are not changed.
        """
        if self.hooks or self.shared:
            if self._times is not None:
                self._times.leave()
            try:
                self._call_each(method, arguments)
            finally:
                if self._times is not None:
                    self._times.enter()

    def _call_each(self, method: str, arguments: tuple[Any, ...]) -> None:
        for hook in [*self.shared, *self.hooks]:
            try:
                getattr(hook, method)(*arguments)
            except StopIteration:
                raise
            except DpsError as error:
                error.args = (f"{self._hook_text(hook, method)}: {error}", *error.args[1:])
                self._failed(str(error))
                raise
            except Exception as error:
                text = " ".join(str(error).split())
                wrapped = HookError(f"{self._hook_text(hook, method)} raised {type(error).__name__}: {text}")
                self._failed(str(wrapped))
                raise wrapped from error

    def loop_settings(self) -> dict[str, int | None]:
        """The lowest `last_step` and the first `batch` of the hooks; None where no hook has one."""
        steps = [hook.last_step for hook in self.hooks if type(hook.last_step) is int]
        batches = [hook.batch for hook in self.hooks if type(hook.batch) is int]  # a user's hook may keep data here
        return {"last_step": min(steps, default=None), "batch": batches[0] if batches else None}

    def _hook_text(self, hook: Hook, method: str) -> str:
        return f"{self._name()}: hook {type(hook).__name__}.{method}"


class Loop(Protocol):
    """The training loop as a hook sees it; `dps.Session` is one. Its documentation says what each member does."""

    scalars: Scalars

    @property
    def name(self) -> str: ...
    @property
    def runtime(self) -> Runtime: ...
    @property
    def global_step(self) -> int: ...
    @property
    def checkpoint_dir(self) -> str | None: ...
    @property
    def is_chief(self) -> bool: ...
    def should_stop(self) -> bool: ...
    def request_stop(self) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    def watch_gradient_norms(self, function: Callable[[float], None]) -> None: ...
    def _chief_caller(self) -> tuple[Caller, str]: ...
    def save(self, timeout: float | None = None, position: bytes = b"") -> str: ...
