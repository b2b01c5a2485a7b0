"""What the tests of all engines run: a program whose final values have the same bits everywhere, which notes each step
that was accepted; and its experiment."""

from __future__ import annotations

import re
from itertools import pairwise
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
    accepted = open(os.path.join(os.environ["OUTPUT_DIR"], f"steps-{server.task}"), "a", buffering=1)
    while not session.should_stop():
        values, step = session.pull(), session.global_step
        wave = {name: np.sin(array * (1 + server.task) + step) for name, array in values.items()}
        push = session.push({name: array.astype(np.float32) for name, array in wave.items()})
        if push.accepted:
            print(push.step, file=accepted)
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


def accepted(run: Path) -> list[list[int]]:
    """The steps that were accepted of each worker, in the order in which it made them, by the folder of its run."""
    return [[int(step) for step in file.read_text().split()] for file in sorted((run / "output").glob("steps-*"))]


def gone_back(steps: list[int]) -> list[tuple[int, int]]:
    """Where the steps of a worker were not higher than before: the last one before, and the checkpoint after it."""
    return [(before, step - 1) for before, step in pairwise(steps) if step <= before]


def check_no_step_was_lost(run: Path, steps: int) -> None:
    """No worker has gone back, and together they have made all steps."""
    made = accepted(run)
    assert [gone_back(each) for each in made] == [[]] * len(made), made
    assert set().union(*made) == set(range(1, steps + 1)), made


def check_newest_checkpoint(run: Path, said: str) -> None:
    """Workers have gone back once at most, to the newest checkpoint of the first run epoch."""
    newest = max(int(step) for step in re.findall(r"saved \S+step-0*(\d+)-epoch-000001", said))
    for steps in accepted(run):
        assert {checkpoint for _, checkpoint in gone_back(steps)} <= {newest}, (newest, gone_back(steps))
        assert all(before - checkpoint <= 60 for before, checkpoint in gone_back(steps)), gone_back(steps)
