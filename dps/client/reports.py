"""Reports the results of a session's pushes to its hooks, to telemetry and to the log."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.client.waiting import Loss
from dps.errors import DpsError
from dps.hooks.hook import Chain, Loop
from dps.hooks.scalars import as_number
from dps.messages.replies import Push
from dps.process import config, telemetry
from dps.process.telemetry import log
from dps.transport.dtypes import is_float
from dps.transport.endpoint import Runtime
from dps.transport.wire import Array
from dps.variables.layout import Gradient
from dps.variables.plan import Plan, as_applied
from dps.variables.tree import Variable, leaves, to_array

if TYPE_CHECKING:
    from dps.client.membership import Agreed
    from dps.hooks.gradient_norms import GradientWatch


LARGE_NBYTES = 1 << 30
"""Of more first values a worker is told what they cost."""


_have_trained: weakref.WeakSet[object] = weakref.WeakSet()
"""The tasks of this process that have had a session which trains."""


class Reports:
    """The reports of one session."""

    def __init__(self, session: Loop, hooks: Chain, pushed: Callable[[int, float | None, float], None]) -> None:
        """`pushed`: as of `Home`."""
        self._session, self._hooks, self._pushed, self._name = session, hooks, pushed, ""
        self._surplus: Held = []
        self._warned = False
        """Whether a loss that is not finite was logged."""
        self._told_of_empty = False
        """Whether a push without a gradient was logged."""
        self._now = session.runtime.now
        self._last_at = self._now()
        self.watch: GradientWatch | None = None
        """Looks at the first pushes of a session that trains, or at all of them for a hook."""
        self.replaced: MistakeWarnings | None = None
        """Looks at what pulls write to the caller's arrays."""

    def watch_mistakes(self, params: Any) -> None:
        """The session trains with these params: look for usual mistakes."""
        self.watch = self.replaced = MistakeWarnings(self._session.name, params)

    def watch_norms(self, function: Callable[[float], None]) -> None:
        """As Session.watch_gradient_norms."""
        from dps.hooks.gradient_norms import GradientNorms

        self.watch = GradientNorms(function, self._now, self.watch)

    def saw(self, values: Any) -> Any:
        """The program gets these values, which are returned; None for none."""
        if self.watch is not None and values is not None:
            self.watch.pulled(values)
        return values

    def assigned(self) -> None:
        """The program sets values itself: what pulls replace is known to it."""
        if self.replaced is not None:
            self.replaced.end_pulls()
            self.replaced = None

    def trains(self, task: object, step: int) -> None:
        """The session trains, as one of this task, in a run that is at this step. If the task had one before, a line
        says where this one goes on."""
        if step and task in _have_trained:
            log.info(
                "%s: continues from step %d of this run, with the values on its ps; those in params are not used",
                self._session.name, step,
            )  # fmt: skip
        _have_trained.add(task)

    def opened(self, values: Collection[Array], made_elsewhere: bool, agreed: Agreed) -> None:
        """The session is open. `values`: the first values that it brought. `made_elsewhere`: an `init_fn` makes others
        where they are needed."""
        session, self._name = self._session, self._session.name
        nbytes = sum(value.nbytes for value in values)
        if nbytes > LARGE_NBYTES and not made_elsewhere:
            log.warning(
                "%s: params has %.1f GB of first values; each worker that makes them needs that memory until its "
                "program drops them, and the run uses those of one worker; dps.Variable(shape=..., init=...) has the "
                "ps make them, and Session(init_fn=...) makes them in that worker alone",
                session.name, nbytes / 1e9,
            )  # fmt: skip
        self._surplus = surplus_of(values, session.runtime)
        self._hooks.call_hooks("after_create_session", session)
        if telemetry.on_opened:
            plan = as_applied(agreed.plan, agreed.settings["update"])
            values_held, slots_held = plan.bytes_per_ps(), plan.slot_bytes_per_ps()
            about = {
                "worker": session.name, "step": session.global_step, "variables": len(plan.variables),
                "placement": [[ps, nbytes, slots_held[ps]] for ps, nbytes in values_held.items()],
            }  # fmt: skip
            telemetry.opened({**about, **self._hooks.loop_settings()})

    def report_push(self, result: Push, loss: Any) -> None:
        """A push has its result."""
        if self._surplus:
            self._surplus = give_back(self._surplus)
        now = self._now()
        number = None
        if loss is not None:
            number = as_number(loss, "loss")
            if not isfinite(number):
                self._not_finite(number, result.step)
        if telemetry.on_progress:
            telemetry.progress(
                {
                    "worker": self._name, "step": result.step, "loss": number,
                    "accepted": result.accepted, "staleness": result.staleness, "seconds": now - self._last_at,
                }
            )  # fmt: skip
        self._last_at = now
        self._pushed(result.step, number, now)
        if self._hooks.hooks or self._hooks.shared:
            self._hooks.call_hooks("after_run", self._session, result, loss)

    def _not_finite(self, loss: float, step: int) -> None:
        """A loss is NaN or infinite: log a warning, once, unless a NanGuard handles it."""
        from dps.hooks.ending import NanGuard

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
        self._hooks.call_hooks("rolled_back", self._session, step, lost)

    def rolled_back(self, step: int, epoch: int, loss: Loss) -> None:
        """The session was rolled back, to an earlier step or into a new run epoch."""
        more = f"; {telemetry.LOSE_LESS}" if loss.steps else ""
        log.warning("%s: rolled back to step %d in run epoch %d, %s%s", self._session.name, step, epoch, loss, more)
        self._hooks.call_hooks("rolled_back", self._session, step, loss.steps)


Held = list[weakref.ref[Array]]
"""Large first values of a session that the program may still refer to.

A task's malloc keeps large blocks for the next messages (see `config.MALLOC`). It would also keep the memory of a table
that a worker only brings along and then reads by rows.
"""


def surplus_of(values: Iterable[Array], runtime: Runtime) -> Held:
    """The large arrays to watch; none if malloc gives memory back by itself. Memory that is free already is given back
    now."""
    # Not in the simulator: the real memory is that of the test's own process.
    if runtime.simulated or not runtime.keeps_blocks:
        return []
    least = runtime.tuning.client.surplus_nbytes
    large = [weakref.ref(owner) for owner in map(_owner, values) if owner.nbytes >= least]
    if large:
        config.trim_memory()
    return large


def give_back(held: Held) -> Held:
    """Return the memory of freed arrays to the system; those that are not freed."""
    left = [array for array in held if array() is not None]
    if len(left) < len(held):
        config.trim_memory()
    return left


def _owner(array: Array) -> Array:
    """The array that owns the memory of this one."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


PUSHES = 2
"""How many pushes of a session are checked. Of later ones only the variables are noted, while pulls are checked."""
PULLS = 5
"""How many pulls into the caller's arrays are checked, after the first push."""
EARLIER = 20
"""How many pulls are checked before that."""
VARIABLES = 100
"""How many variables are checked."""
SAMPLED = 64
"""How many elements of each are remembered: programs copy pulled values to a model and drop the arrays."""


class MistakeWarnings:
    """The watch over one session that trains. It keeps no array alive."""

    def __init__(self, name: str, params: Any) -> None:
        self._name = name
        self._seen: dict[str, tuple[Callable[[], Any], Array]] = {}
        """The session's values, as it brought them or pulled them last, with some of their elements."""
        self._pushes = self._pulls = self._earlier = 0
        self._with_gradient: set[int] = set()
        self._trained: list[int] = []
        """The variables that get gradients, as far as the plan knows; filled by the last push that is checked."""
        self.pulled(params)

    def pulled(self, tree: Any) -> None:
        """These are the current values."""
        if self._earlier == EARLIER or self._pushes >= PUSHES:
            return
        self._earlier += 1
        for number, (name, leaf) in enumerate(leaves(tree)):
            if number == VARIABLES:
                break
            leaf = leaf.value if isinstance(leaf, Variable) else leaf
            if isinstance(leaf, np.ndarray) or hasattr(leaf, "detach"):
                self._seen[name] = weakref.ref(leaf), _sample(leaf)

    def pushed(self, plan: Plan, gradients: Mapping[int, Gradient]) -> bool:
        """Warn if all gradients are equal to the values, which are not all zero. Returns whether nothing more is to be
        seen: pulls are not checked any more, or each trained variable has had a gradient."""
        self._with_gradient.update(gradients)
        if self._pushes < PUSHES:
            self._check_values(plan, gradients)
        if self._pushes < PUSHES:
            return False
        return self._pulls >= PULLS or self._with_gradient.issuperset(self._trained)

    def _check_values(self, plan: Plan, gradients: Mapping[int, Gradient]) -> None:
        self._pushes += 1
        found = [(plan.name_of(index), gradients[index]) for index in [*gradients][:VARIABLES]]
        values = [g for name, g in found if isinstance(g, np.ndarray) and self._is_value(name, g)]
        if values and len(values) == len(found) and any(np.any(_sample(value)) for value in values):
            self._pushes = PUSHES
            log.warning(
                "%s: the arrays that were pushed for %s are equal to the values; push wants gradients, which the ps "
                "subtract times the learning rate; session.assign({...}) sets values",
                self._name, ", ".join(name for name, _ in found[:3]) + (", ..." if len(found) > 3 else ""),
            )  # fmt: skip
        if self._pushes == PUSHES:
            self._seen = {}
            self._trained = [index for index, spec in enumerate(plan.variables) if spec.optimizer is not None]

    def _is_value(self, name: str, gradient: Array) -> bool:
        seen, sample = self._seen.get(name, (lambda: None, None))
        value = seen()
        if value is None:
            return sample is not None and np.array_equal(sample, _sample(gradient))
        try:
            return value is gradient or np.array_equal(to_array(value, name), gradient)
        except (TypeError, DpsError):
            return False

    def replaces(self, plan: Plan, name: str, here: Array, value: Array) -> None:
        """A pull is about to write a value to the caller's array. Warn if it is a different one, of a variable of
        floats that gets no gradient."""
        if self._pushes == 0 or self._pulls >= PULLS or plan.by_name[name] in self._with_gradient:
            return
        if is_float(value.dtype) and not np.array_equal(here, value, equal_nan=True):
            self._pulls = PULLS
            log.warning(
                "%s: pull(out=) has replaced the value of %s, which gets no gradient, by that of the ps; what programs "
                "compute themselves, as batch normalisation does, reaches the ps by session.assign({...})",
                self._name, name,
            )  # fmt: skip

    def filled(self) -> bool:
        """A pull has written all values to the caller's arrays. Returns whether this was the last check."""
        self._pulls += self._pushes > 0
        return self._pulls >= PULLS

    def end_pulls(self) -> None:
        """No more pulls are checked."""
        self._pulls = PULLS


def _sample(leaf: Any) -> Array:
    """Some elements of an array or a tensor."""
    flat = leaf.flat if isinstance(leaf, np.ndarray) else leaf.detach().reshape(-1)
    found = flat[:: max(1, len(flat) // SAMPLED)]
    return found if isinstance(leaf, np.ndarray) else to_array(found, "")
