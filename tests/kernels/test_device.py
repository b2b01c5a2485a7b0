"""GPUs, whether they are there or not: what is said of them, copies, and refusals that say what to try."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

from dps.errors import ConfigError
from dps.kernels import cuda, device
from dps.training.optimizers import SGD


def test_a_gpu_is_described_in_one_line() -> None:
    assert device.is_available() == ""
    assert device.gpus() >= 1
    assert len(device.describe(0).splitlines()) == 1


def test_a_gpu_that_is_not_there_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=rf"got GPU:99, wanted 0 to {device.gpus() - 1}.*try GPU:0"):
        device.device(99)


WITHOUT = """
from dps.kernels import device
print(device.simulated(), bool(device.is_available()), device.gpus() == 0)
try:
    device.device(0)
except device.ConfigError as error:
    print(error)
"""


def test_without_a_driver_one_line_says_why_and_what_to_try() -> None:
    code = "import os; os.environ.pop('NUMBA_ENABLE_CUDASIM', None); os.environ['NUMBA_DISABLE_CUDA'] = '1'\n"
    done = subprocess.run([sys.executable, "-c", code + WITHOUT], check=True, capture_output=True, text=True)
    found, error = done.stdout.strip().split("\n")
    assert found == "False True True"
    assert error.startswith("got GPU:0, but CUDA cannot be used: ")
    assert "pip install 'dps[gpu]'" in error and "NUMBA_ENABLE_CUDASIM=1" in error


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 4), (0, 3)])
def test_arrays_come_back_as_they_went(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).random(shape)
    there = device.to_device(array)
    assert (there.shape, there.dtype) == (array.shape, array.dtype)
    into = np.full(shape, np.nan)
    assert device.to_host(there, into) is into
    assert into.tobytes() == array.tobytes() == device.to_host(there).tobytes()


def test_a_part_of_an_array_is_filled() -> None:
    there = device.to_device(np.zeros(6))
    device.to_device(np.array([1.0, 2.0]), out=there[2:4])
    assert device.to_host(there).tolist() == [0, 0, 1, 2, 0, 0]


def test_threads_launch_kernels_at_the_same_time() -> None:
    def work(value: float, found: list[float]) -> None:
        with device.device(0):
            total = device.to_device(np.zeros(5))
            for _ in range(10):
                cuda.passes(SGD.rule).dense(
                    total, total, device.to_device(np.full(5, -value)), np.float64(1), np.float64(0)
                )
            found.extend(device.to_host(total))

    results: list[list[float]] = [[] for _ in range(4)]
    threads = [threading.Thread(target=work, args=(i + 1.0, found)) for i, found in enumerate(results)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [[10.0 * (i + 1)] * 5 for i in range(4)]
