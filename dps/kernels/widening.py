"""float16 and bfloat16 in LLVM: widened to float32 in registers, alone or as vectors, and rounded back.

Kernels get float16 as arrays of int16 and bfloat16 as arrays of uint16, because numba has no arrays of either on CPU.
Computing kernels use such integers for nothing else; `dps.kernels.halves.bits_in` makes them. Widening is exact.
Narrowing rounds to nearest, ties to even, and numbers that are too large become infinite, as in IEEE 754, numpy and
torch. A NaN in float16 has a fixed payload, so its bits do not depend on the processor.
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
from llvmlite import ir
from numba import types
from numba.core import config as numba_config

FLOAT16, BFLOAT16 = types.int16, types.uint16


def wide(dtype: Any) -> Any:
    """The type in which numbers of arrays of this type are computed."""
    return types.float32 if dtype in (FLOAT16, BFLOAT16) else dtype


def is_narrow(dtype: Any) -> bool:
    """Whether arrays of this type hold halves."""
    return dtype in (FLOAT16, BFLOAT16)


def converts_float16() -> bool:
    """Whether the processor that numba compiles for has float16 conversions. Without them LLVM calls functions that a
    process may lack."""
    if platform.machine() in ("aarch64", "arm64"):
        return True
    settings: Any = numba_config
    if settings.CPU_NAME or settings.CPU_FEATURES is not None:
        return "+f16c" in (settings.CPU_FEATURES or "")
    return bool(llvm.get_host_cpu_features().get("f16c"))


def widened(builder: Any, dtype: Any, bits: Any) -> Any:
    """Bits of halves (i16, or a vector of them) as float32."""
    if dtype == FLOAT16 and converts_float16():
        return builder.fpext(builder.bitcast(bits, _like(bits, ir.HalfType())), _like(bits, ir.FloatType()))
    whole, number = _like(bits, ir.IntType(32)), _like(bits, ir.FloatType())
    half = builder.zext(bits, whole)
    if dtype == BFLOAT16:
        return builder.bitcast(builder.shl(half, _all(whole, 16)), number)
    sign = builder.shl(builder.and_(half, _all(whole, 0x8000)), _all(whole, 16))
    size = builder.and_(half, _all(whole, 0x7FFF))
    # Numbers below 2**-14 are multiples of 2**-24.
    small = builder.bitcast(builder.fmul(builder.uitofp(size, number), _all(number, 2.0**-24)), whole)
    large = builder.add(builder.shl(size, _all(whole, 13)), _all(whole, 112 << 23))
    beyond = builder.add(large, _all(whole, 112 << 23))  # infinite or NaN
    large = builder.select(builder.icmp_unsigned(">=", size, _all(whole, 0x7C00)), beyond, large)
    large = builder.select(builder.icmp_unsigned("<", size, _all(whole, 0x400)), small, large)
    return builder.bitcast(builder.or_(large, sign), number)


def narrowed(builder: Any, dtype: Any, number: Any) -> Any:
    """Float32 (or a vector of them) as the bits of the nearest halves."""
    bits, whole = _like(number, ir.IntType(16)), _like(number, ir.IntType(32))
    is_nan = builder.fcmp_unordered("uno", number, number)
    if dtype == BFLOAT16:
        all_bits = builder.bitcast(number, whole)
        upper = builder.lshr(all_bits, _all(whole, 16))
        odd = builder.and_(upper, _all(whole, 1))
        rounded = builder.lshr(builder.add(builder.add(all_bits, _all(whole, 0x7FFF)), odd), _all(whole, 16))
        return builder.trunc(builder.select(is_nan, builder.or_(upper, _all(whole, 0x40)), rounded), bits)
    if converts_float16():
        half = builder.bitcast(builder.fptrunc(number, _like(number, ir.HalfType())), bits)
    else:
        half = builder.trunc(_float16_of(builder, number), bits)
    nan = builder.or_(builder.and_(half, _all(bits, 0x8000)), _all(bits, 0x7E00))
    return builder.select(is_nan, nan, half)


def _float16_of(builder: Any, number: Any) -> Any:
    """Below 2**-14, where halves are evenly spaced, adding 0.5 makes the float32 adder round to just that spacing."""
    whole, real = _like(number, ir.IntType(32)), _like(number, ir.FloatType())
    all_bits = builder.bitcast(number, whole)
    sign = builder.and_(builder.lshr(all_bits, _all(whole, 16)), _all(whole, 0x8000))
    size = builder.and_(all_bits, _all(whole, 0x7FFFFFFF))
    odd = builder.and_(builder.lshr(size, _all(whole, 13)), _all(whole, 1))
    shift = _all(whole, (0xFFF - (112 << 23)) & 0xFFFFFFFF)
    half = builder.lshr(builder.add(builder.add(size, odd), shift), _all(whole, 13))
    moved = builder.bitcast(builder.fadd(builder.bitcast(size, real), _all(real, 0.5)), whole)
    small = builder.sub(moved, _all(whole, 0x3F000000))
    half = builder.select(builder.icmp_unsigned("<", size, _all(whole, 0x38800000)), small, half)
    half = builder.select(builder.icmp_unsigned(">=", size, _all(whole, 0x477FF000)), _all(whole, 0x7C00), half)
    return builder.or_(sign, half)


def _like(value: Any, lane: Any) -> Any:
    """`lane`, or a vector of as many as `value` has."""
    return ir.VectorType(lane, value.type.count) if isinstance(value.type, ir.VectorType) else lane


def _all(kind: Any, number: float) -> Any:
    """A constant, in every lane."""
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)
