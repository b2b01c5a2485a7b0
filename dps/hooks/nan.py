"""Ends the loop when the loss is NaN or infinite."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dps.errors import NotFinite
from dps.hooks.hook import Hook
from dps.hooks.scalars import as_number
from dps.reply import Push
from dps.telemetry import log

if TYPE_CHECKING:
    from dps.hooks.loop import Loop


class NanGuard(Hook):
    """End the loop when a loss is NaN or infinite.

    Args:
        fail: True: the push raises `dps.NotFinite` (also a ValueError). False: a warning, and `should_stop` becomes
            true.

    Example:
        ```pycon
        >>> with dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(0.1),
        ...                  hooks=[dps.NanGuard(fail=False)]) as session:
        ...     push = session.push({"w": np.ones(3)}, loss=float("nan"))
        ...     session.should_stop()
        True
        ```
    """

    def __init__(self, fail: bool = True) -> None:
        self.fail = fail

    def after_run(self, session: Loop, push: Push, loss: Any) -> None:
        if loss is None or math.isfinite(number := as_number(loss, "loss")):
            return
        if self.fail:
            raise NotFinite(f"the loss is {number} at step {push.step}; lower the learning rate or check the data")
        log.warning("%s: the loss is %s at step %d, stopping", session.name, number, push.step)
        session.request_stop()
