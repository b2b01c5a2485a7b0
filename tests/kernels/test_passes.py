"""Passes that are made from a rule: an optimizer in one file, numba's cache over processes, and what rules may name."""

from __future__ import annotations

import importlib.util
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import ConfigError
from dps.kernels import cpu, cuda
from dps.nn.compiled import CompileSettings
from dps.training.optimizers import KNOWN, Optimizer
from tests.in_process import cluster

SIGN = '''
"""An optimizer of one file: steps of one size, against the sign of the velocity."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from dps.process.record import record
from dps.training.optimizers import Optimizer, mul
from dps.training.schedules import Schedule


@record
class Sign(Optimizer):
    name: ClassVar[str] = "sign"
    learning_rate: float | Schedule
    momentum: float = 0.5

    def __post_init__(self) -> None:
        self._rate("learning_rate")
        self._fraction("momentum", 0.5)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("velocity",)

    @staticmethod
    def rule(w: Any, velocity: Any, g: Any, lr: Any, momentum: Any) -> Any:
        velocity = mul(momentum, velocity) + g
        return w - math.copysign(lr, velocity), velocity

    def scalars(self, lr: float, t: int) -> tuple[float | None, ...]:
        return lr, self.momentum
'''
UPDATE = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from sign import Sign
from dps.kernels.jit import compiled_here
from dps.kernels.optimizers import BoundOptimizer

bound, n = BoundOptimizer(Sign(0.1), np.float32), 40
w, g, slot = (np.linspace(-1, k, n, dtype=np.float32) for k in (1, 2, 3))
bound.apply(w, w, [slot], (g,), 0, 1, 0, 1.0)
bound.apply(w, w, [slot], (g, g), 2, 1, 0, 1.0)
bound.apply_rows(w.reshape(10, 4), [slot.reshape(10, 4)], np.array([0, 7]), g[:8].reshape(2, 4), 1, 0, 1.0)
made = compiled_here()
print(hashlib.sha256(w.tobytes() + slot.tobytes()).hexdigest(), made.versions, made.from_cache)
"""


@pytest.fixture(name="sign")
def _sign(tmp_path: Path) -> Iterator[type[Any]]:
    """The optimizer of a file that is imported for one test."""
    (tmp_path / "sign.py").write_text(SIGN)
    spec = importlib.util.spec_from_file_location("sign", tmp_path / "sign.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sign"] = module
    spec.loader.exec_module(module)
    yield module.Sign
    del sys.modules["sign"], KNOWN["sign"]


@pytest.mark.parametrize("where", ["cpu", "gpu"])
def test_an_optimizer_of_one_file_trains_through_a_ps(sign: type[Any], where: str) -> None:
    params = {"w": np.linspace(-1, 1, 21, dtype=np.float32), "table": np.ones((6, 3), np.float32)}
    placement = dps.replica_device_setter(ps_tasks=1, ps_device=f"/job:ps/{where}:0")
    expected = {name: (value.copy(), np.zeros_like(value)) for name, value in params.items()}
    with (
        cluster(transport="inproc") as (server,),
        dps.Session(server, params, optimizer=sign(0.1), placement=placement) as session,
    ):
        for step in range(3):
            gradients = {name: np.cos(np.arange(w.size, dtype=w.dtype) + step).reshape(w.shape) for name, w in
                         params.items()}  # fmt: skip
            assert session.push(gradients).accepted
            for name, (w, velocity) in expected.items():
                velocity[:] = np.float32(0.5) * velocity + gradients[name]
                w -= np.copysign(np.float32(0.1), velocity)
        pulled = session.pull()
    assert {name: value.tobytes() for name, value in pulled.items()} == {
        name: w.tobytes() for name, (w, _) in expected.items()
    }


def test_it_is_known_by_its_name_everywhere(sign: type[Any]) -> None:
    assert CompileSettings("sign", "mse", []).optimizer == sign(0.001)
    assert dps.optim.from_wire(sign(0.5).to_wire()) == sign(0.5)
    with pytest.raises(AttributeError, match="Sign"):
        dps.optim.Lion  # noqa: B018


def run(folder: Path) -> tuple[str, int, int]:
    kept = {"NUMBA_CACHE_DIR": str(folder / "cache")}
    ended = subprocess.run(
        [sys.executable, "-c", UPDATE, str(folder)], capture_output=True, text=True, check=False, env=os.environ | kept
    )
    assert ended.returncode == 0, ended.stderr
    digest, versions, from_cache = ended.stdout.split()
    return digest, int(versions), int(from_cache)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_second_process_compiles_nothing_and_adds_no_file_until_the_rule_changes(tmp_path: Path) -> None:
    rule = tmp_path / "sign.py"
    rule.write_text(SIGN)
    first = run(tmp_path)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")}
    second = run(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")} == files
    assert first[1] > first[2] and second[1] == second[2] > 0
    assert first[0] == second[0]
    rule.write_text(SIGN.replace("w - math.copysign", "w + math.copysign"))
    assert run(tmp_path)[0] != first[0]


FACTOR = 2.0


class Named(Optimizer):
    @staticmethod
    def rule(w: Any, g: Any, lr: Any) -> Any:
        return w - lr * FACTOR * g


class Misplaced(Optimizer):
    @staticmethod
    def rule(g: Any, w: Any, lr: Any) -> Any:
        return w - lr * g


@pytest.mark.parametrize("kernels", [cpu, cuda])
@pytest.mark.parametrize(("optimizer", "said"), [(Named, "names FACTOR"), (Misplaced, "takes g, w, lr; wanted w")])
def test_a_rule_whose_bits_the_cache_could_not_know_is_refused(kernels: Any, optimizer: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kernels.passes(optimizer.rule)


def test_a_name_stands_for_one_optimizer() -> None:
    with pytest.raises(ConfigError, match="'sgd' is that of <class 'dps.training.optimizers.SGD'>"):
        type("Other", (Optimizer,), {"name": "sgd"})
    assert KNOWN["sgd"] is dps.optim.SGD


def test_a_kernel_that_is_a_text_has_no_source_in_the_file_whose_name_it_has() -> None:
    """numba asks for the source. Lines of the file that begin anywhere are not Python, which 3.13.0 does not bear."""
    made = cpu.passes(dps.optim.SGD.rule).dense.py_func
    assert made.__code__.co_filename.endswith("passes.py")
    with pytest.raises(OSError, match="could not get source|out of bounds"):
        inspect.getsourcelines(made)
