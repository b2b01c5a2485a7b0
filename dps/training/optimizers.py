"""Optimizers: a name, numbers, and the rule that updates one element. This file imports neither numpy nor numba.

A user writes a definition, it is sent to the ps (`to_wire`, `from_wire`), and definitions of two clients are compared.
A ps makes its kernels from the rule: `dps.kernels.passes` for a CPU, `dps.kernels.cuda` for a GPU.

In the formulas `w` is the variable, `g` its gradient, `lr` the rate of the step, `t` the number of updates of the
variable, from 1. Numbers are kept as Python floats and ints, so equal settings compare equal and have equal hashes. All
constructors raise ValueError for a number out of range, and TypeError for a value that is not a number.

More than 500 lines: half of them document the public classes, and a rule stands beside its class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

from dps.errors import ConfigError
from dps.process.record import record
from dps.training.definition import Definition, build
from dps.training.schedules import Schedule, rate_at, schedule_from_wire

LEAST = 1.1754943508222875e-38
"""The smallest normal float32. A ps may treat smaller numbers as 0."""

Number: TypeAlias = Any
"""What a rule computes with: a number, or a vector of numbers."""

# ---- the operations of rules beside +, -, /, abs and math.copysign ----
#
# `dps.kernels.vectors` defines them for numbers and vectors on a CPU, and `dps.kernels.device` for a GPU. These run in
# numba's CUDA simulator, and define the bits: each result is rounded once, to the type of the arguments.


def mul(a: Number, b: Number) -> Number:
    """a * b, rounded. CUDA's compiler joins `*` with a sum to one operation with one rounding (fma), but never this."""
    return a * b


def sqrt(a: Number) -> Number:
    """The square root; NaN for negative numbers."""
    return type(a)(math.sqrt(a) if a >= 0 else math.nan)


def power(a: Number, exponent: Number) -> Number:
    """a**exponent; `exponent` is never a vector. The bits may differ between a CPU and a GPU."""
    return a**exponent


def above(x: Number, limit: Number, then: Number, other: Number) -> Number:
    """`then` where x > limit, else `other`."""
    return then if x > limit else other


# ---- the optimizers ----


KNOWN: dict[str, type[Optimizer]] = {}
"""All optimizers by their names. A class with a `name` is entered when it is defined."""


class Optimizer(Definition):
    """Base class of optimizers: a name, a learning rate, the names of the slots kept for a variable, and a rule."""

    learning_rate: float | Schedule
    usual_rate: ClassVar[float] = 0.001
    """The rate of `compile(optimizer="name")`: the one that Keras users know."""
    counts_updates: ClassVar[bool] = False
    """Whether `scalars` depend on `t`."""

    def __init_subclass__(cls) -> None:
        if "name" in cls.__dict__:
            other = KNOWN.setdefault(cls.name, cls)
            if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise ConfigError(f"{cls.__name__}: the name {cls.name!r} is that of {other!r}; try another one")
            KNOWN[cls.name] = cls  # a notebook may define a class again

    @staticmethod
    def rule(*arguments: Any, **named: Any) -> Any:
        """The update of one element: (w, slots, g, scalars) -> (new w, new slots), or the new w alone without slots.

        The arguments are `w`, the slots under their names, `g`, and the numbers that `scalars` returns. On a CPU they
        may be vectors. Slots that this optimizer does not use, and scalars that are None, are None: a test of an
        argument, as `mean is not None`, is decided when the kernel is compiled, and what is returned for such a slot
        is ignored. Products are made by `mul`, and all numbers are arguments: 1.0 would turn float32 into float64.
        """
        raise NotImplementedError("a subclass defines it")

    def scalars(self, lr: float, t: int) -> tuple[float | None, ...]:
        """The last arguments of the rule, for one update; none if the update changes nothing.

        Args:
            lr: The learning rate.
            t: The number of this update of the variable, from 1.

        Returns:
            The numbers, in double. Kernels convert all but bools and None to the dtype of the slots.
        """
        raise NotImplementedError("a subclass defines it")

    @classmethod
    def usual(cls) -> Optimizer:
        """The optimizer that `compile(optimizer="name")` stands for."""
        made: Any = cls
        optimizer: Optimizer = made(cls.usual_rate)
        return optimizer

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the slots, in the order of the rule's arguments. Each has the variable's shape and dtype, but
        float32 for variables of float16 and bfloat16.

        Slots in `row_slots` have only one element per row.
        """
        return ()

    @property
    def row_slots(self) -> tuple[str, ...]:
        """The slots that have one element per row, shape (rows,), instead of the variable's shape."""
        return ()

    def rate(self, step: int) -> float:
        """The learning rate at a global step.

        Args:
            step: The global step, counted from 0.

        Returns:
            The rate.
        """
        return rate_at(self.learning_rate, step)


@record
class SGD(Optimizer):
    """`w -= lr * (g + weight_decay * w)`.

    Stochastic gradient descent. Without slots.

    Args:
        learning_rate: The rate: a number of at least 0, or a schedule such as `dps.optim.Cosine`, evaluated on the ps.
        weight_decay: L2 regularisation, added to the gradient; 0 is none.

    Raises:
        ConfigError: A number out of range; a TypeError as well if it is not a number.

    Example:
        ```pycon
        >>> dps.optim.SGD(0.1)
        SGD(learning_rate=0.1, weight_decay=0.0)
        ```
    """

    name: ClassVar[str] = "sgd"
    usual_rate: ClassVar[float] = 0.01
    learning_rate: float | Schedule
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        self._rate("learning_rate")
        self._at_least_zero("weight_decay", 1e-4)

    @staticmethod
    def rule(w: Number, g: Number, lr: Number, weight_decay: Number) -> Number:
        if weight_decay == 0:  # w may be inf, and 0 * inf is nan
            return w - mul(lr, g)
        return w - mul(lr, g + mul(weight_decay, w))

    def scalars(self, lr: float, t: int) -> tuple[float | None, ...]:
        return lr, self.weight_decay


@record
class Momentum(Optimizer):
    """`v = momentum * v + g; w -= lr * v`.

    Nesterov's form is `w -= lr * (g + momentum * v)`. Slot: `velocity`. Source: tf.train.MomentumOptimizer.

    Args:
        learning_rate: The rate: a number of at least 0, or a schedule such as `dps.optim.Cosine`, evaluated on the ps.
        momentum: The share of the velocity that is kept; at least 0 and below 1.
        nesterov: Whether to use Nesterov's form.

    Raises:
        ConfigError: A number out of range; a TypeError as well if it is not a number.

    Example:
        ```pycon
        >>> dps.optim.Momentum(0.1, nesterov=True).momentum
        0.9
        ```
    """

    name: ClassVar[str] = "momentum"
    usual_rate: ClassVar[float] = 0.01
    learning_rate: float | Schedule
    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        self._rate("learning_rate")
        self._fraction("momentum", 0.9)
        self._flag("nesterov")

    @property
    def slots(self) -> tuple[str, ...]:
        return ("velocity",)

    @staticmethod
    def rule(w: Number, velocity: Number, g: Number, lr: Number, momentum: Number, nesterov: bool) -> Number:
        velocity = mul(momentum, velocity) + g
        return (w - mul(lr, g + mul(momentum, velocity)) if nesterov else w - mul(lr, velocity)), velocity

    def scalars(self, lr: float, t: int) -> tuple[float | None, ...]:
        return lr, self.momentum, self.nesterov


@record
class Adagrad(Optimizer):
    """`a += g**2; w -= lr * g / (sqrt(a) + epsilon)`.

    Slot: `accumulator`, or `row_accumulator` with `rowwise`. Sources: Duchi, Hazan and Singer 2011; for `rowwise`
    Naumov et al. 2019 (DLRM).

    Args:
        learning_rate: The rate: a number of at least 0, or a schedule such as `dps.optim.Cosine`, evaluated on the ps.
        initial_accumulator: The first value of `a`; at least 0.
        epsilon: Keeps the divisor above 0. It may be 0 where `initial_accumulator` is above 0: TensorFlow 1's form.
        rowwise: One `a` for each row, to which the mean of the row's `g**2` is added. For embedding tables: the slot
            takes 1 / dim of the memory, and an update touches half as much. Rows are those of axis 0; a scalar is one
            row.

    Raises:
        ConfigError: A number out of range; a TypeError as well if it is not a number.

    Example:
        ```pycon
        >>> dps.optim.Adagrad(0.1, rowwise=True).slots
        ('row_accumulator',)
        ```
    """

    name: ClassVar[str] = "adagrad"
    learning_rate: float | Schedule
    initial_accumulator: float = 0.1
    epsilon: float = 1e-10
    rowwise: bool = False

    def __post_init__(self) -> None:
        self._rate("learning_rate")
        self._at_least_zero("initial_accumulator", 0.1)
        self._at_least_zero("epsilon", 1e-10)
        if self.epsilon == 0 and self.initial_accumulator < LEAST:
            got = f"epsilon is 0.0 and initial_accumulator is {self.initial_accumulator!r}"
            raise ConfigError(f"Adagrad: {got}, one of them must be > 0 as a float32; try initial_accumulator=0.1")
        self._flag("rowwise")

    @property
    def slots(self) -> tuple[str, ...]:
        return ("row_accumulator",) if self.rowwise else ("accumulator",)

    @property
    def row_slots(self) -> tuple[str, ...]:
        return self.slots if self.rowwise else ()

    @staticmethod
    def rule(w: Number, accumulator: Number, g: Number, lr: Number, epsilon: Number) -> Number:
        # Without `rowwise`, which takes a mean over a row: `dps.kernels.rowwise`.
        accumulator = accumulator + mul(g, g)
        return w - mul(lr, g) / (sqrt(accumulator) + epsilon), accumulator

    def scalars(self, lr: float, t: int) -> tuple[float | None, ...]:
        return lr, self.epsilon


@record
class RMSProp(Optimizer):
    """`s = decay * s + (1 - decay) * g**2; u = g / (sqrt(s) + epsilon); w -= lr * u`.

    Slots: `square`; `mean` when centered; `velocity` with momentum. Source: torch.optim.RMSprop (Graves 2013 when
    centered).

    Args:
        learning_rate: The rate: a number of at least 0, or a schedule such as `dps.optim.Cosine`, evaluated on the ps.
        decay: The share of `s` that is kept; at least 0 and below 1.
        momentum: Above 0: `b = momentum * b + u` and `w -= lr * b`; below 1.
        epsilon: Keeps the divisor above 0.
        centered: Whether `sqrt(s - m**2)` takes the place of `sqrt(s)`, with `m = decay * m + (1 - decay) * g`.

    Raises:
        ConfigError: A number out of range; a TypeError as well if it is not a number.

    Example:
        ```pycon
        >>> dps.optim.RMSProp(0.001, centered=True).slots
        ('square', 'mean')
        ```
    """

    name: ClassVar[str] = "rmsprop"
    learning_rate: float | Schedule
    decay: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-8
    centered: bool = False

    def __post_init__(self) -> None:
        self._rate("learning_rate")
        self._fraction("decay", 0.9)
        self._fraction("momentum", 0.9)
        self._positive("epsilon", 1e-8)
        self._flag("centered")

    @property
    def slots(self) -> tuple[str, ...]:
        """`mean` only when centered, `velocity` only with momentum: no memory for what is not used."""
        return ("square", *(("mean",) if self.centered else ()), *(("velocity",) if self.momentum else ()))

    @staticmethod
    def rule(
        w: Number, square: Number, mean: Number | None, velocity: Number | None, g: Number,
        lr: Number, decay: Number, one_minus_decay: Number, momentum: Number, epsilon: Number,
    ) -> Number:  # fmt: skip
        # More than 9 parameters: kernels are compiled for numbers, not for objects that hold them.
        square = mul(decay, square) + mul(one_minus_decay, mul(g, g))
        variance = new_mean = square
        if mean is not None:
            new_mean = mul(decay, mean) + mul(one_minus_decay, g)
            difference, zero = square - mul(new_mean, new_mean), epsilon - epsilon
            variance = above(zero, difference, zero, difference)  # rounding can make it negative; its root would be nan
        u = g / (sqrt(variance) + epsilon)
        if velocity is not None:
            u = mul(momentum, velocity) + u
        return w - mul(lr, u), square, new_mean, u

    def scalars(self, lr: float, t: int) -> tuple[float | None, ...]:
        return lr, self.decay, 1 - self.decay, self.momentum, self.epsilon


@record
class Adam(Optimizer):
    """`w -= lr * (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + epsilon)`.

    `m = beta1 * m + (1 - beta1) * g` and `v = beta2 * v + (1 - beta2) * g**2` are updated before. Slots:
    `first_moment`, `second_moment`. Sources: Kingma and Ba 2015, torch.optim.Adam.

    Args:
        learning_rate: The rate: a number of at least 0, or a schedule such as `dps.optim.Cosine`, evaluated on the ps.
        beta1: The share of `m` that is kept; at least 0 and below 1.
        beta2: The share of `v` that is kept; at least 0 and below 1.
        epsilon: Keeps the divisor above 0.

    Raises:
        ConfigError: A number out of range; a TypeError as well if it is not a number.

    Example:
        ```pycon
        >>> dps.optim.Adam()
        Adam(learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-08)
        ```
    """

    name: ClassVar[str] = "adam"
    counts_updates: ClassVar[bool] = True
    learning_rate: float | Schedule = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        self._rate("learning_rate")
        self._fraction("beta1", 0.9)
        self._fraction("beta2", 0.999)
        self._positive("epsilon", 1e-8)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("first_moment", "second_moment")

    @staticmethod
    def rule(
        w: Number, first_moment: Number, second_moment: Number, g: Number, step_size: Number, decay: Number,
        beta1: Number, one_minus_beta1: Number, beta2: Number, one_minus_beta2: Number, root: Number, epsilon: Number,
    ) -> Number:  # fmt: skip
        # More than 9 parameters: as the rule of RMSProp.
        m = mul(beta1, first_moment) + mul(one_minus_beta1, g)
        v = mul(beta2, second_moment) + mul(one_minus_beta2, mul(g, g))
        return (w - mul(decay, w)) - mul(step_size, m) / (sqrt(v) / root + epsilon), m, v

    def scalars(self, lr: float, t: int) -> tuple[float | None, ...]:
        # The bias corrections of update t are in the step size and in `root`, computed in double; the decay is 0.
        beta1, beta2 = self.beta1, self.beta2
        root = math.sqrt(1 - beta2**t)
        return lr / (1 - beta1**t), 0.0, beta1, 1 - beta1, beta2, 1 - beta2, root, self.epsilon


@record
class AdamW(Adam):
    """Adam after `w -= lr * weight_decay * w`.

    The decay is not part of the gradient. Slots as of `Adam`. Sources: Loshchilov and Hutter 2019, torch.optim.AdamW.

    Args:
        learning_rate: The rate: a number of at least 0, or a schedule such as `dps.optim.Cosine`, evaluated on the ps.
        beta1: As of `Adam`.
        beta2: As of `Adam`.
        epsilon: As of `Adam`.
        weight_decay: The decay for a rate of 1; at least 0.

    Raises:
        ConfigError: A number out of range; a TypeError as well if it is not a number.

    Example:
        ```pycon
        >>> dps.optim.AdamW(0.001, weight_decay=0.05).weight_decay
        0.05
        ```
    """

    name: ClassVar[str] = "adamw"
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least_zero("weight_decay", 0.01)

    def scalars(self, lr: float, t: int) -> tuple[float | None, ...]:
        step_size, _, *others = super().scalars(lr, t)
        return step_size, lr * self.weight_decay, *others


@record
class Ftrl(Optimizer):
    """`w = (sign(z) * l1 - z) / q` where `|z| > l1`, else 0.

    `n' = n + g**2; sigma = (n'**-p - n**-p) / lr; z += g - sigma * w; q = (n'**-p + beta) / lr + 2 * l2`, where n is
    the accumulator, z the linear slot and p `learning_rate_power`. Weights become exactly 0 where `|z|` is at most
    `l1`. Slots: `accumulator`, `linear`. Source: McMahan et al. 2013.

    Args:
        learning_rate: A number above 0, as the formula divides by it, or a schedule; a step where a schedule gives 0
            changes nothing.
        learning_rate_power: At most 0; -0.5 is the usual choice.
        initial_accumulator: The first value of n; at least 0.
        l1: L1 regularisation; at least 0.
        l2: L2 regularisation; at least 0.
        beta: Added to the square root of the accumulator; at least 0.

    Raises:
        ConfigError: A number out of range; a TypeError as well if it is not a number.

    Example:
        ```pycon
        >>> dps.optim.Ftrl(0.1, l1=0.01).slots
        ('accumulator', 'linear')
        ```
    """

    name: ClassVar[str] = "ftrl"
    learning_rate: float | Schedule
    learning_rate_power: float = -0.5
    initial_accumulator: float = 0.1
    l1: float = 0.0
    l2: float = 0.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        self._rate("learning_rate")
        if self.learning_rate == 0:
            raise self._refuse("learning_rate", self.learning_rate, "> 0", 0.01)
        if self._finite("learning_rate_power", -0.5) > 0:
            raise self._refuse("learning_rate_power", self.learning_rate_power, "<= 0", -0.5)
        for field, suggestion in (("initial_accumulator", 0.1), ("l1", 0.001), ("l2", 0.001), ("beta", 1.0)):
            self._at_least_zero(field, suggestion)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("accumulator", "linear")

    @staticmethod
    def rule(
        w: Number, accumulator: Number, linear: Number, g: Number,
        lr: Number, exponent: Number | None, l1: Number, twice_l2: Number, beta: Number,
    ) -> Number:  # fmt: skip
        # `exponent` is the negative of the power; None for a half.
        after = accumulator + mul(g, g)
        if exponent is None:
            was, now = sqrt(accumulator), sqrt(after)
        else:
            was, now = power(accumulator, exponent), power(after, exponent)
        z = linear + (g - mul((now - was) / lr, w))
        q = (now + beta) / lr + twice_l2
        return above(abs(z), l1, (math.copysign(l1, z) - z) / q, l1 - l1), after, z

    def scalars(self, lr: float, t: int) -> tuple[float | None, ...]:
        # No numbers for a rate of 0, by which the formula divides.
        exponent = None if self.learning_rate_power == -0.5 else -self.learning_rate_power
        return (lr, exponent, self.l1, 2 * self.l2, self.beta) if lr else ()


def optimizer_names() -> str:
    """The classes of all optimizers, for messages."""
    return ", ".join(cls.__name__ for cls in KNOWN.values())


def from_wire(wire: object) -> Optimizer:
    """The optimizer of a wire form from `Optimizer.to_wire`, without what a plan notes beside it.

    Raises ValueError or TypeError for anything else."""
    if isinstance(wire, Mapping):
        wire = {field: value for field, value in wire.items() if field not in ("moving_average", "inner")}
        if isinstance(wire.get("learning_rate"), Mapping):
            wire["learning_rate"] = schedule_from_wire(wire["learning_rate"])
    return build(KNOWN, "optimizer", wire)


def checked(optimizer: object, whose: str) -> Optimizer:
    """Return `optimizer` if it is one; else raise ConfigError with the known ones. `whose`: its owner."""
    if isinstance(optimizer, Optimizer):
        return optimizer
    got = f"the class {optimizer.__name__}" if isinstance(optimizer, type) else f"{optimizer!r:.80}"
    if hasattr(optimizer, "param_groups"):
        got = f"PyTorch's {type(optimizer).__name__} (the ps apply gradients, with optimizers of their own)"
    raise ConfigError(
        f"optimizer of {whose}: got {got}, wanted one of dps.optim, such as SGD(0.1); there are {optimizer_names()}"
    )


def counts_updates(wire: Mapping[str, object] | None) -> bool:
    """Whether the formula of an optimizer, in its wire form, depends on t."""
    return wire is not None and KNOWN.get(str(wire.get("name")), Optimizer).counts_updates
