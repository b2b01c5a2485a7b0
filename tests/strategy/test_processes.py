"""MultiWorkerMirrored on real processes: a killed worker is named within seconds, and the others go on, or end."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, signal, time
import numpy as np
import dps

with dps.Server.from_env() as server:
    on_loss = "end" if server.task == 1 else "continue"
    with dps.strategy.MultiWorkerMirrored(server, ["/cpu:0"], on_loss=on_loss) as strategy:
        with strategy.scope():
            variables = strategy.variables({"w": np.zeros(50_000)}, optimizer=dps.optim.SGD(1.0))
        try:
            for step in range(20):
                if step == 10 and server.task == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                began = time.monotonic()
                variables.apply_gradients({"w": np.ones(50_000)})
                assert time.monotonic() - began < 15
        except dps.TaskLost as error:
            print(f"ended: {error}", flush=True)
        print(f"{variables.step} steps, {variables.read()['w'][-1]}", flush=True)
"""


def test_a_killed_worker_is_named_and_the_others_go_on_or_end(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "dps.cli", "launch", "--ps", "0", "--workers", "3", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout + done.stderr
    assert re.search(r"\[worker:0\] .*worker:2 was silent for 1\.\d s; group 'strategy' goes on with worker:0", said), (
        said
    )
    assert "[worker:1] ended: worker:2 was silent for" in said and "on_loss='end' says" in said, said
    assert "[worker:1] 10 steps, -30.0" in said and "[worker:0] 20 steps, -40.0" in said, said
    assert done.returncode == 1 and "worker:2 was killed (SIGKILL)" in said, said
