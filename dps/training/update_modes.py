"""Update modes: how a ps turns gradients into updates. Plain settings, chosen once for a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from dps.errors import ConfigError
from dps.process.record import as_dict, defaults, made, record
from dps.training.definition import Checked

if TYPE_CHECKING:
    from dps.training.optimizers import Optimizer


@record
class Async(metaclass=Checked):
    """Each gradient is applied when it arrives; no worker waits for another one.

    Args:
        max_staleness: A gradient older than this many versions is dropped; its push has `accepted=False`. None: never.
        damping: Scales the learning rate by `1 / (1 + staleness) ** damping`; 1 is the usual choice. None: no scaling.
        compensation: The factor lambda of delay compensation, `g + lambda * g**2 * (w - w_pulled)` (Zheng et al., ICML
            2017). Above 0 the ps keep a copy of the values for every session.

    Raises:
        ConfigError: A number out of range.

    Example:
        ```pycon
        >>> dps.Async(max_staleness=10, damping=1.0)
        Async(max_staleness=10, damping=1.0, compensation=0.0)
        ```
    """

    is_atomic: ClassVar[bool] = False
    """Whether all ps apply a push or none does."""
    max_staleness: int | None = None
    damping: float | None = None
    compensation: float = 0.0

    def __post_init__(self) -> None:
        _at_least(self.max_staleness, 0, "max_staleness")
        if self.damping is not None:
            _number_from_zero(self.damping, "damping")
        _number_from_zero(self.compensation, "compensation")


@record
class SyncReplicas(metaclass=Checked):
    """The gradients of several workers are averaged and applied as one step.

    Workers that finish or are lost lower both numbers. A step that needs more workers than exist waits for them, until
    the deadline of the waiting call.

    Args:
        replicas_to_aggregate: How many gradients make a step. None: the number of workers.
        total_num_replicas: How many workers compute them. If there are more than are aggregated, the others are backup
            workers. If there are fewer, each computes several batches a step. None: the number of workers.
        initial_tokens: N: tokens are a queue of step values that begins with N of them, as in TensorFlow; a worker
            takes the oldest, and its next gradient counts for that step. None: `max(0, aggregate - total)` tokens; a
            token grants the current step, and each step discards unused tokens.
        reduction: What a step is made of: the "mean" of its gradients, where a variable is divided by the number of
            gradients for it, and a sparse row by the number of those that have it; or their "sum".

    Raises:
        ConfigError: A number out of range, too few tokens for the first step to finish, or another reduction.

    Example:
        ```pycon
        >>> update = dps.SyncReplicas(replicas_to_aggregate=3, total_num_replicas=4)
        >>> update.total_num_replicas - update.replicas_to_aggregate  # backup workers
        1
        ```
    """

    is_atomic: ClassVar[bool] = True
    replicas_to_aggregate: int | None = None
    total_num_replicas: int | None = None
    initial_tokens: int | None = None
    reduction: str = "mean"

    def __post_init__(self) -> None:
        if self.reduction not in ("mean", "sum"):
            raise ConfigError(f"reduction: got {self.reduction!r}, wanted 'mean' or 'sum'")
        _at_least(self.replicas_to_aggregate, 1, "replicas_to_aggregate")
        _at_least(self.total_num_replicas, 1, "total_num_replicas")
        _at_least(self.initial_tokens, 0, "initial_tokens")
        if None not in (self.replicas_to_aggregate, self.total_num_replicas, self.initial_tokens):
            least = max(0, self.replicas_to_aggregate - self.total_num_replicas)  # type: ignore[operator]
            if self.initial_tokens < least:  # type: ignore[operator]
                raise ConfigError(
                    f"initial_tokens={self.initial_tokens} is too few: with {self.replicas_to_aggregate} gradients of "
                    f"{self.total_num_replicas} replicas the first step could not finish; wanted at least {least}"
                )


@record
class Bounded(metaclass=Checked):
    """Like `Async`, but a worker that is too far ahead of the slowest one waits (stale synchronous parallel).

    Args:
        staleness: The number of steps that a worker may be ahead; 0 or more.

    Raises:
        ConfigError: Not a whole number of at least 0.

    Example:
        ```pycon
        >>> dps.Bounded(3)
        Bounded(staleness=3)
        ```
    """

    is_atomic: ClassVar[bool] = False
    staleness: int

    def __post_init__(self) -> None:
        if self.staleness is None:
            raise ConfigError("staleness is an int of at least 0, got None; without a bound, use Async()")
        _at_least(self.staleness, 0, "staleness")


def _mean() -> Optimizer:
    from dps.training.optimizers import SGD

    return SGD(1.0)


@record
class Local(metaclass=Checked):
    """Each worker trains a copy of its own for some steps; then the copies' differences are averaged.

    A round is `steps` pushes of each worker. Within a round the session's optimizer updates the worker's own copy, in
    the worker, and `pull` returns that copy. The last push of a round sends how far the copy has moved and waits for
    the other workers, as a synchronous push does. The ps apply the mean of the differences with the outer optimizer, as
    if it were a gradient, and all workers go on from the result. The global step counts rounds.

    Args:
        steps: How many steps a worker trains alone; 1 or more.
        outer: The optimizer that applies the averaged difference, on the ps. `SGD(1.0)` makes it the mean of the
            copies. Its learning rate may be a schedule of the global step.

    Raises:
        ConfigError: No whole number of at least 1, or no optimizer.

    Example:
        ```pycon
        >>> with dps.Session(server, {"w": np.zeros(2)}, optimizer=dps.optim.SGD(0.5),
        ...                  update=dps.Local(steps=2)) as session:
        ...     for _ in range(4):
        ...         session.push({"w": np.ones(2)}).step
        ...     session.pull()["w"]
        0
        1
        1
        2
        array([-2., -2.])
        ```
    """

    is_atomic: ClassVar[bool] = True
    steps: int
    outer: Optimizer = made(default_factory=_mean)

    def __post_init__(self) -> None:
        from dps.training.optimizers import checked

        if self.steps is None:
            raise ConfigError("steps is an int of at least 1, got None; how many steps does a worker train alone?")
        _at_least(self.steps, 1, "steps")
        checked(self.outer, "dps.Local(outer=...)")


Update = Async | SyncReplicas | Bounded | Local
_SHORT = "'async', 'sync', 'sync:sum', 'bounded:S' or 'local:H'"
_MODES: dict[str, type[Update]] = {"async": Async, "sync": SyncReplicas, "bounded": Bounded, "local": Local}


def to_wire(update: Update) -> dict[str, Any]:
    """Plain values: {"mode": ..., and the fields}. "mean" is left out: checkpoints from before there were sums fit."""
    mode = next((name for name, cls in _MODES.items() if type(update) is cls), None)
    if mode is None:
        wanted = "dps.Async(), dps.SyncReplicas(), dps.Bounded(S) or dps.Local(STEPS)"
        raise ConfigError(f"update: got {update!r:.80}, wanted {wanted}")
    fields = {name: value for name, value in as_dict(update).items() if (name, value) != ("reduction", "mean")}
    if isinstance(update, Local):
        fields["outer"] = update.outer.to_wire()
    return {"mode": mode, **fields}


def from_wire(data: dict[str, Any]) -> Update:
    """The settings from their wire form. Raises ConfigError for invalid ones."""
    fields = dict(data)
    mode = fields.pop("mode", None)
    if not isinstance(mode, str) or mode not in _MODES:
        raise ConfigError(f"update mode {mode!r} is not known; wanted one of {', '.join(_MODES)}")
    try:
        if "outer" in fields:
            from dps.training.optimizers import from_wire as optimizer_of

            fields["outer"] = optimizer_of(fields["outer"])
        return _MODES[mode](**fields)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"update mode {mode}: {error}") from None


def on_ps(update: Update) -> Update:
    """The mode in which the ps work: the rounds of local mode are synchronous steps."""
    return SyncReplicas() if isinstance(update, Local) else update


def parse_flag(text: str) -> Update:
    """The update mode of the flag --update. ConfigError messages name the flag."""
    return parse(text, f"--update {text!r}")


def parse(text: str, given: str = "") -> Update:
    """The update mode of a short form, as of `_SHORT`. `given`: the source, for the error message."""
    mode, _, argument = text.partition(":")
    if mode == "bounded" and argument.isdecimal():
        return Bounded(int(argument))
    if mode == "local" and argument.isdecimal():
        return Local(int(argument))
    if text == "sync:sum":
        return SyncReplicas(reduction="sum")
    if mode in ("async", "sync") and not argument:
        return _MODES[mode]()  # type: ignore[call-arg]
    raise ConfigError(f"{given or f'update={text!r}'} is not known; wanted {_SHORT}")


def as_text(update: Update) -> str:
    """The short form for the command line. Raises ConfigError for settings that have none."""
    own = {"bounded": "staleness", "local": "steps"}
    for text in ("async", "sync", "sync:sum", *(f"{mode}:{getattr(update, field, 1)}" for mode, field in own.items())):
        if parse(text) == update:
            return text
    raise ConfigError(f"{update} cannot be said on the command line; give it to dps.Session(update=...) instead")


def describe(data: dict[str, Any]) -> str:
    """A line for people: the mode, and the fields that are not defaults; in sync also its short form, if it has one."""
    update = from_wire(data)
    usual = defaults(type(update))
    given = [f"{name}={v}" for name, v in as_dict(update).items() if name not in usual or v != usual[name]]
    short = next((f" ({text!r})" for text in ("sync", "sync:sum") if update == parse(text)), "")
    return f"{type(update).__name__}({', '.join(given)}){short}"


LARGEST = 1 << 53
"""The largest number of an update mode, which each task can send to another."""


def _at_least(value: int | None, least: int, name: str) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        raise ConfigError(f"{name} is an int of at least {least} or None, got {value!r}")
    if value is not None and value > LARGEST:
        raise ConfigError(f"{name} is an int of at most 2**53, got {value}")


def _number_from_zero(value: object, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"{name} is a number of at least 0, got {value!r}")
