"""Vectors of one cache line as a numba type, for kernels that control how memory is written.

Halves are float32 in registers, so half a line of them makes a vector: `dps.kernels.widening`. Arithmetic, with the
operations of `dps.training.optimizers`, is elementwise, and each operation is rounded as on scalars, so a rule of an
optimizer gives the same bits for vectors as for numbers. LLVM maps a vector to the processor's registers: one of
AVX-512, two of AVX2, four of SSE or NEON. Where an array is None, a vector of it is None, and storing it does nothing.
`stream` stores past the caches (non-temporal): a line that is written whole is not read first, and the caches keep
their contents. A kernel that streams ends with `fence`; otherwise other threads might see a later store first.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, types
from numba.core import cgutils
from numba.extending import models, overload, register_model

from dps.kernels.elements import address
from dps.kernels.jit import compiled
from dps.kernels.widening import is_narrow, narrowed, wide, widened
from dps.training.optimizers import above

Array: TypeAlias = npt.NDArray[Any]

_declared: Any = cgutils.get_or_insert_function


def intrinsic(function: Callable[..., Any]) -> Any:
    """numba's decorator. It supplies the first argument of the decorated function, which mypy cannot know."""
    return extending.intrinsic(function)


AHEAD = 16
"""How many vectors ahead `ask` prefetches in a pass over memory: 1 KB. 4 KB and 8 KB were no better."""
LINE = 64
"""Bytes of a vector in registers, and the alignment that `stream` needs."""


class Vector(types.Type):
    """LINE bytes of numbers of one dtype, in registers."""

    def __init__(self, dtype: Any) -> None:
        self.dtype, self.lanes = dtype, LINE * 8 // dtype.bitwidth
        super().__init__(f"Vector({dtype} x {self.lanes})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        lane = manager.lookup(vector.dtype).get_value_type()
        super().__init__(manager, vector, ir.VectorType(lane, vector.lanes))  # type: ignore[no-untyped-call]


@compiled
def lanes_of(array: Array) -> int:
    """How many elements of the array a vector holds."""
    return LINE // max(4, array.itemsize)  # halves are float32 there


@compiled
def before_line(array: Array) -> int:
    """How many elements come before the first one that begins a cache line; all of them if none does."""
    nbytes = -int(np.int64(array.ctypes.data)) % LINE
    return min(array.size, nbytes // array.itemsize) if nbytes % array.itemsize == 0 else array.size


# ---- memory ----


def _nothing(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return context.get_dummy_value()


def _vector_of(array: Any) -> Vector:
    return Vector(wide(array.dtype))


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    lane = ir.IntType(16) if is_narrow(kind.dtype) else context.get_value_type(kind.dtype)
    return address(context, builder, kind, array, index, lane, _vector_of(kind).lanes)


def _stored(context: Any, builder: Any, kind: Any, args: Any, align: int) -> Any:
    value = narrowed(builder, kind.dtype, args[2]) if is_narrow(kind.dtype) else args[2]
    return builder.store(value, _address(context, builder, kind, *args[:2]), align=align)


@intrinsic
def load(typing: Any, array: Any, index: Any) -> Any:
    """array[index : index + lanes]; at any address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = builder.load(_address(context, builder, array, *args), align=1)
        return widened(builder, array.dtype, found) if is_narrow(array.dtype) else found

    if array is types.none:
        return array(array, types.intp), _nothing
    return _vector_of(array)(array, types.intp), generate


@intrinsic
def store(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index : index + lanes] = value; at any address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _stored(context, builder, array, args, 1)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), _nothing if array is types.none else generate


@intrinsic
def stream(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """`store` past the caches; the address is a multiple of LINE, or of half of it for halves."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        stored = _stored(context, builder, array, args, LINE // 2 if is_narrow(array.dtype) else LINE)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate


@intrinsic
def ask(typing: Any, array: Any, index: Any) -> Any:
    """Prefetch the cache line of array[index], without waiting; any index is harmless."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        flag, line = ir.IntType(32), _address(context, builder, signature.args[0], *args)
        pointer = builder.bitcast(line, ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, flag, flag, flag])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        read, all_levels, data = (ir.Constant(flag, value) for value in (0, 3, 1))
        builder.call(prefetch, [pointer, read, all_levels, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), _nothing if array is types.none else generate


@intrinsic
def fence(typing: Any) -> Any:
    """A store fence: threads that see later stores also see everything that was streamed before."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


# ---- arithmetic ----


@intrinsic
def zeros(typing: Any, array: Any) -> Any:
    """A vector of zeros, of the type in which the array's numbers are computed."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(signature.return_type), None)

    return _vector_of(array)(array), generate


@intrinsic
def any_nan(typing: Any, value: Any) -> Any:
    """Whether a lane is NaN."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = builder.fcmp_unordered("uno", args[0], args[0])
        bits = ir.IntType(value.lanes)
        return builder.icmp_unsigned("!=", builder.bitcast(found, bits), ir.Constant(bits, 0))

    return types.boolean(value), generate


@intrinsic
def halved(typing: Any, value: Any) -> Any:
    """The sum of all lanes in one order: the upper half is added to the lower one, until one lane is left."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lane, total, n = ir.IntType(32), args[0], value.lanes
        while n > 1:
            n //= 2
            low, high = (
                builder.shuffle_vector(total, total, ir.Constant(ir.VectorType(lane, n), list(range(k, k + n))))
                for k in (0, n)
            )
            total = builder.fadd(low, high)
        return builder.extract_element(total, ir.Constant(lane, 0))

    return value.dtype(value), generate


def _operator(operation: Callable[[Any, Any], Any], instruction: str) -> None:
    """Define an operator on two vectors, or on a vector and a number of its dtype, which stands for all lanes."""

    @intrinsic
    def of_both(typing: Any, a: Any, b: Any) -> Any:
        vector = a if isinstance(a, Vector) else b

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = context.get_value_type(vector)
            both = [
                arg if isinstance(of, Vector) else _in_all_lanes(builder, kind, arg)
                for of, arg in zip(signature.args, args, strict=True)
            ]
            return getattr(builder, instruction)(*both)

        return vector(a, b), generate

    @overload(operation)
    def on_vectors(a, b):  # type: ignore[no-untyped-def]  # numba compares it with the lambda, to the letter
        kinds = [of.dtype if isinstance(of, Vector) else of for of in (a, b)]
        if kinds[0] == kinds[1] and (isinstance(a, Vector) or isinstance(b, Vector)):
            return lambda a, b: of_both(a, b)
        return None


for _operation, _instruction in (
    (operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul"), (operator.truediv, "fdiv")
):  # fmt: skip
    _operator(_operation, _instruction)


def _in_all_lanes(builder: Any, kind: Any, number: Any) -> Any:
    lane, nothing = ir.IntType(32), ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(lane, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(lane, kind.count), [0] * kind.count))


@intrinsic
def _root(typing: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.get_value_type(value)
        name = f"llvm.sqrt.v{kind.count}{kind.element.intrinsic_name}"
        root = _declared(builder.module, ir.FunctionType(kind, [kind]), name)
        return builder.call(root, args)

    return value(value), generate


@intrinsic
def _above(typing: Any, x: Any, limit: Any, then: Any, other: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.get_value_type(vector)
        left, right, both, others = (
            arg if isinstance(of, Vector) else _in_all_lanes(builder, kind, arg)
            for of, arg in zip(signature.args, args, strict=True)
        )
        return builder.select(builder.fcmp_ordered(">", left, right), both, others)

    vector = next(of for of in (x, limit, then, other) if isinstance(of, Vector))
    return vector(x, limit, then, other), generate


@overload(above)
def _choose(x, limit, then, other):  # type: ignore[no-untyped-def]
    if any(isinstance(of, Vector) for of in (x, limit, then, other)):
        return lambda x, limit, then, other: _above(x, limit, then, other)
    return lambda x, limit, then, other: then if x > limit else other


@intrinsic
def _size(typing: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.get_value_type(value)
        name = f"llvm.fabs.v{kind.count}{kind.element.intrinsic_name}"
        return builder.call(_declared(builder.module, ir.FunctionType(kind, [kind]), name), args)

    return value(value), generate


@overload(abs)
def _abs(x):  # type: ignore[no-untyped-def]
    if isinstance(x, Vector):
        return lambda x: _size(x)
    return None


@intrinsic
def _signed(typing: Any, size: Any, sign: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.get_value_type(sign)
        name = f"llvm.copysign.v{kind.count}{kind.element.intrinsic_name}"
        copysign = _declared(builder.module, ir.FunctionType(kind, [kind, kind]), name)
        return builder.call(copysign, [_in_all_lanes(builder, kind, args[0]), args[1]])

    return sign(size, sign), generate


@overload(math.copysign)
def _copysign(x, y):  # type: ignore[no-untyped-def]
    if isinstance(y, Vector):
        return lambda x, y: _signed(x, y)
    return None


@overload(math.sqrt)
def _sqrt(x):  # type: ignore[no-untyped-def]
    return (lambda x: _root(x)) if isinstance(x, Vector) else None


@intrinsic
def _powers(typing: Any, value: Any, exponent: Any) -> Any:
    """Lane by lane, because LLVM has no powers of vectors."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        of_one = context.get_function(operator.pow, value.dtype(value.dtype, exponent))
        powers = args[0]
        for k in range(value.lanes):
            lane = ir.Constant(ir.IntType(32), k)
            found = of_one(builder, (builder.extract_element(args[0], lane), args[1]))
            powers = builder.insert_element(powers, found, lane)
        return powers

    return value(value, exponent), generate


@overload(operator.pow)
def _power(a, b):  # type: ignore[no-untyped-def]
    return (lambda a, b: _powers(a, b)) if isinstance(a, Vector) else None
