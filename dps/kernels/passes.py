"""Makes an optimizer's passes from its rule: over an array, over rows, and over several gradients, on CPU.

`Optimizer.rule` is plain Python for one element. Each pass is a loop around it, written here as text with the names
of the rule's slots and scalars, because numba finds only such functions in its cache again: not closures over compiled
functions, and not functions that get the rule as an argument. `dps.kernels.cuda` makes the passes for a GPU.

Arguments of all passes: the arrays of a dense pass are 1-D and C-contiguous, of one size and one dtype; slots change
in place; scalars are numpy scalars of the arrays' dtype, because a Python float would turn float32 work into float64.
Slots and scalars may be None: numba compiles a loop without them. Nothing is checked, not even sizes:
`dps.kernels.optimizers` does that. No pass holds the GIL or runs in parallel.

- `dense(out, w, *slots, g, *scalars)`: `out` receives the new variable: it is `w` itself, or memory that does not
  overlap it. It has two loops, because LLVM does not vectorise a loop over two arrays that may be the same.
- `rows(w, *slots, rows, g, *scalars)`: a table `w` and slots of shape (rows, dim), row numbers `rows` (int64, unique,
  checked with `rows_in_range`) and `g` of shape (len(rows), dim). Changes the named rows in place and no others; `w`
  and `g` may be halves, as `dps.kernels.widening` has them.
- `fused(out, w, *slots, gs, n, *scalars)`: `dense` for the mean of some gradients: `gs`, a tuple of one to MOST, and
  `n`, the divisor of their sum. The result has the bits of `add`, `add_divide` and then the update, in the order of
  `gs`. With one gradient `n` is ignored. `out`, `w` and `gs` may be halves; slots, scalars and all arithmetic are then
  float32. If `out` is not `w`, it is written past the caches, and it may begin at any address. Without slots the pass
  returns whether the mean is finite everywhere; if it is not, `out` is written all the same.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import operator
from collections.abc import Callable, Container, Mapping
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numba.extending import overload

from dps.errors import ConfigError
from dps.kernels.elements import entry, number, put_entry, put_number
from dps.kernels.gradients import same
from dps.kernels.jit import compiled, define
from dps.kernels.rows import prefetch
from dps.kernels.vectors import AHEAD, any_nan, ask, before_line, fence, lanes_of, load, store, stream, zeros
from dps.training.optimizers import above, mul, power, sqrt

Array: TypeAlias = npt.NDArray[Any]
Gradients: TypeAlias = tuple[Array, ...]
Rule: TypeAlias = Callable[..., Any]
Scalar: TypeAlias = "np.floating[Any]"

MOST = 4
"""The most gradients in one pass."""


class PassText:
    """The parts of a pass's text that differ from rule to rule.

    In the text the names of slots and scalars end with _, so that they differ from all other names.
    """

    def __init__(self, rule: Rule, absent: Container[str] = ()) -> None:
        """`absent`: the slots and scalars that are None, and not among the arguments.

        Raises ConfigError for a rule that does not take w, slots, g and scalars, or that names anything but its
        arguments, `math` and the operations: the cache would not notice when that changes."""
        names = list(inspect.signature(rule).parameters)
        if names[:1] != ["w"] or "g" not in names:
            raise ConfigError(f"{rule.__qualname__} takes {', '.join(names)}; wanted w, the slots, g, the scalars")
        known = inspect.getclosurevars(rule)
        others = [name for name, value in known.globals.items() if value is not math and not is_operation(value)]
        if others := sorted({*known.nonlocals, *others}):
            raise ConfigError(f"{rule.__qualname__} names {', '.join(others)}; try to return numbers from `scalars`")
        g = names.index("g")
        self.slots, self.scalars, self._absent = tuple(names[1:g]), tuple(names[g + 1 :]), absent

    def arguments(self, *first: str, gradient: str) -> str:
        """The parameters of a pass."""
        return listed(*first, *self._present(self.slots), gradient, *self._present(self.scalars))

    def update(self, w: str, slot: str, g: str) -> str:
        """The call of the rule. `slot`: how an element of a slot is read, with {} for its name."""
        slots = ("None" if name in self._absent else slot.format(f"{name}_") for name in self.slots)
        scalars = ("None" if name in self._absent else f"{name}_" for name in self.scalars)
        results = listed("new_w", *(f"new_{name}_" for name in self.slots))
        return f"{results} = rule({listed(w, *slots, g, *scalars)})"

    def each(self, statement: str) -> str:
        """A statement for each slot, with {0} for its name."""
        return "; ".join(statement.format(name) for name in self._present(self.slots)) or "pass"

    def _present(self, names: tuple[str, ...]) -> list[str]:
        return [f"{name}_" for name in names if name not in self._absent]


def listed(*names: str) -> str:
    """The names, with commas."""
    return ", ".join(names)


def is_operation(value: object) -> bool:
    """Whether a rule may use this function."""
    return any(value is operation for operation in ON_CPU)


def defined(text: str, name: str, rule: Rule, names: Mapping[str, Any]) -> Any:
    """The function of this name in the text. `names`: what the text takes from elsewhere.

    numba keeps its compiled versions by its file, which is this one, and by a name that no other function has."""
    space = {**names, "__name__": __name__}
    define(text, __file__, space)
    function = space[name]
    function.__qualname__ = f"{rule.__module__}.{rule.__qualname__}.{name}"
    return function


def on_cpu(rule: Rule) -> Rule:
    """The rule with Python's operators for dps's operations: numba knows these, and compiles no function for each."""
    named = {name: ON_CPU[value] for name, value in inspect.getclosurevars(rule).globals.items() if is_operation(value)}
    return FunctionType(rule.__code__, {**rule.__globals__, **named}, rule.__name__)


class Passes:
    """The passes of one rule, as the head of this file documents them."""

    def __init__(self, rule: Rule) -> None:
        """Raises ConfigError as `PassText`."""
        text = PassText(rule)
        digest = _digest(rule)
        names = {**FUNCTIONS, "rule": compiled(on_cpu(rule), rule=None)}  # the passes have it in them, and are cached
        self.slots = text.slots
        self.dense, self.rows, self.fused = (
            compiled(defined(make(text), make.__name__.removesuffix("_text"), rule, names), rule=digest)
            for make in (dense_text, rows_text, fused_text)
        )


def _digest(rule: Rule) -> str | None:
    """A digest of the file of a rule; None if the rule was typed in."""
    try:
        return hashlib.sha256(Path(rule.__code__.co_filename).read_bytes()).hexdigest()
    except OSError:
        return None


@cache
def passes(rule: Rule) -> Passes:
    """The passes of a rule on CPU."""
    return Passes(rule)


def dense_text(of: PassText) -> str:
    """The text of `Passes.dense`."""
    update = of.update("w[i]", "number({}, i)", "g[i]")
    return f"""
def dense({of.arguments("out", "w", gradient="g")}):
    if same(out, w):
        for i in range(w.size):
            {update}
            {of.each("put_number({0}, i, new_{0})")}
            w[i] = new_w
    else:
        for i in range(w.size):
            {update}
            {of.each("put_number({0}, i, new_{0})")}
            out[i] = new_w
"""


def rows_text(of: PassText) -> str:
    """The text of `Passes.rows`."""
    return f"""
def rows({of.arguments("w", gradient="rows, g")}):
    for i in range(rows.size):
        prefetch(w, rows, i)
        {of.each("prefetch({0}, rows, i)")}
        r = rows[i]
        for j in range(w.shape[1]):
            {of.update("entry(w, r, j)", "entry({}, r, j)", "entry(g, i, j)")}
            {of.each("put_entry({0}, r, j, new_{0})")}
            put_entry(w, r, j, new_w)
"""


def fused_text(of: PassText) -> str:
    """The text of `Passes.fused`: first the elements before and after the vectors, then the vectors."""
    found = "bad == 0 and not any_nan(found)" if not of.slots else "None"
    return f"""
def fused({of.arguments("out", "w", gradient="gs, n")}):
    here = same(out, w)
    start, end = bounds(out, here)
    bad, found = n - n, zeros(w)
    for k in range(start + w.size - end):
        i = edge(k, start, end)
        g = mean_at(gs, i, n)
        {"pass" if of.slots else "bad += g - g"}
        {of.update("number(w, i)", "number({}, i)", "g")}
        put_number(out, i, new_w)
        {of.each("put_number({0}, i, new_{0})")}
    lanes, ahead = lanes_of(w), AHEAD * lanes_of(w)
    for i in range(start, end, lanes):
        ask(w, i + ahead)
        {of.each("ask({0}, i + ahead)")}
        ask_all(gs, i + ahead)
        gv = load_mean(gs, i, n)
        {"pass" if of.slots else "found = found + (gv - gv)"}
        {of.update("load(w, i)", "load({}, i)", "gv")}
        {of.each("store({0}, i, new_{0})")}
        put(out, i, new_w, here)
    fence()
    return {found}
"""


# ---- parts of fused passes ----


def mean_at(gs: Gradients, i: int, n: Scalar) -> Any:
    """Element i of the mean."""
    raise NotImplementedError("numba compiles this")


def load_mean(gs: Gradients, i: int, n: Scalar) -> Any:
    """Elements i to i + lanes of the mean, as a vector."""
    raise NotImplementedError("numba compiles this")


@overload(mean_at)
def _mean_at(gs, i, n):  # type: ignore[no-untyped-def]  # numba compares it with the lambdas, to the letter
    return {
        1: lambda gs, i, n: number(gs[0], i),
        2: lambda gs, i, n: (number(gs[0], i) + number(gs[1], i)) / n,
        3: lambda gs, i, n: ((number(gs[0], i) + number(gs[1], i)) + number(gs[2], i)) / n,
        4: lambda gs, i, n: (((number(gs[0], i) + number(gs[1], i)) + number(gs[2], i)) + number(gs[3], i)) / n,
    }[len(gs)]


@overload(load_mean)
def _load_mean(gs, i, n):  # type: ignore[no-untyped-def]
    return {
        1: lambda gs, i, n: load(gs[0], i),
        2: lambda gs, i, n: (load(gs[0], i) + load(gs[1], i)) / n,
        3: lambda gs, i, n: ((load(gs[0], i) + load(gs[1], i)) + load(gs[2], i)) / n,
        4: lambda gs, i, n: (((load(gs[0], i) + load(gs[1], i)) + load(gs[2], i)) + load(gs[3], i)) / n,
    }[len(gs)]


def ask_all(gs: Gradients, i: int) -> None:
    """Prefetch the elements from i on of all gradients."""
    raise NotImplementedError("numba compiles this")


@overload(ask_all)
def _ask_all(gs, i):  # type: ignore[no-untyped-def]
    def one(gs, i):  # type: ignore[no-untyped-def]
        ask(gs[0], i)

    def two(gs, i):  # type: ignore[no-untyped-def]
        ask(gs[0], i), ask(gs[1], i)

    def three(gs, i):  # type: ignore[no-untyped-def]
        ask(gs[0], i), ask(gs[1], i), ask(gs[2], i)

    def four(gs, i):  # type: ignore[no-untyped-def]
        ask(gs[0], i), ask(gs[1], i), ask(gs[2], i), ask(gs[3], i)

    return {1: one, 2: two, 3: three, 4: four}[len(gs)]


@compiled
def put(out: Array, i: int, value: Any, here: bool) -> None:
    """Write a vector: into memory that was just read, or past the caches."""
    if here:
        store(out, i, value)
    else:
        stream(out, i, value)


@compiled
def bounds(out: Array, here: bool) -> tuple[int, int]:
    """Where the vectors begin and end. The elements before and after are handled one by one; `edge` numbers them."""
    start, lanes = 0 if here else before_line(out), lanes_of(out)
    return start, start + (out.size - start) // lanes * lanes


@compiled
def edge(k: int, start: int, end: int) -> int:
    """The index of the k-th element that is in no vector."""
    return k if k < start else end + (k - start)


ON_CPU: dict[Any, Any] = {mul: operator.mul, sqrt: math.sqrt, power: operator.pow, above: above}
"""What the operations of rules are on a CPU. `dps.kernels.vectors` defines these for vectors."""

FUNCTIONS = {
    "AHEAD": AHEAD, "any_nan": any_nan, "ask": ask, "ask_all": ask_all, "bounds": bounds, "edge": edge, "entry": entry,
    "fence": fence, "lanes_of": lanes_of, "load": load, "load_mean": load_mean, "mean_at": mean_at, "number": number,
    "prefetch": prefetch, "put": put, "put_entry": put_entry, "put_number": put_number, "same": same, "store": store,
    "zeros": zeros,
}  # fmt: skip
"""What the texts of passes use."""
