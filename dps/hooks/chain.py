"""Calls all hooks of a session in list order. An error names the hook that raised it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dps.errors import ConfigError, DpsError, HookError
from dps.hooks.hook import Hook


class Chain:
    """The hooks of the session `name`. `failed` is called with the error's text before it is raised. `shared`: hooks
    of all sessions of the task, called before those; others may add and remove some at any time.

    Raises ConfigError for an object that is not a hook.
    """

    def __init__(
        self, hooks: Sequence[Hook], name: Callable[[], str], failed: Callable[[str], None], shared: Sequence[Hook] = ()
    ) -> None:
        if isinstance(hooks, Hook) or not hasattr(hooks, "__iter__"):
            raise ConfigError(f"hooks: got {hooks!r}, wanted a list of them, such as [dps.StopAtStep(last_step=100)]")
        self.hooks, self._name, self._failed, self._shared = list(hooks), name, failed, shared
        for hook in self.hooks:
            if not isinstance(hook, Hook):
                what = f"the class {hook.__name__}" if isinstance(hook, type) else repr(hook)
                raise ConfigError(f"hooks: got {what}, wanted an instance of a subclass of dps.Hook")

    def call(self, method: str, *arguments: Any) -> None:
        """Call one method of every hook.

        Raises HookError if a hook raises an exception. An error of dps keeps its class; its text begins with the name
        of the hook. StopIteration, and BaseExceptions such as Ctrl-C, are not changed.
        """
        for hook in [*self._shared, *self.hooks] if self._shared else self.hooks:
            try:
                getattr(hook, method)(*arguments)
            except StopIteration:
                raise
            except DpsError as error:
                error.args = (f"{self._where(hook, method)}: {error}", *error.args[1:])
                self._failed(str(error))
                raise
            except Exception as error:
                text = " ".join(str(error).split())
                wrapped = HookError(f"{self._where(hook, method)} raised {type(error).__name__}: {text}")
                self._failed(str(wrapped))
                raise wrapped from error

    def knows(self) -> dict[str, int | None]:
        """The lowest `last_step` and the first `batch` of the hooks; None where no hook has one."""
        steps = [hook.last_step for hook in self.hooks if type(hook.last_step) is int]
        batches = [hook.batch for hook in self.hooks if type(hook.batch) is int]  # a user's hook may keep data here
        return {"last_step": min(steps, default=None), "batch": batches[0] if batches else None}

    def _where(self, hook: Hook, method: str) -> str:
        return f"{self._name()}: hook {type(hook).__name__}.{method}"
