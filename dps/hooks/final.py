"""Calls a function of the program at the end of a session, while the session still works."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dps.errors import ConfigError
from dps.hooks.hook import Hook

if TYPE_CHECKING:
    from dps.hooks.loop import Loop


class FinalOps(Hook):
    """Call a function with the session when the loop has ended well, and keep what it returns.

    The result is in `final_ops_values`; it is None before, and where the loop ended with an error.

    Args:
        final_ops: A function of the session, such as an evaluation of the last values.

    Raises:
        ConfigError: `final_ops` cannot be called.

    Example:
        ```python
        final = dps.FinalOps(lambda session: session.pull()["w"].sum())
        with dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(1.0),
                         hooks=[final]) as session:
            session.push({"w": -np.ones(3)})
        assert final.final_ops_values == 3
        ```
    """

    def __init__(self, final_ops: Callable[[Any], Any]) -> None:
        if not callable(final_ops):
            raise ConfigError(f"FinalOps: got {final_ops!r:.80}, wanted a function of the session")
        self._function = final_ops
        self.final_ops_values: Any = None

    def end(self, session: Loop) -> None:
        self.final_ops_values = self._function(session)
