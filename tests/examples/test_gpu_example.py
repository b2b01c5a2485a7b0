"""examples/gpu.py as a user runs it: on the CPU, and with numba's simulator as the GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "gpu.py"


def output(*arguments: str, **environment: str) -> str:
    command, variables = [sys.executable, str(EXAMPLE), *arguments], os.environ | environment
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_trains_on_the_cpu_where_there_is_no_gpu() -> None:
    text = output("--steps", "200", NUMBA_ENABLE_CUDASIM="0", CUDA_VISIBLE_DEVICES="")
    assert text.startswith("no CUDA GPU was found: going on with the CPU\n")
    found = re.search(r"^/cpu:0: 200 steps, [\d,]+ examples/s, accuracy ([\d.]+) on 1000 test images$", text, re.M)
    assert found is not None and float(found[1]) > 0.85


@pytest.mark.nightly
def test_it_trains_on_a_handful_of_images_in_the_simulator() -> None:
    text = output("--images", "4", "--steps", "2", NUMBA_ENABLE_CUDASIM="1")
    assert re.search(r"^step    2  loss [\d.]+$", text, re.M)
    assert re.search(r"^/gpu:0: 2 steps, [\d,]+ examples/s, accuracy [\d.]+ on 1 test images$", text, re.M)
