"""Steps of an adapter whose push is on its way while the program computes the next gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dps.client.session import Session
from dps.hooks.scalars import as_number
from dps.messages.replies import Push, Reply


class OverlappedSteps:
    """The pushes and values of steps that overlap computing: each step has the values right after the push before it,
    or later ones.

    Not for sync and local mode: ConfigError."""

    def __init__(self, session: Session, names: Sequence[str] | None, in_place: bool) -> None:
        """`names`: of the variables that are read; None: all, of which the values may be read `in_place`."""
        self._session, self._names, self._in_place = session, names, in_place
        self._push: Reply[Push] | None = None
        self._failed = False
        self._values = self._read_ahead()

    def _read_ahead(self) -> Iterator[Any]:
        """Values that are on their way from now on; the first turn gives those of now."""
        values = self._session.prefetch(self._names, in_place=self._in_place)
        next(values, None)  # else the first step would wait for its own push
        return values

    def read_anew(self) -> None:
        """Values were set: those that are on their way lack them. Blocks."""
        self._failed = True  # if this is interrupted, the next turn does it
        self._values.close()  # type: ignore[attr-defined]
        self._values = self._read_ahead()
        self._failed = False

    def finish_push(self) -> None:
        """Wait for the push of the step before. Raises as its `result`."""
        push, self._push = self._push, None
        if push is not None:
            push.result()

    def push(self, gradients: Any, loss: Any) -> None:
        """Send gradients, in arrays that nobody changes before the next `finish_push`. Blocks while too many pushes are
        on their way. `loss` is read now: hooks get it with the result, and the program may reuse its memory."""
        number = None if loss is None else as_number(loss, "loss")
        self._push = self._session.push_async(gradients, number)

    def take_values(self) -> Any:
        """The values that were sent for ahead, nested; others are sent for. In place they are valid until the next
        call. None at the end of the loop, once the run is to stop. Blocks."""
        if self._failed:  # an iterator raises its error again
            self.read_anew()
        try:
            return next(self._values, None)
        except BaseException:
            self._failed = True
            raise

    def close(self) -> None:
        """Wait for the last push; no values are read ahead any more. Raises as its `result`."""
        self._values.close()  # type: ignore[attr-defined]
        self.finish_push()
