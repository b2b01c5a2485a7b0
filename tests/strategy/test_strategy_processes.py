"""MultiWorkerMirrored on real processes: a killed worker is named within seconds, and the others go on, or end; with
keys, through a ps."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dps.transport.keys import files as key_files

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
                    time.sleep(1)  # its part of the last sum has left: else one of the others may have it alone
                    os.kill(os.getpid(), signal.SIGKILL)
                began = time.monotonic()
                variables.apply_gradients({"w": np.ones(50_000)})
                assert time.monotonic() - began < 15
        except dps.TaskLost as error:
            print(f"ended: {error}", flush=True)
        print(f"{variables.step} steps, {variables.read()['w'][-1]}", flush=True)
"""


@pytest.mark.slow
def test_a_killed_worker_is_named_and_the_others_go_on_or_end(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "dps.cli", "launch", "--ps", "0", "--workers", "3", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout + done.stderr
    told = r"\[worker:0\] .*worker:2 was silent for 1\.\d s; group 'MultiWorkerMirrored' goes on with worker:0"
    assert re.search(told, said), said
    assert "[worker:1] ended: worker:2 was silent for" in said and "on_loss='end' says" in said, said
    assert "[worker:1] 10 steps, -30.0" in said and "[worker:0] 20 steps, -40.0" in said, said
    assert done.returncode == 1 and "worker:2 was killed (SIGKILL)" in said, said


KEYED = """
import numpy as np
import dps
from dps.collectives.group import Group

with dps.Server.from_env() as server:
    with dps.strategy.MultiWorkerMirrored(server, ["/cpu:0"], cross_device_ops="ps", timeout=20) as strategy:
        assert strategy.group._node.keys is not None and server.target.startswith("127.0.0.1:"), server.target
        with strategy.scope():
            first = {"w": np.zeros(50_000), "table": np.zeros((4, 2))}
            variables = strategy.variables(first, optimizer=dps.optim.SGD(1.0))
        for step in range(5):
            rows = dps.Rows([server.task], np.ones((1, 2)))
            variables.apply_gradients({"w": np.full(50_000, 1.0 + server.task), "table": rows})
        values = variables.read()
        sockets = Group(server.home(), server.binding, "sockets", algorithm="ring", lane=False, timeout=20)
        (ring,) = sockets.all_reduce([np.full(50_000, 1.0 + server.task)])
        print(values["w"][[0, -1]], values["table"][:, 0], ring[[0, -1]], flush=True)
    sockets.close()
"""


@pytest.mark.slow
def test_workers_with_keys_sum_through_a_ps_and_among_themselves(tmp_path: Path) -> None:
    program, keys = tmp_path / "train.py", str(tmp_path / "keys")
    program.write_text(KEYED)
    key_files.new(keys)
    command = [sys.executable, "-m", "dps.cli", "launch", "--ps", "1", "--workers", "2", "--keys", keys, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout + done.stderr
    for task in (0, 1):
        assert f"[worker:{task}] [-15. -15.] [-5. -5.  0.  0.] [3. 3.]" in said, said
    assert done.returncode == 0 and "refused" not in said, said
