"""Variables of a session, on the ps: read by pulls, updated by pushes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dps.client.session import Session
from dps.errors import ConfigError
from dps.reply import Push
from dps.strategy.values import array_of
from dps.strategy.variables import Variables
from dps.variables.tree import Nesting, Rows, leaves

if TYPE_CHECKING:
    from dps.strategy.strategy import Strategy


class SessionVariables(Variables):
    """The values of a run. `session` is the session, for `should_stop`, hooks and checkpoints.

    A synchronous ps takes the mean of the workers' gradients, so each is multiplied by their number before it is
    pushed: the mean is then the sum. That holds where all workers have a gradient for the same variables and rows. In
    sync mode gradients are dense and whole (decision 42).
    """

    def __init__(self, strategy: Strategy, session: Session, workers: int) -> None:
        super().__init__(strategy)
        self.session, self._workers = session, workers
        self._read: Any = None

    def read(self, on_device: bool = False) -> Any:
        """As Variables.read: a pull; in a replica one for each step."""
        inside = self._replica("read") is not None
        if self._read is None or not inside:
            self._read = self.session.pull()
            for _, value in leaves(self._read):
                value.flags.writeable = False
        return self._read

    def apply_gradients(self, grads: Any) -> Push:
        """As Variables.apply_gradients: a push."""
        self._replica("apply_gradients")
        push = self.session.push(grads if self._workers == 1 else self._multiplied(grads))
        self._read = None
        return push

    def _multiplied(self, grads: Any) -> Any:
        found = dict(leaves(grads))
        rows = [name for name, gradient in found.items() if isinstance(gradient, Rows)]
        if rows:
            raise ConfigError(
                f"apply_gradients: the gradient of {rows[0]} is of rows, which a synchronous ps divides by the workers "
                "that have them; pass it as an array, or use dps.Session, where gradients are averaged"
            )
        if missing := [name for name, gradient in found.items() if gradient is None]:
            raise ConfigError(f"apply_gradients: no gradient for {missing[0]}; in sync mode pass zeros instead")
        arrays = [array_of(found[path]) for path in Nesting(grads).paths]
        return Nesting(grads).build([array * array.dtype.type(self._workers) for array in arrays])

    def assign(self, values: Any) -> None:
        """As Variables.assign. In sync mode values are set with the next step."""
        self._replica("assign")
        self.session.assign(values)
        self._read = None
