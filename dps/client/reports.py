"""Reports the results of a session's pushes to its hooks, to telemetry and to the log."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import isfinite
from typing import TYPE_CHECKING, Any

from dps import telemetry
from dps.client.waiting import Loss
from dps.hooks.chain import Chain
from dps.hooks.scalars import as_number
from dps.reply import Push
from dps.telemetry import log
from dps.transport.wire import Array

if TYPE_CHECKING:
    from dps.client.surplus import Held
    from dps.hooks.loop import Loop

LARGE_NBYTES = 1 << 30
"""Of more first values a worker is told what they cost."""


class Reports:
    """The reports of one session."""

    def __init__(self, session: Loop, hooks: Chain, pushed: Callable[[int, float | None, float], None]) -> None:
        """`pushed`: as of `Home`."""
        self._session, self._hooks, self._pushed = session, hooks, pushed
        self._surplus: Held = []
        self._warned = False
        """Whether a loss that is not finite was logged."""
        self._told_of_empty = False
        """Whether a push without a gradient was logged."""
        self._last_at = session.runtime.now()

    def opened(self, values: Collection[Array], made_elsewhere: bool, variables: int) -> None:
        """The session is open. `values`: the first values that it brought. `made_elsewhere`: an `init_fn` makes others
        where they are needed. `variables`: those of the run."""
        from dps.client.surplus import surplus_of

        session = self._session
        nbytes = sum(value.nbytes for value in values)
        if nbytes > LARGE_NBYTES and not made_elsewhere:
            log.warning(
                "%s: params has %.1f GB of first values; each worker that makes them needs that memory until its "
                "program drops them, and the run uses those of one worker; np.zeros(shape) takes none, and "
                "Session(init_fn=...) makes the values in that worker alone",
                session.name, nbytes / 1e9,
            )  # fmt: skip
        self._surplus = surplus_of(values, session.runtime)
        self._hooks.call("after_create_session", session)
        if telemetry.on_opened:
            about = {"worker": session.name, "step": session.global_step, "variables": variables}
            telemetry.opened({**about, **self._hooks.knows()})

    def settled(self, result: Push, loss: Any) -> None:
        """A push has its result."""
        session = self._session
        if self._surplus:
            from dps.client.surplus import give_back

            self._surplus = give_back(self._surplus)
        now = session.runtime.now()
        number = None if loss is None else as_number(loss, "loss")
        if number is not None and not isfinite(number):
            self._not_finite(number, result.step)
        if telemetry.on_progress:
            telemetry.progress(
                {
                    "worker": session.name, "step": result.step, "loss": number,
                    "accepted": result.accepted, "staleness": result.staleness, "seconds": now - self._last_at,
                }
            )  # fmt: skip
        self._last_at = now
        self._pushed(result.step, number, now)
        self._hooks.call("after_run", session, result, loss)

    def _not_finite(self, loss: float, step: int) -> None:
        """A loss is NaN or infinite: log a warning, once, unless a NanGuard handles it."""
        from dps.hooks.nan import NanGuard

        if self._warned or any(isinstance(hook, NanGuard) for hook in self._hooks.hooks):
            return
        self._warned = True
        log.warning(
            "%s: the loss is %s at step %d, and training goes on; lower the learning rate or check the data; "
            "hooks=[dps.NanGuard()] ends the loop when this happens",
            self._session.name, loss, step,
        )  # fmt: skip

    def empty(self) -> None:
        """A push has no gradient: log a warning, once."""
        if not self._told_of_empty:
            self._told_of_empty = True
            log.warning(
                "%s: a push had no gradient: it counts as a step, and nothing is learned; a gradient of None is none, "
                "and p.grad of PyTorch is None before backward() and for what the loss does not use",
                self._session.name,
            )

    def round_lost(self, step: int, lost: int) -> None:
        """In local mode: a round ended without this session, after so many steps of its own."""
        log.warning(
            "%s: its %d %s of a round are lost: the run went on without this session, or was rolled back, before the "
            "round had ended; it begins anew from the common values of round %d", self._session.name, lost,
            "step" if lost == 1 else "steps", step,
        )  # fmt: skip
        self._hooks.call("rolled_back", self._session, step, lost)

    def rolled_back(self, step: int, epoch: int, loss: Loss) -> None:
        """The session was rolled back, to an earlier step or into a new run epoch."""
        more = f"; {telemetry.LOSE_LESS}" if loss.steps else ""
        log.warning("%s: rolled back to step %d in run epoch %d, %s%s", self._session.name, step, epoch, loss, more)
        self._hooks.call("rolled_back", self._session, step, loss.steps)
