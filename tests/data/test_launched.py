"""Dataset tasks that `dps launch` starts beside the workers, as processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.processes import Terminals

FEED = """
import sys
import numpy as np
import dps

def dataset():
    return dps.data.from_arrays(np.arange(int(sys.argv[1]))).batch(2)

def broken():
    def rows():
        yield 1
        raise KeyError("label")
    return dps.data.from_generator(rows)
"""

TRAIN = """
import os, signal, sys, time
import numpy as np
import dps

with dps.Server.from_env() as server, dps.Session(
    server, {"n": np.zeros(40)}, optimizer=dps.optim.SGD(1.0), timeout=30
) as session:
    while "kill" in sys.argv and server.task == 0 and session.stats()["ps:0"]["applied"] < 3:
        time.sleep(0.05)  # or it takes all batches before the other one has any
    for pushed, batch in enumerate(dps.data.remote(server, timeout=30)):
        gradient = np.zeros(40)
        gradient[batch] = -1
        assert session.push({"n": gradient}).accepted
        if pushed == 2 and server.task == 1 and "kill" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
    if server.task == 0:
        print("applied", sorted(set(session.pull()["n"].tolist())), flush=True)
"""


@pytest.mark.slow
def test_each_example_is_learned_from_once_also_when_a_worker_is_killed_after_a_push(tmp_path: Path) -> None:
    (tmp_path / "feed.py").write_text(FEED)
    (tmp_path / "train.py").write_text(TRAIN)
    flags = ("--workers", "2", "--dataset", "feed.py:dataset 40", "--datasets", "2")
    with Terminals(tmp_path) as terminals:
        terminals.start("launch", "-m", "dps.cli", "launch", *flags, "train.py", "--", "kill")
        codes, said = terminals.ended()
    assert codes == {"launch": 1}, said
    assert "[worker:0] applied [1.0]" in said["launch"]
    assert "the run failed: worker:1 was killed (SIGKILL)" in said["launch"]


@pytest.mark.slow
def test_a_dataset_that_fails_is_one_line_of_its_workers_and_the_runs_exit_code(tmp_path: Path) -> None:
    (tmp_path / "feed.py").write_text(FEED)
    (tmp_path / "train.py").write_text(TRAIN)
    with Terminals(tmp_path) as terminals:
        terminals.start("launch", "-m", "dps.cli", "launch", "--dataset", "feed.py:broken", "train.py")
        codes, said = terminals.ended()
    assert codes == {"launch": 1}, said
    assert "raised KeyError after 1 examples: 'label'" in said["launch"]
    assert "Traceback" not in said["launch"]
