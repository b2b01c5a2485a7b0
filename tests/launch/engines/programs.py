"""What the tests of all engines run: a program whose final values have the same bits everywhere, and its experiment."""

from __future__ import annotations

from pathlib import Path

SUMS = '''
"""Synchronous steps whose final bits are the same for any timing and any place."""
import os, sys, time
import numpy as np, dps

steps, pause = int(sys.argv[1]), float(sys.argv[2])
with dps.Server.from_env() as server, dps.Session(
    server, {"w": np.linspace(-1, 1, 50_000, dtype=np.float32), "b": np.zeros(3, np.float32)},
    optimizer=dps.optim.Adam(0.01), timeout=60, checkpoint_dir=os.environ["OUTPUT_DIR"],
    hooks=[dps.StopAtStep(last_step=steps), dps.CheckpointSaver(steps=20)],
) as session:
    print("begins at", session.global_step, "in", os.getcwd(), flush=True)
    while not session.should_stop():
        values, step = session.pull(), session.global_step
        wave = {name: np.sin(array * (1 + server.task) + step) for name, array in values.items()}
        session.push({name: array.astype(np.float32) for name, array in wave.items()})
        time.sleep(pause)
    print("ends at", session.global_step, flush=True)
    if server.task == 0 and session.global_step >= steps:
        values = session.pull()
        with open(os.path.join(os.environ["OUTPUT_DIR"], "values"), "wb") as file:
            file.write(b"".join(values[name].tobytes() for name in sorted(values)))
'''
FILE = """
name: sums
parameters: {steps: 60, pause: 0.0}
update: sync
restarts: 1
env: {OMP_NUM_THREADS: "1", NUMBA_ENABLE_CUDASIM: "1"}
roles:
  ps: {count: 2}
  worker: {count: 2, run: "sums.py {{ steps }} {{ pause }}"}
"""


def write(folder: Path, more: str = "") -> None:
    """Write program and experiment into a folder. `more`: lines for an engine."""
    (folder / "sums.py").write_text(SUMS)
    (folder / "experiment.yaml").write_text(more + FILE)


def bits(run: Path) -> bytes:
    """The final values of a run, by its folder."""
    return (run / "output" / "values").read_bytes()
