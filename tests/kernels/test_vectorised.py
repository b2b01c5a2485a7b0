"""The machine code of kernels: vectors where the processor has them, stores past the caches where they are meant."""

from __future__ import annotations

import re
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numpy as np
import pytest
from numba import njit

from dps.kernels import cpu
from dps.kernels.passes import passes
from dps.training.optimizers import SGD, Adagrad, Adam, Ftrl, RMSProp

FEATURES = llvm.get_host_cpu_features()
pytestmark = pytest.mark.skipif(not FEATURES.get("avx2"), reason="packed instructions are looked for by AVX2's names")

ARRAY = np.ones(8, np.float32)
NUMBER = np.float32(1)
CASES = {
    "sgd": (passes(SGD.rule).dense, (ARRAY,) * 3 + (NUMBER,) * 2, ["mul", "sub"]),
    "adagrad": (passes(Adagrad.rule).dense, (ARRAY,) * 4 + (NUMBER,) * 2, ["mul", "div", "sqrt"]),
    "adam": (passes(Adam.rule).dense, (ARRAY,) * 5 + (NUMBER,) * 8, ["mul", "div", "sqrt"]),
    "add_divide": (cpu.add_divide, (ARRAY,) * 3 + (NUMBER,), ["add", "div"]),
    "all_finite": (cpu.all_finite, (ARRAY,), ["sub"]),
    "fused sgd": (
        passes(SGD.rule).fused,
        (ARRAY, ARRAY, (ARRAY, ARRAY), NUMBER, NUMBER, NUMBER),
        ["add", "div", "mul", "sub"],
    ),
    "fused adagrad": (passes(Adagrad.rule).fused, (ARRAY,) * 3 + ((ARRAY,),) + (NUMBER,) * 3, ["mul", "div", "sqrt"]),
    "rmsprop": (passes(RMSProp.rule).dense, (ARRAY,) * 3 + (None, None, ARRAY) + (NUMBER,) * 5, ["mul", "div", "sqrt"]),
    "ftrl": (passes(Ftrl.rule).dense, (ARRAY,) * 5 + (NUMBER, None) + (NUMBER,) * 3, ["mul", "div", "sqrt"]),
}


def code_of(kernel: Any, arguments: Any) -> str:
    """Compiled anew: numba does not show the code of what it takes from its cache."""
    again = njit(nogil=True, error_model="numpy")(kernel.py_func)
    again(*(a.copy() if isinstance(a, np.ndarray) else a for a in arguments))
    return "\n".join(again.inspect_asm().values())


@pytest.mark.nightly
@pytest.mark.parametrize(("kernel", "arguments", "operations"), CASES.values(), ids=CASES)
def test_a_kernel_works_on_vectors_and_never_joins_a_product_with_a_sum(
    kernel: Any, arguments: Any, operations: list[str]
) -> None:
    code = code_of(kernel, arguments)
    for operation in operations:
        assert re.search(rf"\bv{operation}ps\s.*%[yz]mm", code), f"no packed {operation}"
    assert not re.search(r"\bvf(n?m)(add|sub)", code)
    past_the_caches = re.search(r"\bvmovntp[sd]\s.*%[yz]mm", code)
    fenced = re.search(r"\bmfence\b|\block\s+or[lq]\s.*\(%rsp\)", code)  # both wait for such stores
    assert bool(past_the_caches) == bool(fenced)
    assert bool(past_the_caches) == (kernel.py_func.__name__ == "fused")
