"""Kernels are ready when a run begins: nothing is compiled or loaded at the first push, pull or step."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import numpy as np
import dps
from dps.kernels.jit import compiled_here

update = {"async": dps.Async(), "sync": dps.SyncReplicas()}[sys.argv[1]]
params = {"w": np.zeros((40, 3), np.float32), "b": np.zeros(7), "large": np.zeros(1 << 18, np.float32)}
settings = {"optimizer": dps.optim.Adagrad(0.1), "update": update, "timeout": 120}
with dps.Server.create_local_server() as server:
    with dps.Session(server, params, **settings) as session:
        session.pull()
        ready = compiled_here().versions
        for _ in range(2):
            session.step({name: np.ones_like(value) for name, value in params.items()})
        session.push({"w": np.ones((40, 3), np.float32)})
        print(ready, compiled_here().versions)
"""
ALONE = """
import numpy as np
from dps import optim
from dps.kernels.jit import compiled_here
from dps.ps import warm
from dps.ps.store.gradients import Gradient
from dps.ps.intake.parts import checked, row_gradient
from dps.ps.store.store import Store
from dps.transport.current import runtime
from dps.variables.plan import Arena, Part, ShardLayout

arena = Arena("float64", optim.Adam().to_wire(), True, 0, 30, (Part(0, 0, "table", (10, 3), 0, 0),), (0,))
warm.warm([arena])
ready = compiled_here().versions
warm.warm([arena])
store = Store(ShardLayout((arena,), arena.nbytes), runtime())
for rows in ([2, 7], [7, 2, 7]):
    gradient = row_gradient(checked(arena.parts[0], np.array(rows)), np.ones((len(rows), 3)))
    store.apply_update(Gradient(None, {0: gradient}), 1)
store.gather(arena.parts[0], np.array([7]))
print(ready, compiled_here().versions)
"""


def run(code: str, *arguments: str, **environ: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, env=os.environ | environ
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("update", [pytest.param("async", marks=pytest.mark.slow), "sync"])
def test_no_kernel_is_made_ready_after_a_session_has_begun(update: str) -> None:
    ready, later = map(int, run(PROGRAM, update).split())
    assert ready == later > 0


def test_rows_of_a_sparse_table_find_their_kernels_ready() -> None:
    ready, later = map(int, run(ALONE).split())
    assert ready == later > 0


@pytest.mark.nightly
def test_dps_warm_compiles_everything_once_and_says_where() -> None:
    code = "import sys, dps.cli; sys.exit(dps.cli.main(['warm']))"
    first, second = run(code).splitlines(), run(code).splitlines()
    assert len(first) == len(second) == 16 and first[:-1] == second[:-1]
    assert first[0] == " 1 of 15: sgd float32" and first[14] == "15 of 15: first values"
    told = r"(\d+) kernels ready in [0-9.]+ s: (\d+) compiled, (\d+) had been compiled before; kept in (.+)"
    again = re.fullmatch(told, second[-1])
    assert again is not None and re.fullmatch(told, first[-1])
    assert int(again[2]) == 0 and int(again[1]) == int(again[3]) > 20
    assert any(file.suffix == ".nbi" for file in Path(again[4]).iterdir())


VARIANTS = """
import numpy as np
from dps import optim
from dps.kernels.jit import compiled_here
from dps.ps import warm
from dps.ps.store.gradients import Gradient
from dps.ps.store.store import Store
from dps.transport.current import runtime
from dps.variables.plan import Arena, Part, ShardLayout

optimizers = [optim.RMSProp(0.1), optim.RMSProp(0.1, centered=True), optim.Ftrl(0.1), optim.Ftrl(0.1, -0.4)]
arenas = [Arena("<f4", o.to_wire(), False, 0, 30, (Part(0, 0, "w", (30,), 0, 0),), (0,)) for o in optimizers]
warm.warm(arenas)
ready = compiled_here().versions
for arena in arenas:
    gradient = Gradient([np.ones(30, "f4")], {}, checked=False)
    Store(ShardLayout((arena,), arena.nbytes), runtime()).apply_update(gradient, 1)
print(ready, compiled_here().versions)
"""


@pytest.mark.nightly
def test_settings_that_need_passes_of_their_own_find_them_ready() -> None:
    ready, later = map(int, run(VARIANTS).split())
    assert ready == later > 0


UPDATED = """
import hashlib, sys
import numpy as np
from dps import optim
from dps.kernels.jit import compiled_here
from dps.ps.store.gradients import Gradient
from dps.ps.store.store import Store
from dps.transport.current import runtime
from dps.variables.plan import Arena, Part, ShardLayout

for dtype in sys.argv[1:]:
    powers = optim.Ftrl(0.1, learning_rate_power=-0.4).to_wire()
    arena = Arena(dtype, powers, False, 0, 99, (Part(0, 0, "w", (99,), 0, 0),), (0,))
    store = Store(ShardLayout((arena,), arena.nbytes), runtime())
    for step in (1, 2, 3):
        store.apply_update(Gradient([np.linspace(-step, 1, 99, dtype=dtype)], {}, checked=False), step)
    made = compiled_here()
    digest = hashlib.sha256(store.hold().arrays[0]).hexdigest()
    print(digest, made.versions - made.from_cache, "numba.cpython.listobj" in sys.modules)
"""


@pytest.mark.slow
def test_kernels_from_the_cache_give_the_same_bits_without_a_compiler_and_others_can_be_compiled_after_them(
    tmp_path: Path,
) -> None:
    kept = {"NUMBA_CACHE_DIR": str(tmp_path)}
    compiled = run(UPDATED, "f4", **kept).split()
    loaded, wider = (line.split() for line in run(UPDATED, "f4", "f8", **kept).splitlines())
    assert loaded == [compiled[0], "0", "False"] and int(compiled[1]) > 0
    assert int(wider[1]) > 0 and wider[2] == "True"


@pytest.mark.nightly
def test_where_no_cache_can_be_written_each_process_compiles_for_itself() -> None:
    code = (
        "import numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "import numpy as np; from dps.ps import warm; from dps.kernels.jit import compiled_here\n"
        "warm.start(); made = compiled_here(); print(made.versions, made.from_cache, made.folders)"
    )
    made, from_cache, folders = run(code).split(maxsplit=2)
    assert int(made) > 0 and (from_cache, folders) == ("0", "()\n")


@pytest.mark.nightly
def test_kernels_are_compiled_again_when_any_source_of_them_has_changed(tmp_path: Path) -> None:
    code = (
        "import sys; from dps.kernels import jit; jit.sources = lambda: sys.argv[1]\n"
        "from dps.ps import warm; warm.start(); made = jit.compiled_here(); print(made.versions, made.from_cache)"
    )
    own = {"NUMBA_CACHE_DIR": str(tmp_path)}
    run(code, "before", **own)
    again, changed = run(code, "before", **own).split(), run(code, "after", **own).split()
    assert again[0] == again[1] and changed[1] == "0"
