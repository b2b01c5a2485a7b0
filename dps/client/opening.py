"""Prepares the opening of a session: checks its arguments, and makes the plan and the first values."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dps.checkpoint.files import is_path
from dps.client.connection import Connection
from dps.cluster.placement import describe
from dps.errors import ConfigError, DpsError, HookError
from dps.process.telemetry import log
from dps.task.server import Server
from dps.training.optimizers import Optimizer
from dps.training.update_modes import Update, parse, to_wire
from dps.transport.wire import Array
from dps.variables.plan import Plan
from dps.variables.planning import plan_of
from dps.variables.sharing import tied
from dps.variables.tree import Variable, leaves, to_array

if TYPE_CHECKING:
    from dps.client.compressing import Compression
    from dps.training.averages import MovingAverage
    from dps.training.compression import Compressor

    Compressors = Compressor | Mapping[str, Compressor | None] | None


class PlanRequest(NamedTuple):
    """The variables that a session brings, and its wishes for their plan."""

    params: Any
    optimizer: Optimizer | None
    placement: Any
    partitioner: Any
    average: MovingAverage | None

    def planned(self, server: Server, connection: Connection, deadline: float) -> tuple[Plan, dict[str, Array]]:
        """Make the plan, log it, and return it with the first values. Blocks until the chief knows all ps."""
        cluster = connection.cluster(deadline, lambda found: found.text).cluster
        tasks = sorted(map(int, cluster["ps"]))
        server.check_sees("ps", tasks)
        refuse_on_read(self.params)
        plan, values = plan_of(self.params, self.optimizer, tasks, self.placement, self.partitioner, self.average)
        _tell(plan, server)
        if connection.compression is not None:
            connection.compression.check(plan)
        return plan, values


def refuse_on_read(params: Any) -> None:
    """ConfigError for a variable of which each replica would have a value."""
    for name, leaf in leaves(params):
        if isinstance(leaf, Variable) and leaf.synchronization == "on_read":
            raise ConfigError(
                f"{name}: synchronization='on_read' is a value of each replica, and a ps has one value for all; "
                "keep it in the program, or use dps.strategy.Mirrored"
            )


def _tell(plan: Plan, server: Server) -> None:
    """Log the plan: the first worker at level INFO, with advice if it is uneven, the others at DEBUG."""
    held = plan.bytes_per_ps()
    tell, table = log.info if server.is_first else log.debug, describe(held, plan.moved_per_ps(), plan.row_nbytes())
    tell("%s: the plan\n%s", server.name, table)
    if server.is_first:
        from dps.cluster.setter import advice

        text = advice([(spec.name, spec.shape, spec.dtype) for spec in plan.variables], held)
        if text is not None:
            log.warning("%s: %s", server.name, text)


def compression_asked(pushes: Compressors, pulls: Compressors, deltas: bool) -> Compression | None:
    """The compression that a session's arguments ask for; None for none. Raises ConfigError that names the argument."""
    if pushes is None and pulls is None and not deltas:
        return None
    from dps.client.compressing import Compression
    from dps.training.compression import rules

    packed = rules(pushes, "compression"), rules(pulls, "pull_compression", pulls=True)
    return Compression(*packed, bool(deltas)) if any(packed) or deltas else None


def run_settings(
    update: Update | str | None,
    durability: str,
    checkpoint_dir: str | os.PathLike[str] | None,
    check_finite: bool | None,
    keep: int,
) -> dict[str, Any]:
    """The settings for the chief. `check_finite` None: the session is a reader and does not set it. Raises
    ConfigError."""
    if durability in ("standby", "log"):
        raise ConfigError(f"durability {durability!r} is not there yet; wanted 'none'")
    if durability != "none":
        raise ConfigError(f"durability: got {durability!r}, wanted 'none'")
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise ConfigError(f"keep_checkpoints: got {keep!r}, wanted a whole number from 1")
    settings: dict[str, Any] = {}
    if update is not None:
        settings["update"] = to_wire(parse(update) if isinstance(update, str) else update)
    if checkpoint_dir is not None:
        if not is_path(checkpoint_dir):
            raise ConfigError(f"checkpoint_dir: got {checkpoint_dir!r:.80}, wanted a path, or None for no checkpoints")
        settings["checkpoint_dir"] = os.fspath(checkpoint_dir)
    if check_finite is not None:
        settings |= {"check_finite": bool(check_finite), "keep": keep}
    return settings


def check_timeout(timeout: object) -> None:
    """Raise ConfigError unless this is a number of seconds above 0."""
    if isinstance(timeout, bool) or not hasattr(timeout, "__float__") or not float(timeout) > 0:
        raise ConfigError(f"timeout: got {timeout!r}, wanted seconds above 0, or dps.FOREVER")


def check_average(average: object, params: Any) -> None:
    """ConfigError for a session's `moving_average` that is none, or that a reader gives."""
    if average is None:
        return
    from dps.training.averages import checked

    checked(average)
    if params is None:
        raise ConfigError("moving_average: a session without params is a reader, which takes the averages of the run")


def check_averages(plan: Plan) -> None:
    """ConfigError where a run keeps no moving averages."""
    if not any(spec.optimizer is not None and "moving_average" in spec.optimizer for spec in plan.variables):
        raise ConfigError(
            "this run keeps no moving averages; give moving_average=dps.optim.MovingAverage(0.999) to the sessions "
            "that have params"
        )


def check_functions(params: Any, **functions: object) -> None:
    """ConfigError for an argument that is neither a function nor None, and for a reader's `init_fn`."""
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise ConfigError(f"{name}: got {function!r:.80}, wanted a function")
    if params is None and functions.get("init_fn") is not None:
        raise ConfigError("init_fn: a session without params is a reader, which brings no first values")


def first_values(
    function: Callable[[Any], Any], params: Any, name: str, values: Mapping[str, Array]
) -> dict[str, Array]:
    """What `init_fn(params)` returns, by name, in place of the values of params; those of params for a variable that it
    does not name. Blocks as it does. `name`: the session's, for messages.

    Raises HookError if `init_fn` raises, or does not return values of the variables.
    """
    first = tied(leaves(params))
    try:
        made = function(params)
    except DpsError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        raise HookError(f"{name}: init_fn raised {type(error).__name__}: {text}") from error
    if not isinstance(made, dict | list | tuple):
        raise HookError(f"{name}: init_fn returned {made!r:.80}, wanted first values in the nesting of params")
    try:
        given = {path: to_array(leaf, path) for path, leaf in leaves(made) if not is_made(leaf)}
    except (TypeError, ValueError) as error:
        raise HookError(f"{name}: init_fn returned values that cannot be used: {error}") from None
    wanted: dict[str, Any] = {path: leaf for path, leaf in leaves(params) if is_made(leaf)} | dict(values)
    found: dict[str, Array] = {}
    for path, array in given.items():
        own = first.get(path, path)
        if problem := _problem(path, array, wanted.get(own)):
            raise HookError(f"{name}: init_fn returned {problem}")
        if not np.array_equal(found.setdefault(own, array), array, equal_nan=True):
            raise HookError(f"{name}: init_fn returned two values for {own}, which is tied to {path}")
    return {**values, **found}


def is_made(leaf: object) -> bool:
    """Whether the ps make the first values of this leaf of params."""
    return isinstance(leaf, Variable) and leaf.init is not None


def _problem(name: str, array: Array, wanted: Any) -> str:
    """Why an array is no first value of the variable of its name; "" if it is one. `wanted`: something of its shape and
    dtype, or None."""
    if wanted is None:
        return f"{name!r}, which is no variable"
    if isinstance(wanted, Variable) and wanted.keys is not None:
        return f"an array for {name}, which is a keyed table; leave it out, rows begin as its init says"
    if array.shape == wanted.shape and array.dtype == wanted.dtype:
        return ""
    return f"{array.dtype.name} {array.shape} for {name}, the variable is {wanted.dtype.name} {wanted.shape}"
