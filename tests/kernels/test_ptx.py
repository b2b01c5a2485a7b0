"""Every CUDA kernel compiles for real GPUs, on a machine without one: what numba's simulator cannot see.

Needs the compiler that dps[gpu] brings; `tests/kernels/ptx.py` says how it is done.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

compiles = pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None, reason="needs the CUDA compiler: pip install 'dps[gpu]'"
)
pytestmark = pytest.mark.timeout(900)
each_capability = pytest.mark.parametrize("capability", ["8 0", "9 0"])
DOUBLE_ON_PURPOSE = "dps.kernels.cuda._squares_kernel"
RULES = "dps.kernels.passes.dps.training.optimizers"
POWERS = {(f"{RULES}.Ftrl.rule.dense", 10), (f"{RULES}.Ftrl.rule.rows", 9)}
"""Kernels, and how many arguments are floats or arrays of them: a power with another exponent than -0.5 has the bits
of the GPU's own library."""


@cache
def compiled(capability: str) -> list[dict[str, Any]]:
    """What was compiled: kernel, signature, error, operations; the last one names the kernels that were not. With
    "--launch" after the capability: what would be."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    command = [sys.executable, "-m", "tests.kernels.ptx", *capability.split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_kernel_is_launched_where_launching_it_compiles_it():
    """Needs no compiler, so that a new kernel is missed here, and not only where there is one."""
    *reports, rest = compiled("9 0 --launch")
    assert rest == {"never launched": []}
    assert {re.split(r"\._|\.rule\.", r["kernel"])[0] for r in reports} == {
        *(f"dps.kernels.{name}" for name in ("cuda", "cuda_rowwise", "layers_cuda", "layers_product")),
        *(f"{RULES}.{name}" for name in ("SGD", "Momentum", "Adagrad", "RMSProp", "Adam", "Ftrl")),
    }


@compiles
@each_capability
def test_every_kernel_compiles_for_the_types_that_dps_launches_it_with(capability):
    *reports, rest = compiled(capability)
    assert rest == {"never launched": []}
    assert {r["kernel"]: r["error"] for r in reports if r["error"]} == {}
    assert len(reports) == len(compiled("9 0 --launch")) - 1


@compiles
@each_capability
def test_kernels_of_float32_compute_in_float32(capability):
    *reports, _ = compiled(capability)
    singles = [r for r in reports if "float64" not in r["signature"]]
    wide = {r["kernel"]: [o for o in r["operations"] if ".f64" in o] for r in singles}
    assert {k: v for k, v in wide.items() if v and not k.startswith(DOUBLE_ON_PURPOSE)} == {}
    assert len(singles) > 40


@compiles
@each_capability
def test_no_product_of_an_update_is_joined_with_a_sum(capability):
    # fma rounds once where the CPU rounds twice, and the bits would differ
    *reports, _ = compiled(capability)
    updates = [
        r for r in reports
        if not r["kernel"].startswith("dps.kernels.layers")
        and (r["kernel"], r["signature"].count("float")) not in POWERS
    ]  # fmt: skip
    assert {r["kernel"]: r["signature"] for r in updates if any(o.startswith("fma") for o in r["operations"])} == {}
    assert len(updates) > 30
