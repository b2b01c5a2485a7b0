"""How quickly things start, as ratios measured in one run: systems by turns, nothing that depends on how fast this
machine is.

`python tests/test_startup.py` prints the ratios.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from dps.monitor.goals import with_bytecode
from dps.transport.current import runtime

IMPORT_RATIO = 1.3
LAUNCH_RATIO, LAUNCH_WALL_RATIO = 1.0, 1.1
"""Of processor time, and of wall time. Tasks are below 1 because the garbage collector rests while they load."""
CORE = ("msgpack", "numba", "llvmlite", "numpy", "pyzmq", "safetensors")
CORE_MB = 400
DPS_MB = 4

PROGRAM = """
import sys
import numpy as np
import dps
with dps.Server.from_env() as server, dps.Session(
    server, {"w": np.zeros(1000, np.float32)}, optimizer=dps.optim.Adagrad(0.1), timeout=60
) as session:
    session.push(session.pull())
    print("stepped", "numba" in sys.modules, flush=True)
"""
IMPORTS = {
    "chief": "import dps.role, logging, dps.task.server, dps.transport.runtime, dps.chief.server",
    "ps": "import dps.role, logging, dps.task.server, dps.transport.runtime, dps.ps.server, dps.ps.warm; "
    "dps.ps.warm.start()",
    "worker": "import dps.role, logging, runpy, dps.task.server, dps.transport.runtime, dps.client.session, dps.optim",
}
"""What each kind of task has loaded at its first step."""


def cpu_s() -> float:
    """Processor seconds of ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def import_ratio(environ: dict[str, str], rounds: int = 15, most: int = 45) -> float:
    """Processor time of `import dps` with its Session over that of zmq, msgpack and numpy: the median of `rounds`, or
    while that is above the limit, of up to `most`.

    Both are measured in one process, one after the other: where neighbours share its caches, the same import takes up
    to twice as long, in spells longer than a process. That dps loads numpy with the garbage collector at rest, where
    it is imported first, is not in it. Of the main thread: that of numpy's library that waits for work is apart.
    """
    code = (
        "import time; now = time.thread_time; began = now(); import zmq, msgpack, numpy; bare = now() - began\n"
        "import dps; dps.Session; print((now() - began) / bare)"
    )
    ratios: list[float] = []
    for turn in range(1 + most):
        found = float(subprocess.run([sys.executable, "-c", code], env=environ, stdout=-1, check=True).stdout)
        ratios += [found] if turn else []  # bytecode is made in the first
        if len(ratios) >= rounds and statistics.median(ratios) <= IMPORT_RATIO:
            break
    return statistics.median(ratios)


def first_lines(commands: list[list[str]], words: str, times: int, environ: dict[str, str]) -> tuple[float, float]:
    """Seconds from the start of all commands to the last of `times` lines with these words, and the processor seconds
    of the commands from their start to their end."""
    clock = runtime()
    out, into = os.pipe()
    used, began = cpu_s(), clock.now()
    started = [  # each a session of its own, as launched tasks are: Linux shares out processors by session
        subprocess.Popen(c, stdout=into, env=environ, start_new_session=True) for c in commands
    ]
    os.close(into)
    took, seen = 0.0, 0
    with open(out) as lines:
        for line in lines:
            if words in line:
                took, seen = clock.now() - began, seen + 1
                assert "True" not in line, "a worker has loaded numba"
    assert [process.wait() for process in started] == [0] * len(started) and seen == times
    return took, cpu_s() - used


def launch_ratios(folder: Path, rounds: int = 3, most: int = 21) -> tuple[float, float]:
    """`dps launch` with chief, 2 ps and 2 workers over five bare processes that load the same modules at once.

    First: wall time to the last worker's first step, over that until all bare ones have loaded. Second: processor time
    to the end, the launcher's and that of the step included. Medians of `rounds`, or where they are above the limits,
    of up to `most`.
    """
    program = folder / "program.py"
    program.write_text(PROGRAM)
    environ = with_bytecode(str(folder / "bytecode"))
    launch = [[sys.executable, "-m", "dps.cli", "launch", "--ps", "2", "--workers", "2", str(program)]]
    bare = [
        [sys.executable, "-c", f"{IMPORTS[job]}; import os; os.write(1, b'loaded\\n')"]
        for job in ("chief", "ps", "ps", "worker", "worker")
    ]
    first_lines(launch, "stepped", 2, environ)  # kernels are compiled, files are in memory
    first_lines(bare, "loaded", 5, environ)
    walls, cpus = [], []
    for _ in range(most):
        (bare_s, bare_cpu_s), (own_s, own_cpu_s) = (
            first_lines(bare, "loaded", 5, environ), first_lines(launch, "stepped", 2, environ),
        )  # fmt: skip
        walls.append(own_s / bare_s)
        cpus.append(own_cpu_s / bare_cpu_s)
        wall, cpu = statistics.median(walls), statistics.median(cpus)
        if len(walls) >= rounds and wall <= LAUNCH_WALL_RATIO and cpu <= LAUNCH_RATIO:
            break
    return wall, cpu


def installed_bytes(package: str) -> int:
    """Bytes of the files that a distribution has installed, compiled Python apart."""
    files = importlib.metadata.files(package) or []
    return sum(
        Path(str(file.locate())).stat().st_size
        for file in files
        if file.suffix not in (".pyc", ".nbi", ".nbc") and Path(str(file.locate())).is_file()
    )


@pytest.mark.slow
@pytest.mark.alone
def test_import_dps_costs_little_more_than_its_dependencies(tmp_path: Path) -> None:
    assert import_ratio(with_bytecode(str(tmp_path))) <= IMPORT_RATIO


@pytest.mark.slow
@pytest.mark.alone
def test_a_cluster_steps_soon_after_as_many_bare_processes_have_loaded_and_its_workers_without_numba(
    tmp_path: Path,
) -> None:
    wall, cpu = launch_ratios(tmp_path)
    assert cpu <= LAUNCH_RATIO and wall <= LAUNCH_WALL_RATIO


LATER = {
    "_hashlib", "dataclasses", "ipaddress", "numba", "numpy.typing", "pathlib", "safetensors", "shutil", "tomllib",
    "dps.checkpoint", "dps.chief", "dps.cluster.resolve", "dps.cluster.resolvers", "dps.compress",
    "dps.client.compressing", "dps.hooks.summary", "dps.hooks.saver", "dps.kernels", "dps.launch", "dps.monitor",
    "dps.client.packing", "dps.ps", "dps.role", "dps.transport.sim",
}  # fmt: skip
"""What a first step of a worker needs not."""
LARGE = {"numba", "numpy", "zmq", "msgpack", "asyncio", "concurrent", "dataclasses", "json", "logging", "tomllib"}
"""What the launcher starts tasks without."""


def loaded_by(code: str) -> set[str]:
    """The modules that this loads beyond zmq, msgpack and numpy."""
    ground = (
        "import sys, zmq, msgpack, numpy; before = set(sys.modules)"
        if "Session" in code
        else "import sys; before = set()"
    )
    text = f"{ground}; {code}; print(*(set(sys.modules) - before))"
    return set(subprocess.run([sys.executable, "-c", text], stdout=-1, text=True, check=True).stdout.split())


def test_a_session_loads_what_a_first_step_needs_and_no_more() -> None:
    found = loaded_by("import dps; dps.Session")
    assert not found & LATER
    assert len([name for name in found if name.startswith("dps")]) <= 80


def test_the_launcher_starts_tasks_before_it_loads_anything_large() -> None:
    assert not loaded_by("import dps.cli, dps.launch.supervision.supervisor") & LARGE


def test_dps_and_its_core_dependencies_stay_small() -> None:
    named = {
        re.split(r"[^\w-]", text)[0] for text in importlib.metadata.requires("dps") or [] if "extra ==" not in text
    }
    assert named <= set(CORE)  # a new one is to be weighed
    source = Path(__file__).parent.parent / "dps"
    assert sum(file.stat().st_size for file in source.rglob("*.py")) < DPS_MB << 20
    assert sum(installed_bytes(name) for name in CORE) < CORE_MB << 20


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        wall, cpu = launch_ratios(Path(made), 5)
        own = import_ratio(with_bytecode(made))
        print(f"import {own:.2f}; launch {wall:.2f} in wall time, {cpu:.2f} in processor time")
    for name in CORE:
        print(f"{name} {installed_bytes(name) / 1e6:.1f} MB")
